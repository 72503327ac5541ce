package messages

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/transport"
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

// Fragments end within an element, and the next one is opened before the one before it is closed.
func TestFragmentsOfAList(t *testing.T) {
	const n = 2*transport.FragmentBytes/4 + 1000
	from, sent := columns(t, n)
	into, got := columns(t, n)
	for i := range n {
		sent[2+2*i] = int32(i * 3)
	}
	sent[0] = 0x030201
	given, taken := newContent(from), newContent(into)
	pack, err := newFragments(&given, false, nil)
	require.NoError(t, err)
	defer pack.free()
	unpack, err := newFragments(&taken, true, nil)
	require.NoError(t, err)
	defer unpack.free()
	last := func() {}
	for at := int64(0); at < given.bytes; at += transport.FragmentBytes {
		n := min(transport.FragmentBytes, given.bytes-at)
		a, err := pack.Open(at, n)
		require.NoError(t, err)
		b, err := unpack.Open(at, n)
		require.NoError(t, err)
		last()
		copy(unsafe.Slice((*byte)(b), n), unsafe.Slice((*byte)(a), n))
		require.NoError(t, pack.Close(at, n))
		last = func() { require.NoError(t, unpack.Close(at, n)) }
	}
	last()
	assert.True(t, assert.ObjectsAreEqual(sent, got))
}
