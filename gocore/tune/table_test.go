package tune

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// rowOf is a row of an all_reduce, whose other way is the best.
func rowOf(from int64, ways ...string) fileRow {
	r := fileRow{Operation: "all_reduce", From: from, Best: ways[1], Ways: ways}
	for i := range ways {
		r.Times = append(r.Times, 1e-3/float64(i+1))
	}
	return r
}

// text returns the text of a table with rows.
func text(t testing.TB, rows ...fileRow) []byte {
	text, err := json.Marshal(file{Format: Format, For: Fingerprint{MPI: "A", Shape: "2x1"}, Rows: rows})
	require.NoError(t, err)
	return text
}

func table(t testing.TB, rows ...fileRow) *Table {
	made, err := Decode(text(t, rows...))
	require.NoError(t, err)
	return made
}

// given returns the tuners of three members with a table.
func given(mode Mode, of *Table) (m members) {
	for range 3 {
		m = append(m, New(mode, of, 0))
	}
	return m
}

func TestAClassWithARowBeginsWithItsWay(t *testing.T) {
	of, longer := ClassOf(op.AllReduce, false, 1<<20), ClassOf(op.AllReduce, false, 1<<21)
	m := given(Once, table(t, rowOf(1<<20, three...)))
	slow := func(way int) time.Duration { return []time.Duration{1, 5000, 5000}[way] * time.Microsecond }
	for range 3 * again {
		require.Equal(t, 1, m.call(t, of, three, slow), "it is never measured again")
	}
	assert.Equal(t, []Chosen{{of, three, 1, []time.Duration{time.Millisecond, time.Millisecond / 2, 333333}, true, true}}, m[0].Chosen())

	tried := map[int]bool{}
	for range 12 {
		tried[m.call(t, longer, three, slow)] = true
	}
	assert.Len(t, tried, 3, "a class without a row is measured")
	assert.False(t, m[0].Chosen()[1].Given)

	for range 12 {
		m.call(t, of, three[:2], slow)
	}
	assert.Equal(t, 0, m.call(t, of, three[:2], slow), "the ways are others now, so they are measured")
}

func TestWithModeAlwaysARowIsMeasuredNowAndThen(t *testing.T) {
	of := ClassOf(op.AllReduce, false, 1<<20)
	m := given(Always, table(t, rowOf(1<<20, three...)))
	for k := range again {
		require.Equal(t, 1, m.call(t, of, three, func(int) time.Duration { return time.Millisecond }), "call %d", k)
	}
	for range 2 * again {
		m.call(t, of, three, func(way int) time.Duration { return []time.Duration{400, 800, 500}[way] * time.Microsecond })
	}
	assert.Equal(t, 0, m[2].Chosen()[0].Best)
	assert.False(t, m[2].Chosen()[0].Given)
}

func TestWithModeOffNoRowCounts(t *testing.T) {
	m := given(Off, table(t, rowOf(1<<20, three...)))
	assert.Equal(t, 0, m.call(t, ClassOf(op.AllReduce, false, 1<<20), three, func(int) time.Duration { return 1 }))
}

// A way that was hopeless in a table is tried no more for longer calls that have no row.
func TestWhatIsHopelessInARow(t *testing.T) {
	row := rowOf(1<<20, three...)
	row.Times[2] = 1
	m := given(Once, table(t, row))
	took := func(int) time.Duration { return time.Millisecond }
	m.call(t, ClassOf(op.AllReduce, false, 1<<20), three, took)
	for range 12 {
		assert.NotEqual(t, 2, m.call(t, ClassOf(op.AllReduce, false, 1<<22), three, took))
	}
}

func TestRowsOfOperationsThatAreNotKnownAreLeftOut(t *testing.T) {
	other := rowOf(1<<20, three...)
	other.Operation = "all_at_once"
	made := table(t, other, rowOf(1<<21, three...))
	assert.Equal(t, 1, made.Rows())
	_, ok := made.row(ClassOf(op.AllReduce, false, 1<<21), []string{"usual", "other", "a later one"})
	assert.False(t, ok)
	assert.Zero(t, (*Table)(nil).Rows())
}

