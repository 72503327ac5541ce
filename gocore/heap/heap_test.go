package heap

import (
	"math/rand"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

func bytesAt(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }

func newHeap(t *testing.T) *Heap {
	t.Helper()
	h, err := New()
	require.NoError(t, err)
	return h
}

// alloc allocates and fills.
func alloc(t *testing.T, h *Heap, n int, fill byte) unsafe.Pointer {
	t.Helper()
	p, err := h.Alloc(int64(n))
	require.NoError(t, err)
	assert.Zero(t, uintptr(p)%granule)
	b := bytesAt(p, n)
	for i := range b {
		b[i] = fill
	}
	return p
}

func TestAPeerReadsAndWrites(t *testing.T) {
	h := newHeap(t)
	v, err := Open(h.Address())
	require.NoError(t, err)
	defer v.Close()
	alloc(t, h, 100, 1)
	p := alloc(t, h, 1000, 7)
	l, ok := h.Find(unsafe.Add(p, 10), 990)
	require.True(t, ok)
	q, err := v.At(l, 990)
	require.NoError(t, err)
	assert.NotEqual(t, p, q)
	assert.Equal(t, bytesAt(p, 1000)[10:], bytesAt(q, 990))
	bytesAt(q, 990)[0] = 42
	assert.Equal(t, byte(42), bytesAt(p, 1000)[10])
	again, err := v.At(l, 1)
	require.NoError(t, err)
	assert.Equal(t, q, again, "mapped once")
}

// A peer may read memory that its owner has given back with its segment: it finds zeros there, or nothing
// once it has mapped another segment.
func TestReadingWhatWasGivenBack(t *testing.T) {
	h := newHeap(t)
	v, err := Open(h.Address())
	require.NoError(t, err)
	defer v.Close()
	const n = 70_000
	read := func(l Location) ([]byte, error) {
		got := make([]byte, n)
		return got, v.Read(l, got)
	}
	var at [2]Location
	var blocks [2]unsafe.Pointer
	for i := range blocks {
		blocks[i] = alloc(t, h, SegmentSize, byte(7+i))
		at[i], _ = h.Find(blocks[i], n)
		got, err := read(at[i])
		require.NoError(t, err)
		assert.Equal(t, bytesAt(blocks[i], n), got)
	}
	for _, wrong := range []Location{{at[0].Offset, at[0].Generation + 99}, {at[0].Offset + 1<<40, at[0].Generation}, {at[0].Offset + SegmentSize - 1, at[0].Generation}} {
		_, err := read(wrong)
		assert.Error(t, err)
	}
	for _, p := range blocks {
		require.NoError(t, h.Free(p)) // of two empty segments one goes
	}
	gone := at[1]
	if _, ok := h.Find(blocks[1], n); ok {
		gone = at[0]
	}
	got, err := read(gone)
	require.NoError(t, err)
	assert.Equal(t, make([]byte, n), got)
	for i := range blocks {
		blocks[i] = alloc(t, h, SegmentSize, byte(9+i))
		at[i], _ = h.Find(blocks[i], n)
		_, err = read(at[i])
		require.NoError(t, err)
	}
	_, err = read(gone)
	assert.Error(t, err)
}

func TestFind(t *testing.T) {
	h := newHeap(t)
	var other [8]byte
	_, ok := h.Find(unsafe.Pointer(&other), 8)
	assert.False(t, ok)
	p := alloc(t, h, 64, 0)
	_, ok = h.Find(p, SegmentSize)
	assert.True(t, ok)
	_, ok = h.Find(p, SegmentSize+1)
	assert.False(t, ok, "past the end of the segment")
}

func TestWhatIsLargeHasASegmentOfItsLength(t *testing.T) {
	h := newHeap(t)
	p := alloc(t, h, SegmentSize+1, 3)
	reserved, used, _ := h.Sizes()
	assert.Equal(t, int64(SegmentSize+hugePage), reserved)
	assert.Equal(t, int64(SegmentSize+granule), used)
	require.NoError(t, h.Free(p))
	_, used, _ = h.Sizes()
	assert.Zero(t, used)
}

func TestFreedMemoryStaysWarmAndEmptySegmentsGo(t *testing.T) {
	h := newHeap(t)
	v, err := Open(h.Address())
	require.NoError(t, err)
	defer v.Close()
	small, large := alloc(t, h, 10, 1), alloc(t, h, 2*SegmentSize, 2)
	l, _ := h.Find(small, 10)
	_, err = v.At(l, 10)
	require.NoError(t, err)
	require.NoError(t, h.Free(small))
	require.NoError(t, h.Free(large))
	reserved, _, _ := h.Sizes()
	assert.Equal(t, int64(2*SegmentSize), reserved, "the longest empty segment is kept")
	assert.Equal(t, large, alloc(t, h, SegmentSize, 4))
	assert.Len(t, v.mapped, 1)
	v.mu.Lock()
	v.trim()
	v.mu.Unlock()
	assert.Empty(t, v.mapped, "what its owner gave back")
	_, err = v.At(l, 10)
	assert.Equal(t, status.Argument, status.CodeOf(err))
	assert.ErrorContains(t, err, "was freed")
}

func TestASegmentInTheGapOfAnotherIsAnotherOne(t *testing.T) {
	h := newHeap(t)
	v, err := Open(h.Address())
	require.NoError(t, err)
	defer v.Close()
	first, second := alloc(t, h, SegmentSize, 1), alloc(t, h, SegmentSize, 2)
	old, _ := h.Find(first, 1)
	_, err = v.At(old, 1)
	require.NoError(t, err)
	third := alloc(t, h, 2*SegmentSize, 3)
	require.NoError(t, h.Free(third))
	require.NoError(t, h.Free(first)) // shorter than the other empty one, so it is given back
	fourth := alloc(t, h, 2*SegmentSize, 4)
	fifth := alloc(t, h, SegmentSize, 5)
	l, _ := h.Find(fifth, 1)
	assert.Equal(t, old.Offset, l.Offset, "in the gap")
	assert.NotEqual(t, old.Generation, l.Generation)
	q, err := v.At(l, 1)
	require.NoError(t, err)
	assert.Equal(t, byte(5), *(*byte)(q))
	assert.Len(t, v.mapped, 1, "the old mapping is gone")
	for _, p := range []unsafe.Pointer{second, fourth, fifth} {
		assert.NoError(t, h.Free(p))
	}
}

func TestWhatAPeerSaysIsNotBelieved(t *testing.T) {
	h := newHeap(t)
	v, err := Open(h.Address())
	require.NoError(t, err)
	defer v.Close()
	l, _ := h.Find(alloc(t, h, 64, 0), 64)
	for _, bad := range []struct {
		l Location
		n int64
	}{
		{Location{l.Offset, l.Generation + 1}, 8},
		{Location{l.Offset, 0}, 8},
		{Location{-8, l.Generation}, 8},
		{Location{l.Offset + SegmentSize, l.Generation}, 8},
		{Location{l.Offset, l.Generation}, SegmentSize + 1},
		{Location{l.Offset, l.Generation}, -1},
		{Location{1<<63 - 1, l.Generation}, 1<<63 - 1},
	} {
		_, err := v.At(bad.l, bad.n)
		assert.Equal(t, status.Argument, status.CodeOf(err), "%+v", bad)
	}
	h.entry(0)[1] = 1 << 40 // a directory that says more than there is
	other, err := Open(h.Address())
	require.NoError(t, err)
	defer other.Close()
	_, err = other.At(l, 8)
	assert.ErrorContains(t, err, "are not in shared memory of")
}

func TestFreeOfSomethingElse(t *testing.T) {
	h := newHeap(t)
	p := alloc(t, h, 200, 0)
	assert.Error(t, h.Free(unsafe.Add(p, 64)))
	assert.NoError(t, h.Free(p))
	assert.Error(t, h.Free(p), "twice")
	_, err := h.Alloc(-1)
	assert.Error(t, err)
}

// Random calls: allocations never overlap, and keep what was written.
func TestRandomCalls(t *testing.T) {
	h := newHeap(t)
	rng := rand.New(rand.NewSource(2))
	type held struct {
		p    unsafe.Pointer
		n    int
		fill byte
	}
	var list []held
	for i := range 3000 {
		if rng.Intn(5) < 3 {
			n := rng.Intn(1 << (4 + rng.Intn(14)))
			list = append(list, held{alloc(t, h, n, byte(i)), n, byte(i)})
		} else if len(list) > 0 {
			k := rng.Intn(len(list))
			for _, b := range bytesAt(list[k].p, list[k].n) {
				if b != list[k].fill {
					require.Fail(t, "overwritten")
				}
			}
			require.NoError(t, h.Free(list[k].p))
			list[k] = list[len(list)-1]
			list = list[:len(list)-1]
		}
	}
	for _, x := range list {
		require.NoError(t, h.Free(x.p))
	}
	_, used, _ := h.Sizes()
	assert.Zero(t, used)
}

func TestTheLimitOfFilesIsLookedAtFirst(t *testing.T) {
	h := newHeap(t)
	var old syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(rlimitFSize, &old))
	require.NoError(t, syscall.Setrlimit(rlimitFSize, &syscall.Rlimit{Cur: SegmentSize, Max: old.Max}))
	defer func() { require.NoError(t, syscall.Setrlimit(rlimitFSize, &old)) }()
	_, err := h.Alloc(1) // SIGXFSZ would end the tests
	assert.Equal(t, status.NoMemory, status.CodeOf(err))
	assert.ErrorContains(t, err, "ulimit -f")
}

func TestNothingHasAName(t *testing.T) {
	h := newHeap(t)
	alloc(t, h, 8, 0)
	found, err := os.ReadDir("/dev/shm")
	require.NoError(t, err)
	for _, f := range found {
		assert.False(t, strings.Contains(f.Name(), "paddlempi"), f.Name())
	}
}
