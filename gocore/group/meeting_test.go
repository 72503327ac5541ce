package group

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// Members that wait for one another see at once that one of them has left the job in order, or after a second if
// it is on another node. Who leaves may be the one that decides, and the others may be late.
func TestMeetingsSeeThatARankHasLeft(t *testing.T) {
	calls := map[string]func(e *world.Env, g *Group) error{
		"new_group": func(e *world.Env, g *Group) error {
			_, err := New(e, 1, []int{0, 1, 2, 3}, time.Minute)
			return err
		},
		"monitored_barrier": func(_ *world.Env, g *Group) error { return g.MonitoredBarrier(time.Minute) },
	}
	for name, call := range calls {
		for where, nodes := range map[string][]int{"one node": {0, 0, 0, 0}, "two nodes": {0, 0, 1, 1}} {
			for _, leaver := range []int{0, 1, 3} {
				t.Run(fmt.Sprintf("%s/%s/%d", name, where, leaver), func(t *testing.T) {
					t.Parallel()
					var told sync.WaitGroup
					told.Add(3)
					ranks(t, 4, nodes, func(t *testing.T, e *world.Env, g *Group) {
						if g.Rank == leaver {
							_, err := e.Leave()
							assert.NoError(t, err)
							left := make(chan struct{})
							go func() { told.Wait(); close(left) }()
							for gone := false; !gone; time.Sleep(time.Millisecond) {
								e.Departure.AllDeparted() // answers questions of other ranks
								select {
								case <-left:
									gone = true
								default:
								}
							}
							return
						}
						defer told.Done()
						if g.Rank == 2 {
							time.Sleep(300 * time.Millisecond)
						}
						began := time.Now()
						blames(t, call(e, g), status.PeerLeft, leaver, "have ended and will not come")
						assert.Less(t, time.Since(began), 5*time.Second)
					})
				})
			}
		}
	}
}

// What has been decided counts, also if a member has left since.
func TestARankThatLeavesAfterAMeetingDoesNotSpoilIt(t *testing.T) {
	for _, nodes := range [][]int{{0, 0, 0}, {0, 0, 1}} {
		for range 20 {
			ranks(t, 3, nodes, func(t *testing.T, e *world.Env, g *Group) {
				assert.NoError(t, g.MonitoredBarrier(time.Minute))
				_, err := e.Leave()
				assert.NoError(t, err)
				assert.True(t, e.Departure.AwaitDepartures())
			})
		}
	}
}
