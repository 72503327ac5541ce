package trace

import (
	"bytes"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

func newRing(t testing.TB) *Ring {
	t.Helper()
	r, err := New(1, 4)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

// reduceOf is the signature of an all_reduce of n float32.
func reduceOf(n uint64) *[3]uint64 { return &[3]uint64{3 | 12<<8 | 1<<16, n, 0} }

func contents(t *testing.T, r *Ring) []OperationRecord {
	t.Helper()
	s, err := r.Read()
	require.NoError(t, err)
	assert.Zero(t, s.Damaged)
	return s.Operations
}

func TestLifeOfAnOperation(t *testing.T) {
	r := newRing(t)
	m := r.Begin(5, 0, reduceOf(10), Async)
	o := contents(t, r)[0]
	assert.Equal(t, "all_reduce", o.Operation)
	assert.Equal(t, "float32", *o.DType)
	assert.Equal(t, "SUM", *o.ReduceOp)
	assert.Equal(t, int64(10), o.Count)
	assert.Equal(t, int64(5), o.Group)
	assert.True(t, o.Async)
	assert.Nil(t, o.Seq)
	assert.Nil(t, o.Root)
	assert.Nil(t, o.Begun)

	m.Begun(8)
	m.Begun(9) // only the first call counts
	m.Arrived()
	m.Algorithm("slices16")
	o = contents(t, r)[0]
	assert.Equal(t, uint64(8), *o.Seq)
	assert.Equal(t, "slices16", *o.Algorithm)
	assert.Nil(t, o.Ended)
	assert.LessOrEqual(t, o.Submitted, *o.Begun)
	assert.LessOrEqual(t, *o.Begun, *o.Arrived)

	assert.True(t, m.End(status.Timeout))
	assert.False(t, m.End(status.OK))
	o = contents(t, r)[0]
	assert.Equal(t, "timeout", *o.Outcome)
	assert.LessOrEqual(t, *o.Arrived, *o.Ended)
	assert.WithinDuration(t, time.Now(), time.Unix(0, *o.Ended), time.Minute)
}

func TestMessage(t *testing.T) {
	r := newRing(t)
	r.BeginMessage(1, &[3]uint64{15 | 12<<8, 3}, 0, [2]int32{2, -1}, [2]int32{7, -1}).Begun(0)
	o := contents(t, r)[0]
	assert.Equal(t, "sendrecv", o.Operation)
	assert.True(t, o.Message)
	assert.Equal(t, []int32{2, -1}, o.Peers)
	assert.Equal(t, []int32{7, -1}, o.Tags)
	assert.NotNil(t, o.Begun)
}

// The ring keeps the last operations, and those that are under way.
func TestRingWraps(t *testing.T) {
	r := newRing(t)
	stuck := r.Begin(1, 1, reduceOf(1), 0)
	for i := uint64(2); i < 3*entries; i++ {
		r.Begin(1, i, reduceOf(i), 0).End(status.OK)
	}
	list := contents(t, r)
	assert.Len(t, list, entries)
	assert.Equal(t, uint64(1), *list[0].Seq)
	assert.Nil(t, list[0].Ended)
	for i, o := range list[1:] {
		assert.Equal(t, uint64(2*entries+1+i), *o.Seq)
	}
	stuck.End(status.OK)
	assert.NotNil(t, contents(t, r)[0].Ended)
}

// If all entries are of operations under way, a further operation goes without one, and is counted.
func TestFullRing(t *testing.T) {
	r := newRing(t)
	var marks []Mark
	for i := uint64(1); i <= entries; i++ {
		marks = append(marks, r.Begin(1, i, reduceOf(i), 0))
	}
	without := r.Begin(1, entries+1, reduceOf(1), 0)
	without.Begun(3)
	without.Algorithm("mpi")
	without.End(status.OK)
	s, err := r.Read()
	require.NoError(t, err)
	assert.Len(t, s.Operations, entries)
	assert.Equal(t, uint64(1), s.NotRecorded)
	for _, m := range marks {
		m.End(status.OK)
	}
	r.Begin(1, 7777, reduceOf(1), 0)
	list := contents(t, r)
	assert.Equal(t, uint64(7777), *list[len(list)-1].Seq)
}

// What an operation does after its end does not touch the operation that has its entry now.
func TestEndedMarkTouchesNothing(t *testing.T) {
	r := newRing(t)
	old := r.Begin(1, 1, reduceOf(1), 0)
	old.End(status.OK)
	for i := uint64(2); i <= entries+1; i++ {
		r.Begin(1, i, reduceOf(i), 0)
	}
	before := bytes.Clone(r.mem)
	old.Begun(99)
	old.Arrived()
	old.Algorithm("ring")
	old.End(status.Timeout)
	assert.True(t, bytes.Equal(before, r.mem))
}

func TestNilRing(t *testing.T) {
	var r *Ring
	m := r.Begin(1, 1, reduceOf(1), 0)
	m.Begun(1)
	m.Arrived()
	m.Algorithm("mpi")
	m.End(status.OK)
	r.Join(Group{})
	r.Close()
	_, err := r.Read()
	assert.Error(t, err)
}

// slowly reads memory piece by piece, so that writers come between the pieces of an entry.
type slowly []byte

func (mem slowly) ReadAt(b []byte, offset int64) (int, error) {
	const piece = 24
	for at := 0; at < len(b); at += piece {
		copy(b[at:min(at+piece, len(b))], mem[int(offset)+at:])
		if at > headerSize+groupsSize && at%(10*piece) == 0 {
			runtime.Gosched()
		}
	}
	return len(b), nil
}

// Readers meet writers: what they read is always the state of one operation.
func TestNoTornEntries(t *testing.T) {
	r := newRing(t)
	var stop atomic.Bool
	var writers sync.WaitGroup
	for w := range uint64(2) {
		writers.Add(1)
		go func() {
			defer writers.Done()
			for i := w + 1; !stop.Load(); i += 2 {
				m := r.Begin(int64(i&0xffff), i, reduceOf(3*i), 0)
				if i%3 == 0 {
					m.Algorithm("algo" + string(rune('a'+i%7)))
				}
				m.End(status.Code(i % 2 * uint64(status.Timeout)))
				runtime.Gosched()
			}
		}()
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		s, err := Read(slowly(r.mem))
		if !assert.NoError(t, err) || !assert.Zero(t, s.Damaged) {
			break
		}
		for _, o := range s.Operations {
			i := *o.Seq
			whole := o.Count == int64(3*i) && o.Group == int64(i&0xffff)
			if o.Ended != nil {
				whole = whole && *o.Outcome == [2]string{"ok", "timeout"}[i%2] && (o.Algorithm != nil) == (i%3 == 0) &&
					(o.Algorithm == nil || *o.Algorithm == "algo"+string(rune('a'+i%7)))
			}
			if !assert.True(t, whole, "operation %d: %+v", i, o) {
				stop.Store(true)
				writers.Wait()
				return
			}
		}
	}
	stop.Store(true)
	writers.Wait()
}

func TestGroups(t *testing.T) {
	r := newRing(t)
	groups := []Group{
		{ID: 1, Rank: 1, Ranks: []int{0, 1, 2, 3}},
		{ID: 2, Key: 1 << 63, Rank: 0, Ranks: []int{1}},
		{ID: 3, Key: 77, Rank: 2, Ranks: []int{3, 2, 1, 0}},
		{ID: 4, Key: 78, Rank: 1, Ranks: []int{3, 1, 2}},
	}
	for _, g := range groups {
		r.Join(g)
	}
	s, err := r.Read()
	require.NoError(t, err)
	require.Len(t, s.Groups, len(groups))
	for i, g := range groups {
		assert.Equal(t, GroupRecord{g.ID, hex(g.Key), g.Rank, g.Ranks}, s.Groups[i])
	}
	for range groupsSize { // more than there is room for
		r.Join(groups[3])
	}
	s, err = r.Read()
	require.NoError(t, err)
	assert.Greater(t, len(s.Groups), 1000)
	assert.Equal(t, groups[3].Ranks, s.Groups[len(s.Groups)-1].Ranks)
}

// Groups that end make room for others, however many there were. What a reader gets is whole at any time, and has the groups that there
// are, and those that ended last.
func TestGroupsThatEnd(t *testing.T) {
	r := newRing(t)
	stays := Group{ID: 1, Key: 5, Rank: 1, Ranks: []int{3, 1, 2}}
	r.Join(stays)
	done := make(chan struct{})
	var reading sync.WaitGroup
	reading.Add(1)
	go func() {
		defer reading.Done()
		for {
			s, err := r.Read()
			assert.NoError(t, err)
			if len(s.Groups) > 0 { // else the groups changed all the time
				assert.EqualValues(t, 1, s.Groups[0].ID)
			}
			for i := range s.Groups[1:] {
				assert.Less(t, s.Groups[i].ID, s.Groups[i+1].ID)
				assert.Equal(t, hex(uint64(5*s.Groups[i].ID)), s.Groups[i].Key)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	const last = 20_000
	for id := int64(2); id <= last; id++ {
		r.Join(Group{ID: id, Key: uint64(5 * id), Rank: 1, Ranks: []int{3, 1, 2}})
		r.Leave(id)
	}
	close(done)
	reading.Wait()
	s, err := r.Read()
	require.NoError(t, err)
	require.Greater(t, len(s.Groups), 500)
	assert.Equal(t, GroupRecord{1, hex(5), 1, stays.Ranks}, s.Groups[0])
	for i, g := range s.Groups[1:] {
		require.EqualValues(t, last-len(s.Groups)+2+i, g.ID)
	}
	assert.Less(t, len(r.groups), 4000)
}

// Where the members of a collective have shares of different lengths, the entry has this rank's.
func TestShares(t *testing.T) {
	r := newRing(t)
	lengths := []int64{0, 1, 5<<20 + 3, 3 << 40}
	for i, bytes := range lengths {
		m := r.Begin(1, uint64(i+1), reduceOf(0), 0)
		m.Share(bytes)
		m.End(status.OK)
	}
	r.BeginMessage(1, reduceOf(3), 0, [2]int32{1, 1 << 29}, [2]int32{}).End(status.OK)
	r.Begin(1, 9, reduceOf(3), 0).End(status.OK)
	operations := contents(t, r)
	require.Len(t, operations, len(lengths)+2)
	for i, o := range operations {
		if i >= len(lengths) {
			assert.Nil(t, o.Share, "operation %d", i)
			continue
		}
		require.NotNil(t, o.Share)
		assert.InEpsilon(t, lengths[i]+1, *o.Share+1, 1e-7)
		assert.Equal(t, uint64(*o.Share+1), rowOf(&r.list[i+1])[colPeer2])
	}
	for _, wrong := range []float32{-1, 0.5, float32(math.NaN()), float32(math.Inf(1)), 1 << 62} {
		assert.Zero(t, (&entry{peer: [2]int32{0, int32(math.Float32bits(wrong))}}).share(), "%v", wrong)
	}
}
