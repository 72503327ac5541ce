package group

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/comm"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/world"
)

func TestSeparate(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			var made [2]transport.Comm
			for i := range made {
				var all [][]int64
				comm, err := comm.Members{Members: g.Members()}.Separate("a test", 10*time.Second, func(tell func([]int64) ([][]int64, error)) (err error) {
					all, err = tell([]int64{int64(g.Rank), int64(i)})
					return err
				})
				assert.NoError(t, err)
				made[i] = comm
				assert.Len(t, all, n)
				for r, words := range all {
					assert.Equal(t, []int64{int64(r), int64(i)}, words)
				}
				if n == 1 {
					assert.Nil(t, comm)
					continue
				}
				assert.Equal(t, g.Rank, comm.Rank())
				assert.Equal(t, n, comm.Size())
			}
			assert.True(t, n == 1 || made[0] != made[1])
			_, err := comm.Members{Members: g.Members()}.Separate("a test", 10*time.Second, func(tell func([]int64) ([][]int64, error)) error {
				return status.New(status.Mismatch, "meanwhile")
			})
			assert.ErrorContains(t, err, "meanwhile")
		})
	})
}

func TestSeparateNamesWhoDoesNotCome(t *testing.T) {
	ranks(t, 3, []int{0, 1, 0}, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 2 {
			return
		}
		_, err := comm.Members{Members: g.Members()}.Separate("a test", 300*time.Millisecond, func(func([]int64) ([][]int64, error)) error { return nil })
		assert.Equal(t, status.Timeout, status.CodeOf(err))
		assert.ErrorContains(t, err, "had not called a test")
	})
}

// The end of the world waits for users of a group, and tells them by Trouble.
func TestUseHoldsTheWorld(t *testing.T) {
	for _, ends := range []bool{false, true} {
		ranks(t, 1, nil, func(t *testing.T, e *world.Env, g *Group) {
			done := g.Members().Use()
			assert.NoError(t, g.Members().Trouble("a wait", 0))
			if ends {
				go func() {
					for g.Members().Trouble("a wait", 0) == nil {
						time.Sleep(time.Millisecond)
					}
					done()
				}()
			}
			settled, err := e.Destroy()
			assert.NoError(t, err)
			assert.Equal(t, ends, settled)
			err = g.Members().Trouble("a wait", 0)
			assert.Equal(t, status.GroupDestroyed, status.CodeOf(err))
			assert.ErrorContains(t, err, "a wait on the group of ranks [0]")
		})
	}
}

// A member that leaves is trouble for who waits for it, and not for a member of another node, which hears
// of it by messages.
func TestTroubleWithAMemberThatLeft(t *testing.T) {
	left, looked := make(chan struct{}), make(chan struct{}, 2)
	ranks(t, 3, []int{0, 0, 1}, func(t *testing.T, e *world.Env, g *Group) {
		switch g.Rank {
		case 0:
			assert.NotNil(t, g.Members().HeapOf(1))
			assert.Nil(t, g.Members().HeapOf(2))
			_, err := e.Leave()
			assert.NoError(t, err)
			close(left)
			<-looked
			<-looked
		case 1:
			assert.IsType(t, (*heap.View)(nil), g.Members().HeapOf(0))
			<-left
			err := g.Members().Trouble("a wait", 0)
			assert.Equal(t, status.PeerLeft, status.CodeOf(err))
			assert.Equal(t, []int{0}, err.(*status.Error).Ranks)
			assert.NoError(t, g.Members().Trouble("a wait", 1))
			looked <- struct{}{}
		case 2:
			<-left
			assert.NoError(t, g.Members().Trouble("a wait", 0))
			looked <- struct{}{}
		}
	})
}
