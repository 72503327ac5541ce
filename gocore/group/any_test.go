package group

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// start starts a message of b.
func start(t *testing.T, g *Group, code op.Code, b op.Buf, peer, tag int32, timeout time.Duration) *work.Handle {
	d := desc(code, nil, []op.Buf{b})
	if code == op.Send {
		d = desc(code, []op.Buf{b}, nil)
	}
	d.Peer, d.Tag, d.Flags, d.TimeoutNS = peer, tag, op.FlagAsync, int64(timeout)
	h, _, err := g.Submit(d, false)
	assert.NoError(t, err)
	return h
}

// Where MPI does not always receive from any rank, this core looks for a message. The order of the receives stays, a
// receive that takes other messages does not wait, and one whose deadline passes is given up.
func TestReceivesFromAnyRankThatLook(t *testing.T) {
	noneFromAny := func(_, _ int, c *mpi.Call) (time.Duration, error) {
		if c.Fn == mpi.FnRecv && c.Peer == mpi.AnySource {
			return 0, errors.New("a receive from any rank")
		}
		return 0, nil
	}
	hooked(t, []int{0, 1, 0}, noneFromAny, func(t *testing.T, e *world.Env, g *Group) {
		send := func(value float32, to, tag int32) {
			_, err := start(t, g, op.Send, floats(value), to, tag, time.Minute).Wait(-1, nil)
			assert.NoError(t, err)
		}
		recv := func(b op.Buf, from, tag int32) work.Result {
			r, err := start(t, g, op.Recv, b, from, tag, time.Minute).Wait(-1, nil)
			assert.NoError(t, err)
			return r
		}
		switch g.Rank {
		case 0:
			first, second, other := floats(0), floats(0), floats(0)
			a := start(t, g, op.Recv, first, mpi.AnySource, 5, time.Minute)
			b := start(t, g, op.Recv, second, 1, 5, time.Minute)
			late := start(t, g, op.Recv, other, mpi.AnySource, 6, 200*time.Millisecond)
			recv(other, 1, 7)
			assert.Equal(t, float32(7), values(other)[0])
			assert.True(t, g.StartsNothing())
			_, err := late.Wait(-1, nil)
			assert.Equal(t, status.Timeout, status.CodeOf(err), "%v", err)
			send(0, 1, 9)
			r, err := a.Wait(-1, nil)
			assert.NoError(t, err)
			assert.Equal(t, work.Result{Source: 1, Tag: 5, Bytes: 4}, r)
			_, err = b.Wait(-1, nil)
			assert.NoError(t, err)
			assert.Equal(t, []float32{1, 2}, []float32{values(first)[0], values(second)[0]})
			_, err = start(t, g, op.Recv, floats(0, 0), mpi.AnySource, mpi.AnyTag, time.Minute).Wait(-1, nil)
			assert.Equal(t, status.Truncate, status.CodeOf(err), "%v", err)
			assert.Equal(t, int32(2), recv(other, mpi.AnySource, 8).Source)
		case 1:
			send(7, 0, 7)
			recv(floats(0), 0, 9)
			send(1, 0, 5)
			send(2, 0, 5)
			send(3, 0, 5)
			send(4, 2, 4)
		case 2:
			recv(floats(0), 1, 4)
			send(8, 0, 8)
		}
	}, mpifake.Named("MPICH"))
}

// Open MPI writes past the room of a receive that meets a longer message. So the core matches every message first, and never gives
// MPI less room than that has.
func TestNoReceiveHasLessRoomThanItsMessage(t *testing.T) {
	noLessRoom := func(_, _ int, c *mpi.Call) (time.Duration, error) {
		if c.Fn == mpi.FnMrecv && c.RecvCount < 12 {
			return 0, errors.New("too little room")
		}
		return 0, nil
	}
	hooked(t, []int{0, 1}, noLessRoom, func(t *testing.T, _ *world.Env, g *Group) {
		if g.Rank == 0 {
			for range 3 {
				_, err := start(t, g, op.Send, floats(1, 2, 3), 1, 5, time.Minute).Wait(-1, nil)
				assert.NoError(t, err)
			}
			return
		}
		for _, room := range []op.Buf{floats(0), floats(0, 0)} {
			_, err := start(t, g, op.Recv, room, 0, 5, time.Minute).Wait(-1, nil)
			assert.Equal(t, status.Truncate, status.CodeOf(err), "%v", err)
			assert.ErrorContains(t, err, "has 12 bytes")
		}
		room := floats(0, 0, 0)
		r, err := start(t, g, op.Recv, room, 0, 5, time.Minute).Wait(-1, nil)
		assert.NoError(t, err)
		assert.Equal(t, work.Result{Source: 0, Tag: 5, Bytes: 12}, r)
		assert.Equal(t, []float32{1, 2, 3}, values(room))
	}, mpifake.Named("Open MPI"))
}
