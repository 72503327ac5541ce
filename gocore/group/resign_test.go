package group

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// sum runs an all_reduce of b with a timeout, and returns its error and how long it took.
func sum(g *Group, b op.Buf, timeout time.Duration, flags uint32) (took time.Duration, err error) {
	began := time.Now()
	d := allReduce(b)
	d.TimeoutNS, d.Flags = int64(timeout), flags
	h, _, err := g.Submit(d, false)
	if err == nil && h != nil {
		_, err = h.Wait(-1, nil)
	}
	return time.Since(began), err
}

// blames asserts that an error has a code and names one rank.
func blames(t *testing.T, err error, code status.Code, rank int, text string) {
	t.Helper()
	var e *status.Error
	if assert.ErrorAs(t, err, &e) {
		assert.Equal(t, code, e.Code, "%v", err)
		assert.Equal(t, []int{rank}, e.Ranks, "%v", err)
		assert.Contains(t, e.Msg, text)
	}
}

// What a rank has answered is asked again, also if it does not tell by itself that it has given up.
func TestARankThatGivesUpAfterItHadComeIsNamed(t *testing.T) {
	for _, late := range []int{2, -1} { // the third rank comes late, or not at all
		ranks(t, 3, []int{0, 0, 1}, func(t *testing.T, e *world.Env, g *Group) {
			_, err := sum(g, large(), time.Minute, 0)
			assert.NoError(t, err)
			switch g.Rank {
			case 0:
				hidden[atomic.Bool](g, "told").Store(true)
				_, err = sum(g, large(), 1200*time.Millisecond, 0) // rank 1 has asked by then
				assert.Equal(t, status.Timeout, status.CodeOf(err), "%v", err)
				time.Sleep(3 * time.Second) // outside the core
				return
			case late:
				time.Sleep(2200 * time.Millisecond)
			case 2:
				return
			}
			took, err := sum(g, large(), time.Minute, 0)
			blames(t, err, status.GroupBroken, 0, "rank(s) [0] gave up waiting when the deadline had passed there; the group is broken")
			assert.Less(t, took, 4*time.Second)
		})
	}
}

// The error of a collective behind one whose deadline has passed says that the group is broken, although the one before
// waits for answers first.
func TestADeadlineInTheQueueComesAfterTheOneBefore(t *testing.T) {
	ranks(t, 2, []int{0, 1}, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 1 {
			time.Sleep(1500 * time.Millisecond) // outside the core
			return
		}
		var works []*work.Handle
		for range 2 {
			d := allReduce(large())
			d.TimeoutNS, d.Flags = int64(300*time.Millisecond), op.FlagAsync
			h, _, err := g.Submit(d, false)
			assert.NoError(t, err)
			works = append(works, h)
		}
		_, err := works[1].Wait(-1, nil)
		assert.Equal(t, status.GroupBroken, status.CodeOf(err), "%v", err)
		_, err = works[0].Wait(-1, nil)
		blames(t, err, status.Timeout, 1, "never came")
	})
}

// A rank that has learnt from another one that a collective was given up tells the third who was the first.
func TestWhoWasTheFirstIsPassedOn(t *testing.T) {
	var told sync.WaitGroup
	told.Add(1)
	ranks(t, 3, []int{0, 1, 1}, func(t *testing.T, e *world.Env, g *Group) {
		switch g.Rank {
		case 0:
			hidden[atomic.Bool](g, "told").Store(true)
			e.Interrupt = func() error { return status.New(status.Interrupted, "Ctrl-C") }
			_, err := sum(g, large(), time.Minute, 0)
			assert.Equal(t, status.Interrupted, status.CodeOf(err), "%v", err)
			told.Wait()
			e.Engine.StopProgress() // it answers no more
			return
		case 2:
			told.Wait()
		}
		_, err := sum(g, large(), time.Minute, 0)
		blames(t, err, status.GroupBroken, 0, "rank(s) [0] was interrupted")
		if g.Rank == 1 {
			told.Done()
			time.Sleep(2 * time.Second)
		}
	})
}

// large is a tensor that does not travel in the announcement.
func large() op.Buf { return floats(make([]float32, 300_000)...) }

