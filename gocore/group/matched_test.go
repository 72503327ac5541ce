package group

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// A receive that has taken a message, which MPI cannot give up any more, tells its caller at its deadline that the message did not come.
// The group goes on.
func TestADeadlineWhileAMessageComes(t *testing.T) {
	slowly := func(_, _ int, c *mpi.Call) (time.Duration, error) {
		if c.Fn == mpi.FnRecv && c.Tag == 5 {
			return 2 * time.Second, nil // between the match and its end
		}
		return 0, nil
	}
	hooked(t, []int{0, 1}, slowly, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 1 {
			for _, tag := range []int32{5, 6} {
				_, err := start(t, g, op.Send, floats(1), 0, tag, time.Minute).Wait(-1, nil)
				assert.NoError(t, err)
			}
			return
		}
		began := time.Now()
		late := start(t, g, op.Recv, floats(0), 1, 5, 200*time.Millisecond)
		_, err := late.Wait(-1, nil)
		assert.Equal(t, status.Timeout, status.CodeOf(err), "%v", err)
		assert.Less(t, time.Since(began), 1500*time.Millisecond)
		assert.False(t, late.Settled(), "MPI may still write to its memory")
		_, err = start(t, g, op.Recv, floats(0), 1, 6, time.Minute).Wait(-1, nil)
		assert.NoError(t, err)
		assert.NoError(t, e.Engine.Wait(late.Settled, began.Add(10*time.Second), nil))
	})
}
