package group

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// ranksThatMPIFails is ranks for four ranks of four nodes. Once failing is set, MPI tells of a death wherever
// ranks 0 to 2 call it for the application.
func ranksThatMPIFails(t *testing.T, failing *atomic.Bool, f func(t *testing.T, e *world.Env, g *Group)) {
	fails := func(rank, _ int, c *mpi.Call) (time.Duration, error) {
		if failing.Load() && rank != 3 && c.Fn != mpi.FnMrecv {
			err := status.New(status.ProcFailed, "MPI_Isomething failed with MPI_ERR_PROC_FAILED")
			err.MPIClass = 63
			return 0, err
		}
		return 0, nil
	}
	hooked(t, []int{0, 1, 2, 3}, fails, func(t *testing.T, e *world.Env, g *Group) {
		g.SetTimeout(10 * time.Second)
		f(t, e, g)
	})
}

// mpiTells are the operations in which MPI tells of the death of rank 3, and how errors describe them.
var mpiTells = map[string]struct {
	call func(g *Group) error
	what string
}{
	"a collective": {func(g *Group) error {
		_, err := submit(g, allReduce(floats(1)))
		return err
	}, "all_reduce(float32[1], SUM), number 2 on the group of ranks [0 1 2 3]"},
	"an asynchronous collective": {func(g *Group) error {
		d := allReduce(floats(1))
		d.Flags = op.FlagAsync
		h, _, err := g.Submit(d, false)
		if err == nil {
			_, err = h.Wait(-1, nil)
		}
		return err
	}, "all_reduce(float32[1], SUM), number 2 on the group of ranks [0 1 2 3]"},
	"a message": {func(g *Group) error {
		d := desc(op.Send, []op.Buf{floats(1)}, nil)
		d.Peer = 3
		_, err := submit(g, d)
		return err
	}, "send of 4 bytes to rank 3 of the group (tag 0) on the group of ranks [0 1 2 3]"},
}

func TestADeathOfWhichMPITellsIsNamed(t *testing.T) {
	for name, operation := range mpiTells {
		t.Run(name, func(t *testing.T) {
			var failing atomic.Bool
			ranksThatMPIFails(t, &failing, func(t *testing.T, e *world.Env, g *Group) {
				_, err := submit(g, allReduce(floats(1)))
				assert.NoError(t, err)
				if g.Rank == 3 {
					time.Sleep(100 * time.Millisecond) // MPI knows earlier than package liveness
					failing.Store(true)
					time.Sleep(200 * time.Millisecond)
					dies(e)
					return
				}
				for !failing.Load() {
					time.Sleep(time.Millisecond)
				}
				err = operation.call(g)
				var s *status.Error
				if assert.ErrorAs(t, err, &s) {
					assert.Equal(t, status.PeerDied, s.Code, "%v", err)
					assert.Equal(t, []int{3}, s.Ranks)
					assert.Contains(t, s.Msg, operation.what)
					assert.Contains(t, s.Msg, "its process on host ")
				}
			})
		})
	}
}

func TestADeathThatNobodyKnowsNamesTheOperation(t *testing.T) {
	t.Setenv("PADDLEMPI_DEAD_AFTER", "0")
	for name, operation := range mpiTells {
		t.Run(name, func(t *testing.T) {
			var failing atomic.Bool
			ranksThatMPIFails(t, &failing, func(t *testing.T, e *world.Env, g *Group) {
				_, err := submit(g, allReduce(floats(1)))
				assert.NoError(t, err)
				if g.Rank == 3 {
					time.Sleep(50 * time.Millisecond)
					failing.Store(true)
					return
				}
				for !failing.Load() {
					time.Sleep(time.Millisecond)
				}
				err = operation.call(g)
				var s *status.Error
				if assert.ErrorAs(t, err, &s) {
					assert.Equal(t, status.ProcFailed, s.Code, "%v", err)
					assert.Equal(t, 63, s.MPIClass)
					assert.Contains(t, s.Msg, operation.what)
				}
			})
		})
	}
}
