package group

import (
	"fmt"
	"math/rand"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// ranks runs f on every rank of a fake world and waits for all of them. Deadlines in f keep a
// failure from hanging.
func ranks(t *testing.T, n int, nodes []int, f func(t *testing.T, e *world.Env, world *Group)) {
	t.Helper()
	var opts []mpifake.Option
	if nodes != nil {
		opts = append(opts, mpifake.Nodes(nodes))
	}
	libs := mpifake.New(n, opts...)
	var wg sync.WaitGroup
	for _, lib := range libs {
		wg.Add(1)
		go func(lib mpi.Library) {
			defer wg.Done()
			e, err := newEnv(t, lib)
			if !assert.NoError(t, err) {
				return
			}
			world, err := World(e, 0, 10*time.Second)
			if !assert.NoError(t, err) {
				return
			}
			f(t, e, world)
		}(lib)
	}
	wg.Wait()
}

// newEnv is world.NewEnv. When the test is over the progress thread ends: that of each rank of each test would look for
// messages until all tests are over, which took as much CPU as the tests.
func newEnv(t *testing.T, lib mpi.Library) (*world.Env, error) {
	e, err := world.NewEnv(mpifake.World(lib), 20*time.Second, nil)
	if err == nil {
		t.Cleanup(e.Engine.StopProgress)
	}
	return e, err
}

// floats makes a float32 buffer outside the Go heap.
func floats(values ...float32) op.Buf {
	p, err := mem.Alloc(int64(4 * max(1, len(values))))
	if err != nil {
		panic(err)
	}
	copy(unsafe.Slice((*float32)(p), len(values)), values)
	return op.Buf{Data: p, Count: int64(len(values)), DType: op.Float32, DeviceType: op.DeviceCPU}
}

func values(b op.Buf) []float32 { return unsafe.Slice((*float32)(b.Data), b.Count) }

func desc(code op.Code, send, recv []op.Buf) *op.Desc {
	d := &op.Desc{Code: code, Root: -1, Peer: -1, TimeoutNS: -1, Scale: 1, NSend: int32(len(send)), NRecv: int32(len(recv))}
	if len(send) > 0 {
		d.Send = unsafe.Pointer(&send[0])
	}
	if len(recv) > 0 {
		d.Recv = unsafe.Pointer(&recv[0])
	}
	return d
}

func allReduce(b op.Buf) *op.Desc {
	d := desc(op.AllReduce, nil, []op.Buf{b})
	d.ReduceOp = op.Sum
	return d
}

func submit(g *Group, d *op.Desc) (work.Result, error) {
	_, r, err := g.Submit(d, false)
	return r, err
}

// topologies are the distributions of ranks in these tests: on one node they arrive by control slots
// and run inline; on two they arrive over MPI and run as tasks.
var topologies = map[string]func(n int) []int{
	"one node": func(n int) []int { return make([]int, n) },
	"two nodes": func(n int) []int {
		nodes := make([]int, n)
		for i := range nodes {
			nodes[i] = i % 2
		}
		return nodes
	},
}

// leftOut tells whether this run leaves out a case: -short what is long, and the run of what -short leaves out the rest.
func leftOut(long bool) bool {
	return testing.Short() && long || os.Getenv("GO_TESTS") == "long" && !long
}

func everywhere(t *testing.T, f func(t *testing.T, n int, nodes []int)) {
	for name, spread := range topologies {
		for _, n := range []int{1, 2, 3, 5} {
			if leftOut(n > 3) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) { f(t, n, spread(n)) })
		}
	}
}

func TestAllReduceSyncAndAsync(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			b := floats(float32(g.Rank+1), 10)
			_, err := submit(g, allReduce(b))
			assert.NoError(t, err)
			sum := float32(n * (n + 1) / 2)
			assert.Equal(t, []float32{sum, float32(10 * n)}, values(b))

			d := allReduce(b)
			d.Flags = op.FlagAsync
			h, _, err := g.Submit(d, false)
			if assert.NoError(t, err) {
				_, err = h.Wait(5*time.Second, nil)
				assert.NoError(t, err)
			}
			assert.Equal(t, float32(n)*sum, values(b)[0])
		})
	})
}

// One rank waits inside the call, another does not: all must use nonblocking calls.
func TestSyncMeetsAsync(t *testing.T) {
	ranks(t, 3, nil, func(t *testing.T, e *world.Env, g *Group) {
		for round := 0; round < 20; round++ {
			b := floats(1)
			d := allReduce(b)
			if (round+g.Rank)%3 == 0 {
				d.Flags = op.FlagAsync
			}
			h, _, err := g.Submit(d, false)
			if !assert.NoError(t, err) {
				return
			}
			if h != nil {
				_, err = h.Wait(5*time.Second, nil)
				assert.NoError(t, err)
			}
			assert.Equal(t, float32(3), values(b)[0], "round %d", round)
		}
	})
}

