package group

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// isRevoked compares the error of an operation with that of a world which rank by has revoked.
func isRevoked(t *testing.T, err error, by int) {
	t.Helper()
	assert.Equal(t, status.Revoked, status.CodeOf(err), "%v", err)
	assert.ErrorContains(t, err, "rank "+string(rune('0'+by))+" has revoked the world: a test")
}

// waits are operations of a rank for which the last rank does not come.
var waits = map[string]func(e *world.Env, g *Group) error{
	"a collective": func(_ *world.Env, g *Group) error {
		_, err := submit(g, allReduce(floats(1, 2)))
		return err
	},
	"a long collective": func(_ *world.Env, g *Group) error {
		_, err := submit(g, allReduce(floats(make([]float32, 100000)...)))
		return err
	},
	"an asynchronous collective, and one behind it": func(_ *world.Env, g *Group) error {
		d := allReduce(floats(1))
		d.Flags = op.FlagAsync
		h, _, err := g.Submit(d, false)
		if err == nil {
			_, _, _ = g.Submit(allReduce(floats(1)), false)
			_, err = h.Wait(-1, nil)
		}
		return err
	},
	"a receive": func(_ *world.Env, g *Group) error {
		d := desc(op.Recv, nil, []op.Buf{floats(0)})
		d.Peer = int32(g.Size - 1)
		_, err := submit(g, d)
		return err
	},
	"a receive from any rank": func(_ *world.Env, g *Group) error {
		d := desc(op.Recv, nil, []op.Buf{floats(0)})
		d.Peer, d.Tag = transport.AnySource, transport.AnyTag
		_, err := submit(g, d)
		return err
	},
	"a long message": func(_ *world.Env, g *Group) error {
		d := desc(op.Send, []op.Buf{floats(make([]float32, 3<<20)...)}, nil)
		d.Peer = int32(g.Size - 1)
		_, err := submit(g, d)
		return err
	},
	"a probe": func(_ *world.Env, g *Group) error {
		d := desc(op.Probe, nil, nil)
		d.Peer = int32(g.Size - 1)
		_, err := submit(g, d)
		return err
	},
	"a new group": func(e *world.Env, g *Group) error {
		_, err := New(e, 1, transport.EveryRank(g.Size), 20*time.Second)
		return err
	},
}

func TestEveryWaitEndsWhenAMemberRevokesTheWorld(t *testing.T) {
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var met sync.WaitGroup // as the survivors meet who go on
			met.Add(3)
			ranksInMemory(t, 3, func(t *testing.T, e *world.Env, g *Group) {
				if g.Rank == 2 {
					time.Sleep(20 * time.Millisecond)
				} else {
					isRevoked(t, wait(e, g), 2)
				}
				assert.False(t, e.Revoked())
				e.Announce("a test")
				assert.True(t, e.Revoke())
				_, err := submit(g, allReduce(floats(1)))
				isRevoked(t, err, 2)
				_, err = New(e, 2, []int{0, 1, 2}, time.Second)
				isRevoked(t, err, 2)
				met.Done()
				met.Wait()
				e.Reform()
				_, err = submit(g, allReduce(floats(1)))
				assert.Equal(t, status.GroupDestroyed, status.CodeOf(err), "%v", err)
				assert.ErrorContains(t, err, "the group of ranks [0 1 2]: the world was reformed")
				windows := 0
				assert.True(t, e.Abandon(func() { windows++ }))
				assert.Equal(t, 1, windows)
			})
		})
	}
}

// A member that has not revoked the world may still write into the memory of the others.
func TestAWorldIsKeptWhileAMemberMayWriteIntoIt(t *testing.T) {
	var revoked, tried sync.WaitGroup
	revoked.Add(1)
	tried.Add(1)
	ranksInMemory(t, 2, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 1 {
			revoked.Wait()
			isRevoked(t, e.Ending(), 0)
			assert.True(t, e.WasRevoked())
			tried.Wait()
			assert.True(t, e.Revoke())
			return
		}
		e.Announce("a test")
		assert.True(t, e.Revoke())
		revoked.Done()
		assert.False(t, e.Abandon(func() { t.Error("windows are given back") }))
		tried.Done()
		assert.Eventually(t, func() bool { return e.Abandon(func() {}) }, 20*time.Second, time.Millisecond)
	})
}

// Ranks of other nodes get a letter.
func TestARevocationComesToOtherNodes(t *testing.T) {
	ranks(t, 3, []int{0, 1, 0}, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 1 {
			e.Announce("a test")
			assert.True(t, e.Revoke())
			return
		}
		_, err := submit(g, allReduce(floats(1)))
		isRevoked(t, err, 1)
	})
}

// What another process has written may be anything.
func TestTheTextOfARevocationIsShown(t *testing.T) {
	ranksInMemory(t, 2, func(t *testing.T, e *world.Env, g *Group) {
		if g.Rank == 0 {
			e.Announce("a\x00test " + string(make([]byte, 1000)))
		}
		assert.Eventually(t, func() bool { return e.Ending() != nil }, 20*time.Second, time.Millisecond)
		why := status.Plain(e.Ending()).Msg
		assert.Regexp(t, `^rank 0 has revoked the world: a\?test \?+$`, why)
		assert.Less(t, len(why), 600)
	})
}
