package trace

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// collect begins to record the ring of this process.
func collect(t testing.TB) *Collector {
	t.Helper()
	c, err := NewCollector(Which{PIDs: []int{os.Getpid()}}, t.TempDir())
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.Len(t, c.rings, 1, "rings of other tests are open")
	return c
}

// unjudged makes a collector keep everything, in rings as they are.
func unjudged(c *Collector) { c.thinner.judged = time.Now().Add(time.Hour) }

func poll(t testing.TB, c *Collector) time.Duration {
	t.Helper()
	wait, err := c.Poll()
	require.NoError(t, err)
	return wait
}

// readBack is a part as it was written, and the columns of its only rank.
type readBack struct {
	part
	Ranks   []partRank `json:"ranks"`
	columns map[string][]uint64
}

// write ends a recording and reads it.
func write(t testing.TB, c *Collector) readBack {
	t.Helper()
	path := filepath.Join(t.TempDir(), "part.json")
	_, err := c.Write(path)
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	b := readBack{columns: map[string][]uint64{}}
	require.NoError(t, json.Unmarshal(text, &b))
	require.Len(t, b.Ranks, 1)
	for name, c := range b.Ranks[0].Columns {
		b.columns[name] = c.read(t)
		require.Len(t, b.columns[name], b.Ranks[0].Count)
	}
	return b
}

func (c *column) read(t testing.TB) (values []uint64) {
	packed, err := base64.StdEncoding.DecodeString(c.Data)
	require.NoError(t, err)
	z, err := zlib.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	raw, err := io.ReadAll(z)
	require.NoError(t, err)
	before := uint64(0)
	for ; len(raw) > 0; raw = raw[c.Width:] {
		var wide [8]byte
		copy(wide[:], raw[:c.Width])
		v := binary.LittleEndian.Uint64(wide[:])
		if c.Signed {
			v = v>>1 ^ -(v & 1)
		}
		if c.Steps {
			v += before
			before = v
		}
		values = append(values, v)
	}
	return values
}

// run carries out collectives with these numbers in their group.
func run(r *Ring, from, to uint64) {
	for i := from; i <= to; i++ {
		m := r.Begin(1, i, reduceOf(3*i), 0)
		m.Algorithm("mpi")
		m.End(status.OK)
	}
}

// What was there before the recording is left out, each operation is there once, and all times are.
func TestEachOperationIsRecordedOnce(t *testing.T) {
	r := newRing(t)
	r.SetJob(7)
	r.Join(Group{ID: 1, Key: 9, Rank: 1, Ranks: []int{0, 1, 2, 3}})
	run(r, 1, 10)
	began := time.Now().UnixNano()
	c := collect(t)
	unjudged(c)
	assert.Equal(t, Counts{Ranks: 1, Living: 1, Jobs: []string{hex(7)}}, c.Counts())
	var next uint64 = 11
	for range 40 {
		run(r, next, next+999)
		next += 1000
		poll(t, c)
	}
	b := write(t, c)
	rank := b.Ranks[0]
	assert.Equal(t, 40_000, rank.Count)
	assert.Zero(t, rank.Lost)
	assert.Equal(t, 1, rank.Rank)
	assert.Equal(t, 4, rank.Size)
	assert.Equal(t, []GroupRecord{{1, hex(9), 1, []int{0, 1, 2, 3}}}, rank.Groups)
	require.Len(t, rank.Kinds, 1)
	assert.Equal(t, "all_reduce", rank.Kinds[0].Operation)
	assert.Equal(t, 4, rank.Kinds[0].Bytes)
	assert.Equal(t, "mpi", *rank.Kinds[0].Algorithm)
	for i := range uint64(40_000) {
		require.Equal(t, 11+i, b.columns["seq"][i])
		require.Equal(t, 3*(11+i), b.columns["count"][i])
		require.GreaterOrEqual(t, b.columns["ended"][i], b.columns["begun"][i])
		require.Equal(t, uint64(0), b.columns["waited"][i])
	}
	assert.GreaterOrEqual(t, int64(b.columns["submitted"][0]), began-int64(slack))
	assert.LessOrEqual(t, int64(b.columns["submitted"][39_999]), b.Taken)
}

// A ring that is recorded has room for so many operations between two polls; one more is one that is lost, and counted.
func TestLostOperationsAreCounted(t *testing.T) {
	r := newRing(t)
	c := collect(t)
	unjudged(c)
	run(r, 1, some)
	poll(t, c)
	assert.EqualValues(t, some, c.Counts().Operations)
	run(r, some+1, 2*some+77)
	poll(t, c)
	assert.EqualValues(t, 77, c.Counts().Lost)
	assert.EqualValues(t, 2*some, c.Counts().Operations)
	assert.EqualValues(t, 77, write(t, c).Ranks[0].Lost)
}

