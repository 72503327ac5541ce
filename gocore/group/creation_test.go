package group

import (
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/comm"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	node "github.com/paddlempi/paddlempi/gocore/transport/memory"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// ranksInMemory is ranks without MPI.
func ranksInMemory(t *testing.T, n int, f func(t *testing.T, e *world.Env, world *Group)) {
	t.Helper()
	p, err := mem.Alloc(node.Bytes(n))
	require.NoError(t, err)
	shared := unsafe.Slice((*byte)(p), node.Bytes(n))
	clear(shared)
	var all sync.WaitGroup
	for rank := range n {
		all.Add(1)
		go func() {
			defer all.Done()
			comm, err := node.New(shared, rank, n, nil)
			if !assert.NoError(t, err) {
				return
			}
			e, err := world.NewEnv(comm, 20*time.Second, nil)
			if !assert.NoError(t, err) {
				return
			}
			t.Cleanup(e.Engine.StopProgress)
			g, err := World(e, 0, 10*time.Second)
			if assert.NoError(t, err) {
				f(t, e, g)
			}
		}()
	}
	all.Wait()
}

// meets is what a member does that comes to a meeting of new_group and stops then.
func meets(t *testing.T, e *world.Env, ranks []int) {
	assert.NoError(t, e.Meet("new_group", "called it", e.Groups.Key(ranks), ranks, 10*time.Second))
}

// A member that stops when all have met, whichever it is, is named at the deadline. The next group of the same ranks is made.
func TestAMemberThatStopsAfterTheMeeting(t *testing.T) {
	ranks := []int{2, 0, 1}
	for _, stops := range ranks {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			var told sync.WaitGroup
			told.Add(2)
			ranksInMemory(t, 3, func(t *testing.T, e *world.Env, g *Group) {
				if g.Rank == stops {
					meets(t, e, ranks)
					told.Wait()
				} else {
					began := time.Now()
					_, err := New(e, 1, ranks, 100*time.Millisecond)
					blames(t, err, status.Timeout, stops, "all ranks had come")
					assert.Less(t, time.Since(began), comm.Least+5*time.Second)
					told.Done()
				}
				made, err := New(e, 2, ranks, 20*time.Second)
				if assert.NoError(t, err) {
					_, err = submit(made, allReduce(floats(1)))
					assert.NoError(t, err)
					assert.NoError(t, made.Free(status.GroupDestroyed))
				}
			})
		})
	}
}

// A signal ends the wait of the rank that got it.
func TestASignalAfterTheMeeting(t *testing.T) {
	ranks := []int{0, 1}
	var told sync.WaitGroup
	told.Add(1)
	ranksInMemory(t, 2, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 1 {
			meets(t, e, ranks)
			told.Wait()
			return
		}
		defer told.Done()
		began := time.Now()
		e.Interrupt = func() error {
			if time.Since(began) < 300*time.Millisecond {
				return nil
			}
			return status.New(status.Interrupted, "interrupted")
		}
		_, err := New(e, 1, ranks, time.Minute)
		assert.Equal(t, status.Interrupted, status.CodeOf(err), "%v", err)
		assert.Less(t, time.Since(began), 20*time.Second)
	})
}

// A member that leaves the job when all have met is named soon after.
func TestAMemberThatLeavesAfterTheMeeting(t *testing.T) {
	ranks := []int{0, 1, 2}
	ranksInMemory(t, 3, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 1 {
			meets(t, e, ranks)
			_, err := e.Leave()
			assert.NoError(t, err)
			return
		}
		began := time.Now()
		_, err := New(e, 1, ranks, time.Minute)
		blames(t, err, status.PeerLeft, 1, "have ended")
		assert.Less(t, time.Since(began), 20*time.Second)
	})
}

// A member that gives up at the last moment does not come to a collective of those that have heard all that they needed, and they
// see that.
func TestAMemberThatGivesUpWhileTheOthersHaveMadeIt(t *testing.T) {
	ranksInMemory(t, 2, func(t *testing.T, e *world.Env, _ *Group) {
		both := []int{0, 1}
		comm, err := e.Base.Create(both, 7)
		assert.NoError(t, err)
		rounds := 0
		comm.(transport.Limited).WaitBy(func(done func() bool) error {
			const last = 3
			if rounds++; rounds == last && comm.Rank() == 1 {
				return status.New(status.Timeout, "no time")
			}
			return e.Engine.Wait(done, time.Now().Add(20*time.Second), nil)
		})
		slots, _, err := e.Node.MakeControlSlots(comm, both, 0)
		if comm.Rank() == 1 {
			assert.Equal(t, status.Timeout, status.CodeOf(err))
			return
		}
		assert.NoError(t, err)
		for late := time.Now().Add(20 * time.Second); len(slots.Closers(1)) == 0 && time.Now().Before(late); {
			time.Sleep(time.Millisecond)
		}
		assert.Equal(t, map[int]status.Code{1: status.Timeout}, slots.Closers(1))
	})
}

// With MPI, whose calls have no deadline, the caller gets the error all the same.
func TestAMemberThatStopsAfterTheMeetingUnderMPI(t *testing.T) {
	for name, nodes := range map[string][]int{"one node": {0, 0}, "two nodes": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var told sync.WaitGroup
			told.Add(1)
			both := []int{0, 1}
			ranks(t, 2, nodes, func(t *testing.T, e *world.Env, g *Group) {
				if g.Rank == 1 {
					meets(t, e, both)
					told.Wait()
					return
				}
				began := time.Now()
				_, err := New(e, 1, both, 100*time.Millisecond)
				blames(t, err, status.Timeout, 1, "all ranks had come")
				assert.Less(t, time.Since(began), comm.Least+5*time.Second)
				told.Done()
			})
		})
	}
}

// The flight recorder knows the groups that there are, however many there were.
func TestTheRecorderKnowsTheLatestGroups(t *testing.T) {
	ranksInMemory(t, 2, func(t *testing.T, e *world.Env, g *Group) {
		const last = 5000
		for id := int64(1); id <= last; id++ {
			one, err := New(e, id, []int{g.Rank}, time.Minute)
			if !assert.NoError(t, err) {
				return
			}
			if id < last {
				assert.NoError(t, one.Free(status.GroupDestroyed))
			}
		}
		s, _, err := e.Recorder.Read(g.Rank)
		if assert.NoError(t, err) && assert.Greater(t, len(s.Groups), 1000) {
			assert.Equal(t, []int{0, 1}, s.Groups[0].Ranks)
			assert.EqualValues(t, last, s.Groups[len(s.Groups)-1].ID)
		}
	})
}
