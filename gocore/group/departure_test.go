package group

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// leaves ends a rank as the end of its process does, and returns whether MPI can be finalized.
func leaves(t *testing.T, e *world.Env) bool {
	_, err := e.Leave()
	assert.NoError(t, err)
	return e.Departure.AwaitDepartures()
}

// A rank that leaves is seen by the ranks of other nodes without a question: it takes part in their arrival.
func TestOneLeavesAndTheOthersAreToldAtOnce(t *testing.T) {
	for name, nodes := range map[string][]int{"2x2": {0, 0, 1, 1}, "1+3": {0, 1, 1, 1}, "4x1": {0, 1, 2, 3}} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 4, nodes, func(t *testing.T, e *world.Env, g *Group) {
				for step := 0; ; step++ {
					if g.Rank == 2 && step == 3 {
						break
					}
					began := time.Now()
					_, err := submit(g, allReduce(floats(1)))
					if step < 3 {
						assert.NoError(t, err)
						continue
					}
					var se *status.Error
					if assert.ErrorAs(t, err, &se) {
						assert.Equal(t, status.PeerLeft, se.Code)
						assert.Equal(t, []int{2}, se.Ranks)
					}
					assert.Less(t, time.Since(began), health.AskAfter, "no rank has asked")
					break
				}
				assert.True(t, leaves(t, e), "MPI can be finalized")
				assert.True(t, g.Arrival.Settled())
				assert.Empty(t, e.Roster.Watch().Dead)
			})
		})
	}
}

// Ranks that leave later than others complete what was given up.
func TestABrokenGroupDoesNotKeepMPIFromItsEnd(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			if g.Rank != n-1 { // MPI keeps a request of a collective to which the last rank does not come
				d := allReduce(floats(1))
				d.TimeoutNS = int64(50 * time.Millisecond)
				_, err := submit(g, d)
				assert.Contains(t, []status.Code{status.Timeout, status.GroupBroken, status.PeerLeft}, status.CodeOf(err))
			} else {
				time.Sleep(200 * time.Millisecond)
			}
			assert.True(t, leaves(t, e))
			assert.True(t, e.Departure.Settled())
		})
	})
}

// No rank lets go while another is at work, and broken groups change nothing about that.
func TestARankThatHasLeftStaysUntilAllHave(t *testing.T) {
	over := make(chan int, 3)
	ranks(t, 3, []int{0, 0, 1}, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 2 {
			time.Sleep(300 * time.Millisecond)
			assert.Empty(t, over)
		} else {
			g.SetTimeout(20 * time.Millisecond)
			g.Fail(status.New(status.Timeout, "broken"))
		}
		assert.True(t, leaves(t, e))
		over <- g.Rank
	})
	assert.Len(t, over, 3)
}

func TestAMessageThatNobodyReceivesIsDroppedAndReported(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		if n < 2 {
			return
		}
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			var slots []string
			e.Reports.Write = func(line string) { slots = append(slots, line) }
			if g.Rank == 0 {
				for range 2 {
					d := desc(op.Send, []op.Buf{floats(make([]float32, 1<<20)...)}, nil)
					d.Peer, d.Flags = 1, op.FlagAsync
					_, _, err := g.Submit(d, false)
					assert.NoError(t, err)
				}
			}
			assert.True(t, leaves(t, e))
			assert.True(t, e.Departure.Settled(), "MPI has no request any more")
			if g.Rank != 0 {
				assert.Empty(t, slots)
			} else if assert.Len(t, slots, 1) {
				assert.Contains(t, slots[0], "rank 0 has ended with 2 message(s) that no rank has received")
				assert.Contains(t, slots[0], "send of 4194304 bytes to rank 1")
			}
		})
	})
}

func TestAThreadInsideMPIKeepsAllFromFinalizing(t *testing.T) {
	ranks(t, 3, []int{0, 0, 1}, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 1 {
			e.Use() // as a thread that makes a group with a rank that died
		}
		assert.False(t, leaves(t, e))
	})
}

func TestARankThatGivesUpTheDepartureSaysSo(t *testing.T) {
	t.Setenv("PADDLEMPI_DEAD_AFTER", "0") // nothing tells of dead hosts
	ranks(t, 3, []int{0, 0, 1}, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 2 {
			return // never comes
		}
		if g.Rank == 0 {
			g.SetTimeout(50 * time.Millisecond)
			g.Fail(errors.New("the cable is cut"))
		}
		assert.False(t, leaves(t, e))
	})
}

// unheard is a Comm that is cut off from some rank: its rounds fail.
type unheard struct{ transport.Comm }

func (unheard) Err(*transport.Request) error {
	return status.New(status.GroupBroken, "the other process is damaged")
}

// A round of the departure that fails ends it, for the others too.
func TestADepartureWhoseRoundFails(t *testing.T) {
	ranks(t, 3, []int{0, 0, 1}, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 1 {
			e.Base = unheard{e.Base}
		}
		began := time.Now()
		assert.False(t, leaves(t, e), "MPI cannot be finalized")
		assert.Less(t, time.Since(began), 5*time.Second)
	})
}