// A ring of which all is kept gets more room if it fills fast, and loses it again.
func TestRoomForFastRanks(t *testing.T) {
	r := newRing(t)
	c := collect(t)
	c.most = math.Inf(1)
	poll(t, c)
	run(r, 1, some)
	c.thinner.judged = time.Now().Add(-100 * time.Millisecond)
	poll(t, c)
	assert.EqualValues(t, room-entries, r.header().counts.wide)
	unjudged(c)
	run(r, some+1, some+room)
	poll(t, c)
	assert.EqualValues(t, some+room, c.Counts().Operations)
	c.thinner.judged = time.Now().Add(-time.Minute)
	poll(t, c)
	assert.EqualValues(t, some-entries, r.header().counts.wide)
	unjudged(c)
	run(r, some+room+1, 2*some+room)
	assert.EqualValues(t, 2*some+room, write(t, c).Ranks[0].Count)
}

// Operations that stay under way are passed over by the others, which is no loss. They are recorded when they have ended, also those from
// before the recording; and what has not ended is in the file.
func TestOperationsUnderWay(t *testing.T) {
	r := newRing(t)
	early := r.Begin(1, 1, reduceOf(1), Async)
	run(r, 2, 20)
	c := collect(t)
	unjudged(c)
	late, never := r.Begin(1, 21, reduceOf(1), Async), r.Begin(1, 22, reduceOf(1), Async)
	for i := range uint64(10) {
		run(r, 100+i*some/2, 100+(i+1)*some/2-1)
		poll(t, c)
	}
	early.Waited()
	early.End(status.OK)
	late.End(status.Timeout)
	poll(t, c)
	assert.Equal(t, uint64(5*some+2), c.Counts().Operations)
	assert.Zero(t, c.Counts().Lost)
	b := write(t, c)
	rank := b.Ranks[0]
	assert.Zero(t, rank.Lost)
	require.Equal(t, 5*some+3, rank.Count)
	assert.Equal(t, []uint64{1, 21, 22, 100}, b.columns["seq"][:4])
	assert.NotZero(t, b.columns["waited"][0])
	assert.LessOrEqual(t, b.columns["waited"][0], b.columns["ended"][0])
	assert.Zero(t, b.columns["ended"][2])
	outcome := func(i int) *string { return rank.Kinds[b.columns["kind"][i]].Outcome }
	assert.Equal(t, "ok", *outcome(0))
	assert.Equal(t, "timeout", *outcome(1))
	assert.Nil(t, outcome(2))
	never.End(status.OK)
}

// When the collector does not ask any more, the ring is as small as before; the collector follows it there and back.
func TestTheLease(t *testing.T) {
	r := newRing(t)
	counts := &r.header().counts
	run(r, 1, 100)
	assert.Zero(t, counts.wide)
	c := collect(t)
	unjudged(c)
	run(r, 101, 4000)
	poll(t, c)
	assert.EqualValues(t, some-entries, counts.wide)
	assert.Equal(t, uint64(3950), r.list[3950].word>>numberFrom)
	counts.lease = now() // it has run out
	run(r, 4001, 4900)
	assert.Zero(t, counts.wide)
	assert.Equal(t, uint64(4900), r.list[4900%entries].word>>numberFrom)
	poll(t, c)
	assert.EqualValues(t, 4800, c.Counts().Operations)
	c.thinner.judged = time.Time{}
	poll(t, c)
	unjudged(c)
	run(r, 4901, 8000)
	poll(t, c)
	assert.EqualValues(t, some-entries, counts.wide)
	assert.EqualValues(t, 7900, c.Counts().Operations)
	assert.Zero(t, write(t, c).Ranks[0].Lost)
	s, err := r.Read()
	require.NoError(t, err)
	assert.Greater(t, len(s.Operations), entries, "readers see all entries")
	assert.EqualValues(t, 8000, s.Operations[len(s.Operations)-1].Number)
}

// Any value of the words that a collector writes is safe for who takes entries.
func TestWordsOfACollectorAreWishes(t *testing.T) {
	r := newRing(t)
	for range 1000 {
		c := &r.header().counts
		c.wide, c.lease, c.next = rand.Uint64(), rand.Uint64(), rand.Uint64()
		for range 3 {
			assert.Less(t, c.place(c.next+rand.Uint64N(2*room)), uint64(room))
		}
	}
}

// Several threads take entries while the collector reads: what it has is of one operation each, and together with what it has lost it is
// all of them.
func TestCollectorMeetsWriters(t *testing.T) {
	r := newRing(t)
	c := collect(t)
	c.most = math.Inf(1)
	const each, threads = 60_000, 3
	var writers sync.WaitGroup
	for w := range uint64(threads) {
		writers.Add(1)
		go func() {
			defer writers.Done()
			for i := range uint64(each) {
				seq := i*threads + w + 1
				m := r.Begin(1, seq, reduceOf(3*seq), 0)
				if seq%3 == 0 {
					m.Algorithm("ring")
				}
				m.End(status.Code(seq % 2 * uint64(status.Timeout)))
			}
		}()
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(time.Millisecond):
		}
		poll(t, c)
	}
	b := write(t, c)
	rank := b.Ranks[0]
	assert.EqualValues(t, each*threads, uint64(rank.Count)+rank.Lost)
	assert.Greater(t, rank.Count, some/2)
	seen := map[uint64]bool{}
	for i, seq := range b.columns["seq"] {
		require.False(t, seen[seq])
		seen[seq] = true
		kind := rank.Kinds[b.columns["kind"][i]]
		whole := b.columns["count"][i] == 3*seq && *kind.Outcome == [2]string{"ok", "timeout"}[seq%2] && (kind.Algorithm != nil) == (seq%3 == 0)
		require.True(t, whole, "operation %d: %+v", seq, kind)
	}
}

