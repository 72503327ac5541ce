package health

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddlempi/paddlempi/gocore/liveness"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/stretchr/testify/assert"
)

func TestTimeOfReports(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 30 * time.Second, "0": 0, "0.5": 500 * time.Millisecond, "600": 10 * time.Minute} {
		t.Setenv(ReportVariable, text)
		after, err := reportAfter()
		assert.NoError(t, err, text)
		assert.Equal(t, want, after, text)
	}
	for _, text := range []string{"0.01", "-1", "NaN", "Inf", "1e30", "30s"} {
		t.Setenv(ReportVariable, text)
		_, err := reportAfter()
		assert.ErrorContains(t, err, ReportVariable+"="+text+" is neither 0 nor a number of seconds from 0.1 to 604800", text)
	}
}

// each runs f on every rank of a fake world, and waits for all of them.
func each(t *testing.T, n int, nodes []int, f func(t *testing.T, base transport.Comm, here *topo.Topology)) {
	t.Helper()
	var options []mpifake.Option
	if nodes != nil {
		options = append(options, mpifake.Nodes(nodes))
	}
	var all sync.WaitGroup
	for _, lib := range mpifake.New(n, options...) {
		all.Add(1)
		go func() {
			defer all.Done()
			base := mpifake.World(lib)
			if here, err := topo.Discover(base); assert.NoError(t, err) {
				f(t, base, here)
			}
		}()
	}
	all.Wait()
}

// At most 16 ranks are looked at, and 4 described. The line fits into a pipe.
func TestAReportOfManyRanks(t *testing.T) {
	each(t, 1, nil, func(t *testing.T, base transport.Comm, here *topo.Topology) {
		var recorder Recorder
		assert.NoError(t, recorder.Start(base, here))
		defer recorder.Close()
		var reports Reports
		reports.Begin(&Roster{topo: here, alive: &liveness.Liveness{}, recorder: &recorder})
		w := Wait{What: "x", How: "has not come", Nobody: "nobody", Ranks: make([]int, 40)}
		found := make([]activity, lookedAt)
		for i := range w.Ranks {
			w.Ranks[i] = i
		}
		for i := range found {
			found[i] = activity{Text: "t"}
		}
		found[1].Came = true
		found[2].Came, found[2].Stalled = true, true
		line := w.line(&reports, w.Ranks[:lookedAt], found)
		assert.Contains(t, line, " in x: rank 0 has not come: t; rank 2 is stalled: t; rank 3 has not come: t; rank 4 has not come: t; rank(s) [5 6 7 8 9 10 11 12 13 14 15] likewise; 24 more were not looked at. `")
		w.Moving = true
		assert.Contains(t, w.line(&reports, w.Ranks[:lookedAt], found), " in x: rank 2 is stalled: t; 24 more")
		found[2].Stalled, w.Ranks = false, w.Ranks[:lookedAt]
		assert.Contains(t, w.line(&reports, w.Ranks, found), " in x: nobody. `")
		w.Nobody = ""
		assert.Empty(t, w.line(&reports, w.Ranks, found))
		w.What, w.Moving = strings.Repeat("long", 2000), false
		line = w.line(&reports, w.Ranks, found)
		assert.Len(t, line, longestReport)
		assert.True(t, strings.HasSuffix(line, "tells more.\n"))
	})
}

func TestAnswersOfOtherProcesses(t *testing.T) {
	for _, p := range []activity{{Text: "x"}, {Came: true, Text: "it is inside"}, {Came: true, Stalled: true, Text: strings.Repeat("y", mostText)}} {
		got, err := decodeActivity(p.encode())
		assert.NoError(t, err)
		assert.Equal(t, p, got)
	}
	got, err := decodeActivity(activity{Text: strings.Repeat("z", 2*mostText)}.encode())
	assert.NoError(t, err)
	assert.Len(t, got.Text, mostText)
	got, err = decodeActivity([]byte(`{"Text":"a\nb\u001b[2Jc` + "\xff\u00e9" + `"}`))
	assert.NoError(t, err)
	assert.Equal(t, "a?b?[2Jc??", got.Text)
	for _, b := range [][]byte{nil, {0}, []byte("{}"), []byte(`{"Text":3}`), []byte(`{"Text":"` + strings.Repeat("x", mostText+1) + `"}`)} {
		_, err := decodeActivity(b)
		assert.Error(t, err, "%v", b)
	}
	each(t, 2, []int{0, 1}, func(t *testing.T, _ transport.Comm, here *topo.Topology) {
		recorder := Recorder{topo: here}
		for _, rank := range []uint32{uint32(1 - here.Rank), 2, 1<<32 - 1} { // of another node; none
			var q [20]byte
			q[0], q[1], q[2], q[3] = byte(rank), byte(rank>>8), byte(rank>>16), byte(rank>>24)
			assert.Nil(t, recorder.Answer(q), rank)
		}
	})
}

// A rank is asked itself, and some others of its node: they read its trace if it does not answer.
func TestWhoIsAsked(t *testing.T) {
	reports := Reports{roster: &Roster{topo: &topo.Topology{Node: []int{0, 1, 1, 0, 1, 1, 1, 2}}}}
	assert.Equal(t, []int{4, 1, 2, 5}, reports.asked(4))
	assert.Equal(t, []int{0, 3}, reports.asked(0))
	assert.Equal(t, []int{7}, reports.asked(7))
}
