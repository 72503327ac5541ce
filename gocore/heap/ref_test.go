package heap

import (
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Memory with a reference stays readable after its owner has given it back and another segment was mapped,
// and after the view is closed. Without Acquire the read ends in SIGSEGV.
func TestReferencedMemoryStaysMapped(t *testing.T) {
	h := newHeap(t)
	v, err := Open(h.Address())
	require.NoError(t, err)
	kept, second, given := alloc(t, h, SegmentSize, 1), alloc(t, h, SegmentSize, 2), alloc(t, h, SegmentSize, 3)
	at, _ := h.Find(given, 100)
	other, _ := h.Find(second, 100)
	ref, err := v.Acquire(at, 100)
	require.NoError(t, err)
	again, err := v.Acquire(at, 100)
	require.NoError(t, err)
	again.Release()
	require.NoError(t, h.Free(kept))
	require.NoError(t, h.Free(given)) // the heap keeps one empty segment
	_, err = v.At(at, 100)
	require.NoError(t, err, "it is mapped")
	_, err = v.At(other, 100)
	require.NoError(t, err)
	_, there := v.entry(at.Generation)
	assert.False(t, there, "the owner has given the segment back")
	assert.Len(t, v.mapped, 2)
	_ = bytesAt(ref.Data(), 100)[99]
	v.Close()
	v.Close()
	assert.Len(t, v.mapped, 1)
	_ = bytesAt(ref.Data(), 100)[99]
	_, err = v.Acquire(at, 100)
	assert.ErrorContains(t, err, "not open here any more")
	ref.Release()
	assert.Empty(t, v.mapped)
	Ref{}.Release()
}

func TestAcquireRefuses(t *testing.T) {
	h := newHeap(t)
	v, err := Open(h.Address())
	require.NoError(t, err)
	defer v.Close()
	p := alloc(t, h, 100, 1)
	at, _ := h.Find(p, 100)
	_, err = v.Acquire(at, SegmentSize+1)
	assert.ErrorContains(t, err, "are not in the segment")
	_, err = v.Acquire(Location{at.Offset, at.Generation + 1}, 100)
	assert.ErrorContains(t, err, "its memory was freed")

	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, file.Truncate(4096))
	mem, err := syscall.Mmap(int(file.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	require.NoError(t, err)
	generation, err := h.Adopt(int(file.Fd()), unsafe.Pointer(&mem[0]), 4096)
	require.NoError(t, err)
	defer h.Disown(generation)
	_, err = v.Acquire(Location{0, generation}, 4096)
	assert.ErrorContains(t, err, "not the heap's own memory")
	held, err := v.Hold(Location{0, generation}, 4096)
	require.NoError(t, err)
	mem[4095] = 7
	assert.EqualValues(t, 7, bytesAt(held.Data(), 4096)[4095])
	held.Release()
}
