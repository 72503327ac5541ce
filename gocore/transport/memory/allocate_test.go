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

// scarce lets allocations fail but the first left ones, until the function that it returns is called. That one returns the blocks
// that were allocated meanwhile.
func scarce(t *testing.T, left int) (end func() []unsafe.Pointer) {
	var blocks []unsafe.Pointer
	allocate = func(n int64) (unsafe.Pointer, error) {
		if len(blocks) == left {
			return nil, status.New(status.NoMemory, "no memory")
		}
		p, err := mem.Alloc(n)
		blocks = append(blocks, p)
		return p, err
	}
	t.Cleanup(func() { allocate = mem.Alloc })
	return func() []unsafe.Pointer {
		allocate = mem.Alloc
		return blocks
	}
}

// assertFreed fails unless all blocks were freed, once.
func assertFreed(t *testing.T, blocks []unsafe.Pointer) {
	t.Helper()
	for _, block := range blocks {
		assert.Panics(t, func() { mem.Free(block) }, "a block is still in use")
	}
}

// A call for which there is no memory has an error and no request, keeps nothing, and is as if it had not been made: whether memory
// is short for the request or for what nobody has received yet.
func TestCallsWithoutMemory(t *testing.T) {
	ranks := world(t, 2)
	from, a := room(t, short)
	to, b := room(t, short)
	fill(a, 1)
	for _, calls := range []struct {
		name string
		call func() (*transport.Request, error)
		left int // allocations that succeed
	}{
		{"a request of a send", func() (*transport.Request, error) { return ranks[0].Send(from, short, 1, 1) }, 0},
		{"a request of a receive", func() (*transport.Request, error) { return ranks[0].Receive(to, short, 1, 1) }, 0},
		{"a request to oneself", func() (*transport.Request, error) { return ranks[0].Send(from, short, 0, 1) }, 0},
		{"a message to oneself", func() (*transport.Request, error) { return ranks[0].Send(from, short, 0, 1) }, 1},
	} {
		end := scarce(t, calls.left)
		r, err := calls.call()
		blocks := end()
		assert.Equal(t, status.NoMemory, status.CodeOf(err), calls.name)
		assert.Nil(t, r, calls.name)
		assert.Len(t, blocks, calls.left, calls.name)
		assertFreed(t, blocks)
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
	end := scarce(t, 0)
	ranks[1].o.Poll(nil)
	assert.Empty(t, end())
	ranks[1].o.Poll(nil)
	got, err := ranks[1].Receive(to, mostWhole, 0, 1)
	require.NoError(t, err)
	pollBoth(t, ranks, sent, got)
	assert.Equal(t, a, b)
	ranks[0].Release(sent)
	ranks[1].Release(got)
}