func TestOrderIsKeptWhenManyAreUnderWay(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			b := floats(1)
			var handles []*work.Handle
			for i := 0; i < 8; i++ {
				d := allReduce(b)
				d.Flags = op.FlagAsync
				h, _, err := g.Submit(d, false)
				if !assert.NoError(t, err) {
					return
				}
				handles = append(handles, h)
			}
			want := float32(1)
			for _, h := range handles {
				_, err := h.Wait(10*time.Second, nil)
				assert.NoError(t, err)
				want *= float32(n)
			}
			assert.Equal(t, want, values(b)[0])
		})
	})
}

func TestMismatchNamesTheRankAndLeavesTheGroupUsable(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		if n < 3 {
			return
		}
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			b := floats(1, 2, 3)
			if g.Rank == 1 {
				b.Count = 2
			}
			_, err := submit(g, allReduce(b))
			var se *status.Error
			if assert.ErrorAs(t, err, &se) {
				assert.Equal(t, status.Mismatch, se.Code)
				assert.Equal(t, []int{1}, se.Ranks)
				assert.Contains(t, se.Msg, "float32[2]")
			}
			c := floats(1)
			_, err = submit(g, allReduce(c))
			assert.NoError(t, err)
			assert.Equal(t, float32(n), values(c)[0])
		})
	})
}

func TestRefusalReachesTheOthers(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		if n < 2 {
			return
		}
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			// The refusing rank refuses twice and does not wait. The other ranks must still read
			// both announcements.
			for i := 0; i < 2; i++ {
				d := allReduce(floats(1))
				want := status.Refused
				if g.Rank == n-1 {
					d.ReduceOp, want = op.BXor, status.Type
				}
				_, err := submit(g, d)
				assert.Equal(t, want, status.CodeOf(err), "%v", err)
			}
			b := floats(2)
			_, err := submit(g, allReduce(b))
			assert.NoError(t, err)
			assert.Equal(t, float32(2*n), values(b)[0])
		})
	})
}

func TestTimeoutNamesMissingRanksAndBreaksTheGroup(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		if n < 2 {
			return
		}
		var done sync.WaitGroup
		done.Add(n - 1)
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			if g.Rank == n-1 {
				done.Wait() // outside the core all the time
				return
			}
			defer done.Done()
			d := allReduce(floats(1))
			d.TimeoutNS = int64(300 * time.Millisecond)
			_, err := submit(g, d)
			var se *status.Error
			if assert.ErrorAs(t, err, &se) {
				assert.Equal(t, status.Timeout, se.Code)
				assert.Contains(t, se.Ranks, n-1)
				assert.Contains(t, se.Msg, "all_reduce(float32[1], SUM)")
			}
			_, err = submit(g, allReduce(floats(1)))
			assert.Equal(t, status.GroupBroken, status.CodeOf(err))
		})
	})
}

func TestLeavingIsSeenAtOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		if n < 2 {
			return
		}
		var told atomic.Int32
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			if g.Rank == 0 {
				_, err := e.Leave()
				assert.NoError(t, err)
				for end := time.Now().Add(10 * time.Second); told.Load() < int32(n-1) && time.Now().Before(end); time.Sleep(time.Millisecond) {
					e.Departure.AllDeparted() // answers questions of other ranks
				}
				return
			}
			defer told.Add(1)
			began := time.Now()
			_, err := submit(g, allReduce(floats(1)))
			var se *status.Error
			if assert.ErrorAs(t, err, &se) {
				assert.Equal(t, status.PeerLeft, se.Code)
				assert.Equal(t, []int{0}, se.Ranks)
			}
			assert.Less(t, time.Since(began), 20*time.Second)
		})
	})
}

func TestGroupsThatOverlap(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		if n < 3 {
			return
		}
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, world *Group) {
			for id, members := range [][]int{{0, 1}, {n - 1, 1}, {2, 0, 1}, {1}} {
				me := slices.Index(members, e.Topo.Rank)
				if me < 0 {
					continue
				}
				g, err := New(e, int64(id+1), members, 5*time.Second)
				if !assert.NoError(t, err) {
					return
				}
				assert.Equal(t, me, g.Rank)
				b := floats(float32(10 + me))
				d := desc(op.Broadcast, nil, []op.Buf{b})
				d.Root = int32(len(members) - 1)
				_, err = submit(g, d)
				assert.NoError(t, err)
				assert.Equal(t, float32(10+len(members)-1), values(b)[0])
				assert.NoError(t, g.Destroy())
				_, err = submit(g, d)
				assert.Equal(t, status.GroupDestroyed, status.CodeOf(err))
			}
		})
	})
}

func TestNewGroupNamesMissingRanks(t *testing.T) {
	var done sync.WaitGroup
	done.Add(2)
	ranks(t, 3, nil, func(t *testing.T, e *world.Env, world *Group) {
		if e.Topo.Rank == 2 {
			done.Wait()
			return
		}
		defer done.Done()
		_, err := New(e, 1, []int{0, 1, 2}, 300*time.Millisecond)
		var se *status.Error
		if assert.ErrorAs(t, err, &se) {
			assert.Equal(t, status.Timeout, se.Code)
			assert.Equal(t, []int{2}, se.Ranks)
		}
	})
}

