package admin

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// caller is a connection of a test: an address, and whether it was closed.
type caller struct {
	net.Conn
	at     net.Addr
	closed bool
}

func (c *caller) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7} }
func (c *caller) RemoteAddr() net.Addr { return c.at }
func (c *caller) Close() error         { c.closed = true; return nil }

// guests has the connections of a test, one second after the other.
type guests struct {
	*room
	clock time.Time
	port  int
}

func newGuests() *guests {
	g := &guests{room: newRoom(), clock: time.Unix(1000, 0)}
	g.now = func() time.Time { return g.clock }
	return g
}

// come lets one connect from an address, and tells whether it may.
func (g *guests) come(host int) (*caller, bool) {
	g.port++
	c := &caller{at: &net.TCPAddr{IP: net.IPv4(10, 1, byte(host>>8), byte(host)), Port: g.port}}
	return c, g.enter(c)
}

func TestStrangersLeaveRoom(t *testing.T) {
	g := newGuests()
	var all []*caller
	crowd := func(want, of int) { // so many of an address, until there is no room
		t.Helper()
		for host := 0; ; host++ {
			for range of {
				c, in := g.come(host)
				if !in {
					assert.Len(t, all, want)
					return
				}
				all = append(all, c)
			}
		}
	}
	own, in := g.come(9999)
	require.True(t, in)
	g.shown(own.LocalAddr(), own.RemoteAddr())
	crowd(maxSilent, 48)

	// A trainer comes back: it waits until a stranger is old enough, the oldest of which goes.
	_, in = g.come(9999)
	assert.False(t, in)
	g.clock = g.clock.Add(youngSilent)
	for range 10 {
		c, in := g.come(9999)
		require.True(t, in)
		g.shown(c.LocalAddr(), c.RemoteAddr())
		g.shown(c.LocalAddr(), c.RemoteAddr())
		assert.True(t, all[0].closed && !all[1].closed && !own.closed, "one makes room, for one that is known now")
	}
	assert.Equal(t, 1+maxSilent-1+10, g.open)

	// Known ones go up to the limit, and strangers make room for each.
	for range maxConnections {
		if c, in := g.come(9998); in {
			g.shown(c.LocalAddr(), c.RemoteAddr())
		}
	}
	assert.Equal(t, maxConnections, g.open)
	assert.Empty(t, g.waiting)
	_, in = g.come(9998)
	assert.False(t, in)
	assert.False(t, own.closed)
	g.leave(own)
	g.leave(own)
	_, in = g.come(9998)
	assert.True(t, in)
	assert.Equal(t, maxConnections, g.open)
}

func TestAnAddressHasItsShare(t *testing.T) {
	g := newGuests()
	var all []*caller
	for range maxSilentOfOne {
		c, in := g.come(1)
		require.True(t, in)
		all = append(all, c)
	}
	older, in := g.come(2)
	require.True(t, in)
	_, in = g.come(1)
	assert.False(t, in)
	g.leave(all[0])
	c, in := g.come(1)
	assert.True(t, in)
	g.clock = g.clock.Add(youngSilent)
	_, in = g.come(1)
	assert.True(t, in)
	assert.True(t, all[1].closed && !c.closed && !older.closed, "its own oldest one goes")
	assert.Len(t, g.waiting, maxSilentOfOne+1)
	// Connections with the token do not count.
	for range 3 * maxSilentOfOne {
		c, in := g.come(3)
		require.True(t, in)
		g.shown(c.LocalAddr(), c.RemoteAddr())
	}
}

// idlers connects so often to a server, and says nothing.
func idlers(t *testing.T, s *Server, count int) {
	t.Helper()
	for range count {
		c, err := net.Dial("tcp", s.Address())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
	}
}

// A trainer whose connection the server has closed comes back through a crowd, as soon as its
// members are old enough to go; a call with the wrong token does not make one known.
func TestACallGoesOnUntilThereIsRoom(t *testing.T) {
	s, c := start(t, &backend{}, nil)
	s.room.mu.Lock()
	s.room.ofOne, s.room.young = 3, 300*time.Millisecond
	s.room.mu.Unlock()
	require.NoError(t, c.Complete(within(t), 0))
	for range 3 {
		wrong := dial(t, s, []byte("0123456789abcdefX"))
		assert.Equal(t, status.Refused, status.CodeOf(wrong.Complete(within(t), 0)))
	}
	began := time.Now()
	var all sync.WaitGroup
	for range 2 {
		again := dial(t, s, token)
		all.Add(1)
		go func() {
			defer all.Done()
			assert.NoError(t, again.Complete(within(t), 0))
		}()
	}
	all.Wait()
	assert.Less(t, time.Since(began), patience/2)
	require.NoError(t, c.Complete(within(t), 0), "its connection has stayed")

	s.room.mu.Lock()
	s.room.young = time.Hour
	s.room.mu.Unlock()
	idlers(t, s, 4)
	b := dial(t, s, token)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	err := b.Complete(ctx, 0)
	assert.Equal(t, status.Timeout, status.CodeOf(err))
	assert.ErrorContains(t, err, "has closed each connection before it sent a byte")
	ctx, cancel = context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	assert.Equal(t, status.Interrupted, status.CodeOf(b.Complete(ctx, 0)))
	// A server that is gone is another matter.
	s.Stop()
	assert.Equal(t, status.PeerLeft, status.CodeOf(b.Complete(within(t), 0)))
}