// At a rate at which not all can be kept, what lies in windows of the clock is, and the rest is counted.
func TestThinning(t *testing.T) {
	r := newRing(t)
	c := collect(t)
	unjudged(c)
	c.thinner.shift, c.thinner.most = 3, 3 // 12.5 ms of 100 ms
	var n uint64
	for end := time.Now().Add(350 * time.Millisecond); time.Now().Before(end); {
		wait := min(poll(t, c), thinPeriod)
		for next := time.Now().Add(wait); time.Now().Before(next); n++ {
			run(r, n+1, n+1)
			time.Sleep(20 * time.Microsecond)
		}
	}
	poll(t, c)
	b := write(t, c)
	rank := b.Ranks[0]
	require.Greater(t, rank.Count, 20)
	assert.Zero(t, rank.Lost)
	assert.LessOrEqual(t, uint64(rank.Count)+rank.Thinned, n)
	assert.Contains(t, b.Notes[0], "first 12.5ms")
	for i := range rank.Count {
		at := b.columns["submitted"][i] % uint64(thinPeriod)
		assert.Less(t, at+b.columns["ended"][i], uint64(thinPeriod>>3)+100_000)
	}
}

func TestWindows(t *testing.T) {
	for _, w := range []struct {
		all, most float64
		shift     uint
	}{
		{mostPerSecond, mostPerSecond, 0},
		{mostPerSecond + 1, 1000, 1},
		{mostPerSecond * 8, 1000, 3},
		{mostPerSecond + 1, mostPerSecond, 3}, // a window has half of what a ring keeps
		{1e12, 1e12, longestShift},
	} {
		var chosen thinner
		chosen.choose(w.all, w.most, mostPerSecond)
		assert.Equal(t, w.shift, chosen.shift, w)
	}
}

// Processes without a ring, or with a damaged one, are named; the others are recorded.
func TestProcessesThatCannotBeRecorded(t *testing.T) {
	r := newRing(t)
	c, err := NewCollector(Which{PIDs: []int{os.Getpid(), 1 << 30, os.Getppid()}}, t.TempDir())
	require.NoError(t, err)
	defer c.Close()
	assert.Equal(t, 1, c.Counts().Ranks)
	problems := c.Problems()
	require.Len(t, problems, 2)
	assert.Contains(t, problems[0].Error, "has no trace")
	assert.Contains(t, problems[1].Error, "there is no process 1073741824")

	r.header().version = 1
	old, err := NewCollector(Which{PIDs: []int{os.Getpid()}}, t.TempDir())
	require.NoError(t, err)
	defer old.Close()
	assert.Zero(t, old.Counts().Ranks)
	assert.Contains(t, old.Problems()[0].Error, "version 1")

	_, err = NewCollector(Which{}, "/proc/none")
	assert.ErrorContains(t, err, "cannot write into /proc/none")
}

func TestWhoseOperations(t *testing.T) {
	r := newRing(t)
	r.SetJob(7)
	for _, w := range []struct {
		which Which
		found bool
	}{
		{Which{}, true},
		{Which{Ancestor: os.Getppid()}, true},
		{Which{Ancestor: os.Getpid()}, false},
		{Which{Job: hex(7)}, true},
		{Which{Job: hex(8)}, false},
	} {
		c, err := NewCollector(w.which, t.TempDir())
		require.NoError(t, err)
		assert.Equal(t, w.found, c.knows(os.Getpid()), w.which)
		c.Close()
	}
}

// FuzzCollector records a ring of which the input overwrites pieces, as in FuzzRing. Whatever is there, the file can be read.
func FuzzCollector(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x84, 0, 9, 7, 200, 200, 200, 200, 200, 200, 200, 200})
	f.Add(bytes.Repeat([]byte{0x84, 7, 255}, 90))
	f.Fuzz(func(t *testing.T, input []byte) {
		r := newRing(t)
		c := collect(t)
		run(r, 1, 50)
		for len(input) >= 3 {
			n := min(int(input[2]), len(input)-3)
			copy(r.mem[4*(int(input[0])<<8|int(input[1])):], input[3:3+n])
			input = input[3+n:]
		}
		poll(t, c)
		run(r, 51, 60)
		poll(t, c)
		b := write(t, c)
		for _, kind := range b.columns["kind"] {
			require.Less(t, kind, uint64(len(b.Ranks[0].Kinds)))
		}
	})
}
