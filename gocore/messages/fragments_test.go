package messages

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/transport/memory"
)

// columns describes every second element of n int32, which lie outside the Go heap, after a few bytes.
func columns(t *testing.T, n int64) (list []op.Buf, elements []int32) {
	block, err := mem.Alloc(8 + 8*n)
	require.NoError(t, err)
	t.Cleanup(func() { mem.Free(block) })
	all := unsafe.Slice((*int32)(block), 2+2*n)
	clear(all)
	shape, strides := []int64{n}, []int64{2}
	return []op.Buf{
		{Data: block, Count: 3, DType: op.UInt8},
		{Data: unsafe.Add(block, 8), Count: n, DType: op.Int32, NDim: 1,
			Shape: unsafe.Pointer(&shape[0]), Strides: unsafe.Pointer(&strides[0])},
	}, all
}

// prepared returns the fragments of tensors in host memory.
func prepared(t *testing.T, bufs []op.Buf, recv bool) *fragments {
	f, err := newFragments(&packed{content: newContent(bufs), recv: recv})
	require.NoError(t, err)
	t.Cleanup(f.free)
	return f
}

// Fragments end within an element, and the next one is opened before the one before it is closed.
func TestFragmentsOfAList(t *testing.T) {
	const n = 2*transport.FragmentBytes/4 + 1000
	from, sent := columns(t, n)
	into, got := columns(t, n)
	for i := range n {
		sent[2+2*i] = int32(i * 3)
	}
	sent[0] = 0x030201
	pack, unpack := prepared(t, from, false), prepared(t, into, true)
	last := func() {}
	for at := int64(0); at < pack.bytes; at += transport.FragmentBytes {
		n := min(transport.FragmentBytes, pack.bytes-at)
		a, err := pack.Open(at, n)
		require.NoError(t, err)
		assert.Nil(t, a, "it was not packed yet")
		assert.True(t, pack.work())
		assert.False(t, pack.work())
		a, err = pack.Open(at, n)
		require.NoError(t, err)
		b, err := unpack.Open(at, n)
		require.NoError(t, err)
		last()
		copy(unsafe.Slice((*byte)(b), n), unsafe.Slice((*byte)(a), n))
		require.NoError(t, pack.Close(at, n))
		last = func() {
			require.NoError(t, unpack.Close(at, n))
			again, err := unpack.Open(at, n)
			assert.NoError(t, err)
			assert.Nil(t, again, "it was not unpacked yet")
			assert.True(t, unpack.work())
		}
	}
	last()
	assert.True(t, assert.ObjectsAreEqual(sent, got))
}

// While a fragment of a long message is packed, and while one is unpacked, the transport is nobody's: a short message between the same
// ranks comes in between.
func TestAShortMessagePassesALongOneThatIsPacked(t *testing.T) {
	const n = 3*transport.FragmentBytes/4 + 1000
	from, sent := columns(t, n)
	into, got := columns(t, n)
	for i := range n {
		sent[2+2*i] = int32(i * 5)
	}
	pack, unpack := prepared(t, from, false), prepared(t, into, true)
	world, err := mem.Alloc(memory.Bytes(2))
	require.NoError(t, err)
	defer mem.Free(world)
	shared := unsafe.Slice((*byte)(world), memory.Bytes(2))
	clear(shared)
	var ranks [2]*memory.Comm
	for r := range ranks {
		ranks[r], err = memory.New(shared, r, 2, nil)
		require.NoError(t, err)
	}
	block, err := mem.Alloc(16)
	require.NoError(t, err)
	defer mem.Free(block)
	word, answer := (*int64)(block), (*int64)(unsafe.Add(block, 8))
	short := func(value int64) {
		*word = value
		out, err := ranks[0].Send(unsafe.Pointer(word), 8, 1, 7)
		require.NoError(t, err)
		in, err := ranks[1].Receive(unsafe.Pointer(answer), 8, 0, 7)
		require.NoError(t, err)
		for !transport.Over(ranks[1], in) {
		}
		assert.True(t, out.Done())
		assert.Equal(t, value, *answer)
		ranks[0].Release(out)
		ranks[1].Release(in)
	}
	out, err := ranks[0].SendFragments(pack, pack.bytes, 1, 1)
	require.NoError(t, err)
	in, err := ranks[1].ReceiveFragments(unpack, unpack.bytes, 0, 1)
	require.NoError(t, err)
	passed := int64(0)
	for late := time.Now().Add(time.Minute); ; {
		sentAll, cameAll := transport.Over(ranks[0], out), transport.Over(ranks[1], in)
		if sentAll && cameAll {
			break
		}
		require.True(t, time.Now().Before(late), "the long message does not end")
		for _, f := range []*fragments{pack, unpack} {
			f.mu.Lock()
			asked := f.blocks[0].asked || f.blocks[1].asked
			f.mu.Unlock()
			if asked {
				passed++
				short(passed)
			}
			f.work()
		}
	}
	unpack.work()
	assert.GreaterOrEqual(t, passed, int64(7))
	require.NoError(t, ranks[1].Err(in))
	ranks[0].Release(out)
	ranks[1].Release(in)
	assert.True(t, assert.ObjectsAreEqual(sent, got))
}