// The input of a small collective has gone with the announcement. So a rank that comes after another one has given up
// may get the right result, and learns by the next collective that the group is broken.
func TestAnInputThatWasSentIsNotTakenBack(t *testing.T) {
	for name, nodes := range map[string][]int{"two": {0, 1}, "three": {0, 1, 2}, "five": {0, 0, 1, 1, 2}} {
		t.Run(name, func(t *testing.T) {
			gaveUp := make(chan struct{}) // a rank that did not wait for that could come before the deadline of rank 0
			ranks(t, len(nodes), nodes, func(t *testing.T, e *world.Env, g *Group) {
				if g.Rank == 0 {
					_, err := sum(g, floats(1), 300*time.Millisecond, 0)
					assert.Equal(t, status.Timeout, status.CodeOf(err), "%v", err)
					close(gaveUp)
					return
				}
				<-gaveUp
				b := floats(1)
				_, err := sum(g, b, time.Minute, 0)
				if err == nil {
					assert.Equal(t, float32(g.Size), values(b)[0])
					_, err = sum(g, floats(1), time.Minute, 0)
				}
				blames(t, err, status.GroupBroken, 0, "rank(s) [0] gave up waiting when the deadline had passed there; the group is broken")
			})
		})
	}
}

// hooked is ranks with a hook, and other options.
func hooked(t *testing.T, nodes []int, hook mpifake.Hook, f func(t *testing.T, e *world.Env, g *Group), more ...mpifake.Option) {
	t.Helper()
	var all sync.WaitGroup
	for _, lib := range mpifake.New(len(nodes), append(more, mpifake.Nodes(nodes), mpifake.WithHook(hook))...) {
		all.Add(1)
		go func() {
			defer all.Done()
			e, err := newEnv(t, lib)
			if !assert.NoError(t, err) {
				return
			}
			g, err := World(e, 0, time.Minute)
			if assert.NoError(t, err) {
				f(t, e, g)
			}
		}()
	}
	all.Wait()
}

// On one node the others see that a rank has given up a transfer, though MPI still has its request.
func TestATransferThatIsGivenUpIsSeenOnOneNode(t *testing.T) {
	t.Setenv("PADDLEMPI_ALGO", "all_reduce:mpi")
	slowly := func(_, _ int, c *mpi.Call) (time.Duration, error) {
		if c.Fn == mpi.FnAllreduce && c.SendCount == 5000 {
			return 10 * time.Second, nil
		}
		return 0, nil
	}
	hooked(t, []int{0, 0, 0}, slowly, func(t *testing.T, e *world.Env, g *Group) {
		timeout := time.Minute
		if g.Rank == 1 {
			timeout = 300 * time.Millisecond
		}
		took, err := sum(g, floats(make([]float32, 5000)...), timeout, op.FlagAsync)
		assert.Less(t, took, 5*time.Second)
		if g.Rank == 1 {
			assert.Equal(t, status.Timeout, status.CodeOf(err), "%v", err)
			return
		}
		blames(t, err, status.Timeout, 1, "on rank(s) [1] first: all members had come, the transfer did not end")
	})
}

// A rank that stops in the middle of a transfer is named at the deadline, although it has answered before.
func TestARankThatStopsInATransferIsNamed(t *testing.T) {
	slowly := func(_, _ int, c *mpi.Call) (time.Duration, error) {
		if c.Fn == mpi.FnSend && c.SendCount > 50_000 {
			return 10 * time.Second, nil
		}
		return 0, nil
	}
	hooked(t, []int{0, 1}, slowly, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 0 {
			_, err := sum(g, large(), 2*time.Second, 0)
			blames(t, err, status.Timeout, 1, ", and rank(s) [1] do not answer; the group is broken")
			return
		}
		d := allReduce(large())
		d.Flags = op.FlagAsync
		_, _, err := g.Submit(d, false)
		assert.NoError(t, err)
		time.Sleep(1500 * time.Millisecond) // it has answered by then
		e.Engine.StopProgress()
		time.Sleep(2 * time.Second)
	})
}

// unreadable is a tensor that cannot be copied: its shape has more elements than it says.
func unreadable() op.Buf {
	b := floats(1, 2, 3, 4, 5)
	dims, err := mem.Alloc(16)
	if err != nil {
		panic(err)
	}
	copy(unsafe.Slice((*int64)(dims), 2), []int64{3, 2})
	b.Count, b.NDim, b.Shape, b.Strides = 2, 1, dims, unsafe.Add(dims, 8)
	return b
}

