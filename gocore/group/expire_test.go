package group

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// kept is a task in which the engine stays until it is let go: no other task is polled.
type kept struct{ in, letGo chan struct{} }

func (k kept) Poll() bool {
	close(k.in)
	<-k.letGo
	return true
}

func (k kept) Requests(*work.Batch) work.Pace { return work.Rung }

// The deadlines of two collectives have passed when a thread looks at the queue, and nobody has looked at the one whose turn it is
// since: that one fails, and breaks the group for the one behind it. If it does not end for long, the one behind it ends by itself.
func TestTheDeadlinesOfTwoCollectives(t *testing.T) {
	for name, spread := range topologies {
		for late, want := range map[time.Duration]status.Code{0: status.GroupBroken, time.Minute: status.Timeout} {
			t.Run(name+", "+late.String(), func(t *testing.T) {
				t.Parallel() // it sleeps
				over := make(chan struct{})
				ranks(t, 2, spread(2), func(t *testing.T, e *world.Env, g *Group) {
					if g.Rank == 1 {
						<-over
						return
					}
					defer close(over)
					k := kept{make(chan struct{}), make(chan struct{})}
					e.Engine.Add(k)
					e.Engine.StartProgress()
					<-k.in
					var handles [2]*work.Handle
					for i := range handles {
						d := allReduce(floats(1))
						d.Flags, d.TimeoutNS = op.FlagAsync, int64(50*time.Millisecond)
						var err error
						handles[i], _, err = g.Submit(d, false)
						require.NoError(t, err)
					}
					time.Sleep(900 * time.Millisecond) // longer than the graces
					g.Expire(time.Now().Add(late))
					assert.False(t, handles[0].Done())
					assert.Equal(t, late != 0, handles[1].Done())
					close(k.letGo)
					for i, code := range []status.Code{status.Timeout, want} {
						_, err := handles[i].Wait(20*time.Second, nil)
						assert.Equal(t, code, status.CodeOf(err), "%v", err)
					}
				})
			})
		}
	}
}
