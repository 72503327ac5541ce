package group

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/channel"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// dies ends the connections of a rank, as the kernel does when its process ends.
func dies(e *world.Env) { e.Roster.Cut() }

func TestARankOfAnotherNodeDies(t *testing.T) {
	waits := map[string]func(e *world.Env, g *Group) error{
		"a collective to which it does not come": func(_ *world.Env, g *Group) error {
			_, err := submit(g, allReduce(floats(1)))
			return err
		},
		"an asynchronous collective": func(_ *world.Env, g *Group) error {
			d := allReduce(floats(1))
			d.Flags = op.FlagAsync
			h, _, err := g.Submit(d, false)
			if err == nil {
				_, err = h.Wait(-1, nil)
			}
			return err
		},
		"a message": func(_ *world.Env, g *Group) error {
			b := floats(0)
			d := desc(op.Recv, nil, []op.Buf{b})
			d.Peer = 3
			_, err := submit(g, d)
			return err
		},
		"a new group": func(e *world.Env, _ *Group) error {
			_, err := New(e, 1, []int{0, 1, 2, 3}, 20*time.Second)
			return err
		},
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			ranks(t, 4, []int{0, 0, 1, 1}, func(t *testing.T, e *world.Env, g *Group) {
				assert.Empty(t, e.Roster.Watch().Off)
				if g.Rank == 3 {
					dies(e)
					return
				}
				err := wait(e, g)
				var s *status.Error
				if assert.True(t, errors.As(err, &s), "%v", err) {
					assert.Equal(t, status.PeerDied, s.Code, "%v", err)
					assert.Equal(t, []int{3}, s.Ranks)
					assert.Contains(t, s.Msg, "rank(s) [3] died: its process on host ")
				}
				watch := e.Roster.Watch()
				if assert.Len(t, watch.Dead, 1) {
					assert.Equal(t, 3, watch.Dead[0].Rank)
				}
			})
		})
	}
}

func TestNoConnectionsInAJobOfOneNode(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, _ *Group) {
		assert.Equal(t, health.Watch{After: 5, Off: "all ranks are on one node", Dead: []health.Death{}}, e.Roster.Watch())
	})
}

func TestDeathsOfOtherNodesAreNotSeenIfTheUserWantsSo(t *testing.T) {
	t.Setenv("PADDLEMPI_DEAD_AFTER", "0")
	ranks(t, 2, []int{0, 1}, func(t *testing.T, e *world.Env, g *Group) {
		assert.Equal(t, "PADDLEMPI_DEAD_AFTER is 0 on rank 1", e.Roster.Watch().Off)
		_, err := submit(g, allReduce(floats(1)))
		assert.NoError(t, err)
	})
}

func TestARankThatCannotListenTurnsItOffForAll(t *testing.T) {
	t.Setenv("PADDLEMPI_IFNAME", "nosuch")
	ranks(t, 2, []int{0, 1}, func(t *testing.T, e *world.Env, g *Group) {
		assert.Contains(t, e.Roster.Watch().Off, "PADDLEMPI_IFNAME=nosuch names no interface")
		_, err := submit(g, allReduce(floats(1)))
		assert.NoError(t, err)
	})
}

func TestAWrongTimeIsAnErrorOfInit(t *testing.T) {
	t.Setenv("PADDLEMPI_DEAD_AFTER", "1")
	lib := mpifake.New(1)[0]
	_, err := world.NewEnv(mpifake.World(lib), time.Second, nil)
	assert.Equal(t, status.Argument, status.CodeOf(err))
}

func TestRanksThatLeaveInOrderDoNotDie(t *testing.T) {
	ranks(t, 4, []int{0, 0, 1, 2}, func(t *testing.T, e *world.Env, g *Group) {
		_, err := submit(g, allReduce(floats(1)))
		assert.NoError(t, err)
		settled, err := e.Leave()
		assert.NoError(t, err)
		assert.True(t, settled)
		if g.Rank == 2 {
			time.Sleep(100 * time.Millisecond) // the others wait for this rank, and it finds them gone
		}
		assert.True(t, e.Departure.AwaitDepartures(), "MPI can be finalized")
		assert.True(t, e.Departure.EndTogether())
		dies(e)
		assert.Empty(t, e.Roster.Watch().Dead)
	})
}