func TestDamagedTables(t *testing.T) {
	change := func(f func(*fileRow)) []byte {
		r := rowOf(1<<20, "usual", "other", "third")
		f(&r)
		return text(t, r)
	}
	long := strings.Repeat("x", mostName+1)
	for said, damaged := range map[string][]byte{
		"no table":                     []byte("PADDLE"),
		"its format is 2":              []byte(`{"format":2}`),
		"its format is 0":              []byte(`{}`),
		"bytes, and a table has":       make([]byte, MostBytes+1),
		"rows, and a table has":        text(t, make([]fileRow, mostRows+1)...),
		"is there twice":               text(t, rowOf(1<<20, three...), rowOf(1<<20, three...)),
		"from=3 is no power of two":    change(func(r *fileRow) { r.From = 3 }),
		"from=0 is no power of two":    change(func(r *fileRow) { r.From = 0 }),
		"from=-1 is no power of two":   change(func(r *fileRow) { r.From = -1 }),
		"0 ways":                       change(func(r *fileRow) { r.Ways = nil }),
		"1 ways":                       change(func(r *fileRow) { r.Ways, r.Times = r.Ways[:1], r.Times[:1] }),
		"7 ways":                       change(func(r *fileRow) { r.Ways, r.Times = strings.Split("abcdefg", ""), make([]float64, 7) }),
		"2 times":                      change(func(r *fileRow) { r.Times = r.Times[:2] }),
		"none of its ways":             change(func(r *fileRow) { r.Best = "fast" }),
		"its row 0 is wrong: the name": change(func(r *fileRow) { r.Ways[2] = long }),
		"the name of way 2":            change(func(r *fileRow) { r.Ways[2] = "" }),
		"the name of way 1":            change(func(r *fileRow) { r.Ways[1], r.Best = r.Ways[0], r.Ways[0] }),
		"the time of way 0":            change(func(r *fileRow) { r.Times[0] = -1 }),
		"the time of way 1":            change(func(r *fileRow) { r.Times[1] = 2 * mostTime }),
	} {
		made, err := Decode(damaged)
		assert.ErrorContains(t, err, said)
		assert.Nil(t, made)
	}
}

func TestFingerprints(t *testing.T) {
	here := Fingerprint{"Open MPI", "v5", "tcp", "a CPU", "2x1"}
	assert.Regexp(t, `^open-mpi-2x1-[0-9a-f]{16}\.json$`, here.Name())
	assert.Empty(t, here.Differs(here))
	for i, other := range []Fingerprint{
		{"MPICH", "v5", "tcp", "a CPU", "2x1"}, {"Open MPI", "v6", "tcp", "a CPU", "2x1"}, {"Open MPI", "v5", "tcp 1", "a CPU", "2x1"},
		{"Open MPI", "v5", "tcp", "CPU", "2x1"}, {"Open MPI", "v5", "tcp", "a CPU", "2x2"},
	} {
		assert.NotEqual(t, here.Name(), other.Name(), fmt.Sprint(i))
		assert.Regexp(t, `^its [a-zA-Z ]+ is ".*", here it is ".*"$`, here.Differs(other))
	}
	assert.Equal(t, "mpich-3x1-2-4-ranks", Fingerprint{MPI: "MPICH", Shape: "3x1-2, 4 ranks"}.Name()[:19])
}

// Whatever a table says, it is refused, or a group goes on with it.
func FuzzTable(f *testing.F) {
	f.Add(text(f, rowOf(1<<20, three...), rowOf(16<<10, "a", "b")))
	f.Add([]byte(`{"format":1,"rows":[{}]}`))
	f.Add([]byte(`{"format":1,"rows":[{"operation":"all_reduce","from":4611686018427387904,"ways":["a","b"],"best":"b","times":[0,1e-300]}]}`))
	f.Fuzz(func(t *testing.T, given []byte) {
		made, err := Decode(given)
		if err != nil {
			assert.Nil(t, made)
			return
		}
		for of, r := range made.rows {
			x := New(Always, made, 0)
			for range again + 20 {
				words := x.Words()
				way, _ := x.Propose(of, r.ways)
				require.Less(t, way, len(r.ways))
				x.Heard(words, true)
				x.Done(time.Millisecond)
			}
		}
	})
}
