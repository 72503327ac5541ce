package memory

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// scarce lets allocations fail until the function that it returns is called.
func scarce(t *testing.T) (end func()) {
	allocate = func(int64) (unsafe.Pointer, error) { return nil, status.New(status.NoMemory, "no memory") }
	t.Cleanup(func() { allocate = mem.Alloc })
	return func() { allocate = mem.Alloc }
}

// A call for which there is no memory has an error and no request, keeps nothing, and is as if it had not been made: whether memory
// is short for a request to another rank or to oneself.
func TestCallsWithoutMemory(t *testing.T) {
	ranks := world(t, 2)
	from, a := room(t, short)
	to, b := room(t, short)
	fill(a, 1)
	for _, calls := range []struct {
		name string
		call func() (*transport.Request, error)
	}{
		{"a request of a send", func() (*transport.Request, error) { return ranks[0].Send(from, short, 1, 1) }},
		{"a request of a receive", func() (*transport.Request, error) { return ranks[0].Receive(to, short, 1, 1) }},
		{"a request to oneself", func() (*transport.Request, error) { return ranks[0].Send(from, short, 0, 1) }},
	} {
		end := scarce(t)
		r, err := calls.call()
		end()
		assert.Equal(t, status.NoMemory, status.CodeOf(err), calls.name)
		assert.Nil(t, r, calls.name)
	}
	// Nothing was left behind that would come first.
	for peer, c := range ranks {
		clear(b)
		fill(a, uint64(5+peer))
		sent, err := ranks[0].Send(from, short, int32(peer), 1)
		require.NoError(t, err)
		got, err := c.Receive(to, short, 0, 1)
		require.NoError(t, err)
		pollBoth(t, ranks, sent, got)
		require.NoError(t, c.Err(got))
		assert.Equal(t, a, b)
		ranks[0].Release(sent)
		c.Release(got)
	}
}

// A message that nobody has received yet, and for which there is no memory, stays where it is until there is some.
func TestAMessageThatCannotBeKept(t *testing.T) {
	ranks := world(t, 2)
	from, a := room(t, mostWhole)
	to, b := room(t, mostWhole)
	fill(a, 3)
	sent, err := ranks[0].Send(from, mostWhole, 1, 1)
	require.NoError(t, err)
	end := scarce(t)
	ranks[1].o.Poll(nil)
	end()
	ranks[1].o.Poll(nil)
	got, err := ranks[1].Receive(to, mostWhole, 0, 1)
	require.NoError(t, err)
	pollBoth(t, ranks, sent, got)
	assert.Equal(t, a, b)
	ranks[0].Release(sent)
	ranks[1].Release(got)
}