func TestMessages(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			next, before := (g.Rank+1)%n, (g.Rank+n-1)%n
			out, in := floats(float32(g.Rank)), floats(-1)
			d := desc(op.SendRecv, []op.Buf{out}, []op.Buf{in})
			d.Peer, d.Tag, d.Peer2, d.Tag2 = int32(next), 7, int32(before), 7
			r, err := submit(g, d)
			assert.NoError(t, err)
			assert.Equal(t, int32(before), r.Source)
			assert.Equal(t, float32(before), values(in)[0])

			// Send and receive use the same memory, also for messages too long to be sent eagerly.
			for _, length := range []int{1, 5000} {
				both := floats(make([]float32, length)...)
				for i := range values(both) {
					values(both)[i] = float32(g.Rank)
				}
				shape := []int64{int64(length)}
				both.NDim, both.Shape = 1, unsafe.Pointer(&shape[0])
				d := desc(op.SendRecv, []op.Buf{both}, []op.Buf{both})
				d.Peer, d.Tag, d.Peer2, d.Tag2 = int32(next), 8, int32(before), 8
				_, err := submit(g, d)
				assert.NoError(t, err)
				assert.Equal(t, float32(before), values(both)[0])
				assert.Equal(t, float32(before), values(both)[length-1])
			}

			if g.Rank == 0 && n > 1 {
				for i := 1; i < n; i++ { // a receive from any rank
					got := floats(-1)
					r, err := submit(g, desc(op.Recv, nil, []op.Buf{got}))
					assert.NoError(t, err)
					assert.Equal(t, float32(r.Source), values(got)[0])
				}
			} else if n > 1 {
				d := desc(op.Send, []op.Buf{out}, nil)
				d.Peer = 0
				_, err := submit(g, d)
				assert.NoError(t, err)
			}
		})
	})
}

func TestMessageOfAnotherLengthIsAnError(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 0 {
			d := desc(op.Send, []op.Buf{floats(1, 2)}, nil)
			d.Peer = 1
			_, err := submit(g, d)
			assert.NoError(t, err)
			return
		}
		d := desc(op.Recv, nil, []op.Buf{floats(0, 0, 0)})
		d.Peer = 0
		_, err := submit(g, d)
		assert.Equal(t, status.Truncate, status.CodeOf(err))
	})
}

func TestReceiveTimesOutAndTheGroupGoesOn(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 1 {
			d := desc(op.Recv, nil, []op.Buf{floats(0)})
			d.Peer, d.TimeoutNS = 0, int64(200*time.Millisecond)
			_, err := submit(g, d)
			assert.Equal(t, status.Timeout, status.CodeOf(err))
		}
		b := floats(1)
		_, err := submit(g, allReduce(b))
		assert.NoError(t, err)
	})
}

// Collectives of several groups, submitted in a different order on every rank, do not wait for each
// other.
func TestGroupsAreIndependent(t *testing.T) {
	ranks(t, 3, nil, func(t *testing.T, e *world.Env, world *Group) {
		var groups []*Group
		for id := int64(1); id <= 4; id++ {
			g, err := New(e, id, []int{0, 1, 2}, 5*time.Second)
			if !assert.NoError(t, err) {
				return
			}
			groups = append(groups, g)
		}
		order := rand.New(rand.NewSource(int64(world.Rank))).Perm(len(groups))
		handles := make([]*work.Handle, len(groups))
		bufs := make([]op.Buf, len(groups))
		for _, i := range order {
			bufs[i] = floats(float32(i + 1))
			d := allReduce(bufs[i])
			d.Flags = op.FlagAsync
			h, _, err := groups[i].Submit(d, false)
			if !assert.NoError(t, err) {
				return
			}
			handles[i] = h
		}
		for i, h := range handles {
			_, err := h.Wait(5*time.Second, nil)
			assert.NoError(t, err)
			assert.Equal(t, float32(3*(i+1)), values(bufs[i])[0])
		}
	})
}

func TestStridedTensorsAreStaged(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		block := floats(1, 100, 2, 100, 3)
		dims, err := mem.Alloc(16)
		require.NoError(t, err)
		copy(unsafe.Slice((*int64)(dims), 2), []int64{3, 2})
		b := block
		b.Count, b.NDim, b.Shape, b.Strides = 3, 1, dims, unsafe.Add(dims, 8)
		for _, flags := range []uint32{0, op.FlagAsync} {
			d := allReduce(b)
			d.Flags = flags
			h, _, err := g.Submit(d, false)
			assert.NoError(t, err)
			if h != nil {
				_, err = h.Wait(5*time.Second, nil)
				assert.NoError(t, err)
			}
		}
		assert.Equal(t, []float32{4, 100, 8, 100, 12}, values(block))
	})
}