func TestRanksThatDestroyTheWorldDoNotDie(t *testing.T) {
	ranks(t, 3, []int{0, 1, 2}, func(t *testing.T, e *world.Env, g *Group) {
		settled, err := e.Destroy()
		assert.NoError(t, err)
		assert.True(t, settled)
		assert.Eventually(t, e.Departure.AllDeparted, 20*time.Second, time.Millisecond)
		if g.Rank == 2 {
			time.Sleep(100 * time.Millisecond) // finds the others gone
			assert.Empty(t, e.Roster.Watch().Dead)
		}
		assert.NoError(t, e.Close())
		assert.NoError(t, e.Free())
		dies(e)
	})
}

// A program may destroy the world and go on for long. A process that ends in between takes no part in MPI_Finalize.
func TestADeathAfterTheWorldWasDestroyedIsSeenAtTheEnd(t *testing.T) {
	ranks(t, 3, []int{0, 1, 2}, func(t *testing.T, e *world.Env, g *Group) {
		_, err := e.Destroy()
		assert.NoError(t, err)
		assert.Eventually(t, e.Departure.AllDeparted, 20*time.Second, time.Millisecond)
		assert.NoError(t, e.Close())
		if g.Rank == 2 {
			dies(e)
			return
		}
		assert.False(t, e.Departure.EndTogether(), "MPI cannot be finalized")
	})
}

func TestTheEndDoesNotWaitForADeadRank(t *testing.T) {
	ranks(t, 3, []int{0, 1, 2}, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 2 {
			dies(e)
			return
		}
		_, _ = e.Leave()
		assert.False(t, e.Departure.AwaitDepartures(), "MPI cannot be finalized")
	})
}

// The watcher names ranks of the world, also those of a group whose members have other numbers.
func TestACallOfMPIThatCannotEndNamesRanksOfTheWorld(t *testing.T) {
	ranks(t, 3, []int{0, 1, 2}, func(t *testing.T, e *world.Env, _ *Group) {
		if e.Topo.Rank == 0 {
			return
		}
		g, err := New(e, 1, []int{1, 2}, 20*time.Second)
		if !assert.NoError(t, err) {
			return
		}
		if e.Topo.Rank == 2 {
			dies(e)
			return
		}
		hidden[atomic.Uint64](g, "blocking").Store(5)
		var stuck *health.Stuck
		assert.Eventually(t, func() bool { stuck = g.Stuck(time.Now()); return stuck != nil }, 20*time.Second, 10*time.Millisecond)
		assert.Equal(t, &health.Stuck{Seq: 5, Ranks: []int{1, 2}, Dead: []int{2}}, stuck)
	})
}

// A rank that is known to be dead is sent no letters: MPICH may crash in a send to it.
func TestADeadRankIsSentNothing(t *testing.T) {
	var told, sent atomic.Int64
	watch := mpifake.WithHook(func(rank, _ int, c *mpi.Call) (time.Duration, error) {
		if rank == 0 && c.Fn == mpi.FnSend && c.Peer == 2 && c.Tag == int32(channel.Groups) && told.Load() == 1 {
			sent.Add(1)
		}
		return 0, nil
	})
	libs := mpifake.New(3, mpifake.Nodes([]int{0, 1, 2}), watch)
	assert.NoError(t, mpifake.Each(libs, func(rank int, lib mpi.Library) error {
		e, err := newEnv(t, lib)
		if err != nil {
			return err
		}
		if rank == 2 {
			dies(e)
		}
		if rank == 0 {
			e.Roster.Questions.Ask(2, 1, 1)
			assert.Eventually(t, func() bool { return len(e.Roster.Watch().Dead) == 1 }, 10*time.Second, time.Millisecond)
			told.Store(1)
			e.Roster.Questions.Ask(2, 1, 1)
			e.Roster.Questions.Answer(2, 1, 1)
		}
		return nil
	}))
	assert.Zero(t, sent.Load())
}
