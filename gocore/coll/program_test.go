package coll

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// finish carries p out to its end: on this thread if how is blocking, else with an engine.
func finish(p *Program, how form) error {
	if how == blocking {
		for {
			if p.under.Len() > 0 {
				p.under.Poll()
			}
			if done, err := p.Poll(); done {
				return err
			}
			runtime.Gosched()
		}
	}
	e := work.NewEngine()
	d := &driven{p: p}
	e.Add(d)
	for e.Active() > 0 {
		e.Tick()
		runtime.Gosched()
	}
	return d.err
}

// ring returns the calls that send to and receive from the neighbours of a rank.
func ring(lib mpi.Library, rank, size int, block unsafe.Pointer) []mpi.Call {
	c := mpi.Call{Comm: lib.World(), Tag: 1, SendType: lib.Byte(), RecvType: lib.Byte()}
	send, recv := c, c
	send.Fn, send.Peer, send.SendBuf, send.SendCount = mpi.FnSend, int32((rank+1)%size), block, 1
	recv.Fn, recv.Peer, recv.RecvBuf, recv.RecvCount = mpi.FnRecv, int32((rank+size-1)%size), unsafe.Add(block, 1), 1
	return []mpi.Call{recv, send}
}

func TestStepsRunInOrderAndAProgramCanBeUsedAgain(t *testing.T) {
	for _, how := range forms {
		err := mpifake.Each(mpifake.New(3, mpifake.Delay(1, 2, 20*time.Millisecond)), func(rank int, lib mpi.Library) error {
			block, err := mem.Alloc(2)
			if err != nil {
				return err
			}
			defer mem.Free(block)
			b := unsafe.Slice((*byte)(block), 2)
			var p Program
			for round := range byte(3) {
				p.Reset(lib)
				var order []string
				b[0] = byte(rank) + 10*round
				p.AtEnd(func() { order = append(order, "end") })
				p.Do(func() error { order = append(order, "first"); return nil })
				p.Together(ring(lib, rank, 3, block))
				p.Together(nil) // adds no step
				c := p.Call()
				c.Fn, c.Comm = mpi.FnBarrier, lib.World()
				p.Do(func() error { order = append(order, fmt.Sprint(b[1])); return nil })
				if err := finish(&p, how); err != nil {
					return err
				}
				assert.Equal(t, []string{"first", fmt.Sprint((rank+2)%3 + 10*int(round)), "end"}, order, "rank %d", rank)
			}
			return nil
		})
		assert.NoError(t, err, how)
	}
}

// After an error no further step is started, but the program waits for the requests under way,
// because MPI still reads and writes their memory.
func TestAnErrorAwaitsWhatIsUnderWay(t *testing.T) {
	for _, how := range forms {
		// Rank 0's third call, which is its second receive, fails. Its first send is slow to
		// complete.
		libs := mpifake.New(2, mpifake.Fail(0, 3, 16), mpifake.Delay(0, 2, 50*time.Millisecond), mpifake.Patience(2*time.Second))
		err := mpifake.Each(libs, func(rank int, lib mpi.Library) error {
			var p Program
			p.Reset(lib)
			block, err := p.Alloc(4)
			if err != nil {
				return err
			}
			ended := false
			p.AtEnd(func() { ended = true })
			calls := ring(lib, rank, 2, block)
			if rank == 0 {
				calls = append(calls, ring(lib, rank, 2, block)...)
			}
			p.Together(calls)
			p.Do(func() error {
				assert.Equal(t, 1, rank, "a step after the error was started")
				return nil
			})
			start := time.Now()
			err = finish(&p, how)
			assert.True(t, ended)
			assert.Zero(t, p.under.Len())
			assert.Empty(t, p.scratch)
			if rank == 0 {
				assert.ErrorContains(t, err, "injected failure of call 3")
				assert.GreaterOrEqual(t, time.Since(start), 50*time.Millisecond)
				return nil
			}
			return err
		})
		assert.NoError(t, err, how)
	}
}

func TestAnErrorOfACallOrOfLocalWorkEndsTheProgram(t *testing.T) {
	broken := errors.New("broken")
	for _, how := range forms {
		lib := mpifake.New(1, mpifake.Fail(0, 1, 16))[0]
		ends := 0
		var p Program
		p.Reset(lib)
		p.AtEnd(func() { ends++ })
		c := p.Call()
		c.Fn, c.Comm = mpi.FnBarrier, lib.World()
		p.Do(func() error { assert.Fail(t, "a step after the error was started"); return nil })
		assert.ErrorContains(t, finish(&p, how), "injected failure")

		p.Reset(lib)
		p.AtEnd(func() { ends++ })
		p.Do(func() error { return broken })
		c = p.Call()
		c.Fn, c.Comm = mpi.FnBarrier, lib.World()
		assert.ErrorIs(t, finish(&p, how), broken)
		assert.Equal(t, 2, ends)

		p.Reset(lib)
		assert.NoError(t, finish(&p, how), "an empty program")
	}
}

// Poll must not wait: it returns although the other rank has not started.
func TestPollReturnsWhatIsNotDone(t *testing.T) {
	libs := mpifake.New(2)
	var p, q Program
	for _, x := range []struct {
		p   *Program
		lib mpi.Library
	}{{&p, libs[0]}, {&q, libs[1]}} {
		x.p.Reset(x.lib)
		c := x.p.Call()
		c.Fn, c.Comm = mpi.FnBarrier, x.lib.World()
	}
	for range 3 {
		done, err := p.Poll()
		require.NoError(t, err)
		require.False(t, done)
	}
	assert.NoError(t, finish(&q, polled))
	e := work.NewEngine()
	d := &driven{p: &p}
	e.Add(d)
	require.Eventually(t, func() bool { e.Tick(); return d.done }, 20*time.Second, time.Millisecond)
	assert.NoError(t, d.err)
}

// Work that may be done meanwhile is done once: when a step behind it has to be waited for, or at the latest by catchUp.
func TestMeanwhile(t *testing.T) {
	for _, waits := range []bool{true, false} {
		for _, form := range []string{"polled", "in one go"} {
			if waits && form == "in one go" {
				continue // such a program has no step that polls
			}
			var p Program
			var order []string
			p.Meanwhile(func() { order = append(order, "meanwhile") })
			p.Do(func() error { order = append(order, "begin"); return nil })
			polls := 0
			if waits {
				p.Until(func() (bool, error) {
					polls++
					order = append(order, "look")
					return polls == 2, nil
				})
			}
			p.Do(func() error { order = append(order, "end"); p.catchUp(); return nil })
			done, err := false, error(nil)
			for !done {
				if done, err = true, nil; form == "polled" {
					done, err = p.Poll()
				} else {
					err = p.Run()
				}
			}
			require.NoError(t, err)
			want := []string{"begin", "end", "meanwhile"}
			switch {
			case waits:
				want = []string{"begin", "look", "meanwhile", "look", "end"}
			case form == "in one go":
				want = []string{"meanwhile", "begin", "end"}
			}
			assert.Equal(t, want, order)
		}
	}
}
