package heap

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// FuzzDirectory has a view of a heap whose owner writes what the input says into the directory, between
// looks at places that the input names. What the view returns is memory that can be read.
func FuzzDirectory(f *testing.F) {
	step := func(entry byte, where, size, generation, fd uint64, offset int64, n uint32) []byte {
		b := []byte{entry}
		for _, w := range []uint64{where, size, generation, fd, uint64(offset)} {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		return binary.LittleEndian.AppendUint32(b, n)
	}
	const page = 4096
	usual := step(0, hugePage, hugePage, 1, 0, hugePage+100, 1000)
	f.Add(usual)
	f.Add(append(append([]byte{}, usual...), step(0, 0, 0, 0, 0, hugePage, 8)...))
	f.Add(step(1, 0, 1<<40, 7, 0, 0, 8))
	f.Add(step(1, math.MaxUint64, 8, 7, 0, -1, 8))
	f.Add(step(1, hugePage+1, 8, 7, 0, hugePage+1, 8))
	f.Add(step(1, math.MaxInt64&^4095, page, 7, 0, math.MinInt64, 8))
	f.Add(step(1, 0, page, 7, 1, 0, 8))
	f.Add(step(1, 0, page, 7, 4, 0, 8))
	f.Add(step(1, 0, page, 7, math.MaxUint64, 0, 8))
	f.Add(step(255, 1, 2, 3, 4, 5, 6))
	f.Fuzz(func(t *testing.T, input []byte) {
		const fileBytes, stepBytes = 2 * hugePage, 45
		file, err := segment.NewGrowing("paddlempi-fuzz", fileBytes)
		require.NoError(t, err)
		defer file.Close()
		own, err := file.Map()
		require.NoError(t, err)
		defer func() { require.NoError(t, syscall.Munmap(own)) }()
		words := unsafe.Slice((*uint64)(unsafe.Pointer(&own[0])), directorySize/8)
		v, err := Open(file.Address())
		require.NoError(t, err)
		defer v.Close()
		for ; len(input) >= stepBytes; input = input[stepBytes:] {
			w := func(i int) uint64 { return binary.LittleEndian.Uint64(input[1+8*i:]) }
			entry := int(input[0])
			if entry == 255 { // the last ones are of their own kind
				entry = lockEntry
			}
			for i := range entryWords {
				words[entry*entryWords+i] = w(i)
			}
			l, n := Location{int64(w(4)), w(2)}, int64(int32(binary.LittleEndian.Uint32(input[41:])))
			p, err := v.At(l, n)
			if err != nil {
				assert.NotEqual(t, status.Panic, status.CodeOf(err))
			} else {
				m := v.mapped[l.Generation]
				require.NotNil(t, m)
				from, begin := uintptr(p), uintptr(unsafe.Pointer(&m.mem[0]))
				require.True(t, n >= 0 && from >= begin && from+uintptr(n) <= begin+uintptr(len(m.mem)))
				if m.adopted == nil { // its owner cannot cut it
					for i := int64(0); i < n; i += page {
						_ = *(*byte)(unsafe.Add(p, i))
					}
				}
			}
			_ = v.Read(l, make([]byte, min(max(n, 0), page)))
			v.DeadNow()
		}
	})
}

// The owner of a heap cannot cut its file, nor can it offer one that it could cut.
func TestAFileThatCouldBeCut(t *testing.T) {
	h := newHeap(t)
	alloc(t, h, 100, 1)
	assert.Error(t, syscall.Ftruncate(h.File().FD(), directorySize))
	v, err := Open(h.Address())
	require.NoError(t, err)
	v.Close()

	plain, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	require.NoError(t, err)
	defer plain.Close()
	require.NoError(t, plain.Truncate(directorySize))
	loose, err := segment.Duplicate(int(plain.Fd()))
	require.NoError(t, err)
	defer loose.Close()
	_, err = Open(loose.Address())
	assert.ErrorContains(t, err, "is not sealed")
	assert.Equal(t, status.Unsupported, status.CodeOf(err))
}

// An owner names a descriptor of its that is no memory.
func TestADirectoryThatNamesAPipe(t *testing.T) {
	h := newHeap(t)
	v, err := Open(h.Address())
	require.NoError(t, err)
	defer v.Close()
	var ends [2]int
	require.NoError(t, syscall.Pipe(ends[:]))
	defer syscall.Close(ends[0])
	defer syscall.Close(ends[1])
	var st syscall.Stat_t
	require.NoError(t, syscall.Fstat(ends[0], &st))
	copy(h.words[5*entryWords:], []uint64{st.Ino, 4096, 99, uint64(ends[0]) + 1})
	_, err = v.At(Location{0, 99}, 8)
	assert.ErrorContains(t, err, "is not the shared memory that was named")
}