// A rank that cannot tell its input when it is its turn refuses: the others do not wait, and the group stays
// usable.
func TestARankThatCannotTellItsInputRefuses(t *testing.T) {
	for _, flags := range []uint32{0, op.FlagAsync} {
		ranks(t, 3, nil, func(t *testing.T, e *world.Env, g *Group) {
			b := floats(1, 2)
			if g.Rank == 1 {
				b = unreadable()
			}
			took, err := sum(g, b, 5*time.Second, flags)
			assert.Less(t, took, 4*time.Second)
			if g.Rank == 1 {
				assert.Equal(t, status.Argument, status.CodeOf(err), "%v", err)
			} else {
				blames(t, err, status.Refused, 1, "rank(s) [1] refused their part")
			}
			b = floats(1)
			_, err = sum(g, b, 5*time.Second, flags)
			assert.NoError(t, err)
			assert.Equal(t, float32(3), values(b)[0])
		})
	}
}

// A call that was interrupted in the queue has become a refusal. Its announcement must not read the tensor, which the
// caller may have freed.
func TestARefusalInTheQueueReadsNoTensor(t *testing.T) {
	submitted := make(chan struct{})
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		async := func() *work.Handle {
			d := allReduce(floats(1))
			d.Flags = op.FlagAsync
			h, _, err := g.Submit(d, false)
			assert.NoError(t, err)
			return h
		}
		if g.Rank == 1 {
			<-submitted
			_, err := sum(g, floats(1), time.Minute, 0)
			assert.NoError(t, err)
			_, err = sum(g, floats(1), time.Minute, 0)
			blames(t, err, status.Refused, 0, "rank(s) [0] refused their part")
			_, err = sum(g, floats(1), time.Minute, 0)
			assert.NoError(t, err)
			return
		}
		first := async() // rank 1 has not come: what follows is queued
		page, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
		assert.NoError(t, err)
		e.Interrupt = func() error { return status.New(status.Interrupted, "Ctrl-C") }
		_, err = sum(g, op.Buf{Data: unsafe.Pointer(&page[0]), Count: 1, DType: op.Float32, DeviceType: op.DeviceCPU}, time.Minute, 0)
		assert.Equal(t, status.Interrupted, status.CodeOf(err), "%v", err)
		e.Interrupt = nil
		assert.NoError(t, syscall.Munmap(page))
		last := async() // announces the refusal, and itself, ahead
		close(submitted)
		for _, h := range []*work.Handle{first, last} {
			_, err := h.Wait(20*time.Second, nil)
			assert.NoError(t, err)
		}
	})
}

// Across nodes a large tensor is copied when all have come. The others learn that this member could not.
func TestARankThatCannotBeginTellsTheOthers(t *testing.T) {
	ranks(t, 3, []int{0, 1, 1}, func(t *testing.T, e *world.Env, g *Group) {
		b := large()
		if g.Rank == 1 {
			count := b.Count
			b = unreadable()
			b.Count = count
		}
		took, err := sum(g, b, time.Minute, 0)
		assert.Less(t, took, 4*time.Second)
		if g.Rank == 1 {
			assert.Equal(t, status.Argument, status.CodeOf(err), "%v", err)
			return
		}
		blames(t, err, status.GroupBroken, 1, "rank(s) [1] had an operation on the group fail")
	})
}

// MPI refuses a call of an arrival over several nodes on one rank: the announcement, or the exchange of what
// the ranks have called.
func TestARankThatCannotAnnounceTellsTheOthers(t *testing.T) {
	for name, c := range map[string]struct {
		fn  mpi.Fn
		nth int64
	}{"the first message": {mpi.FnSend, 1}, "the first receive": {mpi.FnRecv, 1}, "a message of the second doubling": {mpi.FnSend, 2}, "a receive of it": {mpi.FnRecv, 2}} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int64
			calls.Store(-1 << 32)
			refuse := func(rank, _ int, call *mpi.Call) (time.Duration, error) {
				if rank == 1 && call.Fn == c.fn && call.Tag == coll.ArrivalTag && calls.Add(1) == c.nth {
					return 0, status.New(status.MPI, "injected")
				}
				return 0, nil
			}
			hooked(t, []int{0, 1, 1}, refuse, func(t *testing.T, e *world.Env, g *Group) {
				_, err := sum(g, floats(1), time.Minute, 0)
				assert.NoError(t, err)
				if g.Rank == 1 {
					calls.Store(0)
				}
				took, err := sum(g, floats(make([]float32, 1+g.Rank/2)...), time.Minute, 0) // rank 2 calls another thing
				assert.Less(t, took, 4*time.Second)
				if g.Rank == 1 {
					assert.ErrorContains(t, err, "injected")
					return
				}
				blames(t, err, status.GroupBroken, 1, "rank(s) [1] had an operation on the group fail")
			})
		})
	}
}
