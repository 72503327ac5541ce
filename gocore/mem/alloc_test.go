package mem

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

func TestClassesHoldWhatIsAskedFor(t *testing.T) {
	lastClass, lastSize := int32(-1), int64(0)
	for n := int64(0); n < 1<<60; n = n + max(1, n/37) {
		class, size := classOf(n)
		require.GreaterOrEqual(t, size, n)
		require.Less(t, class, int32(classes))
		require.Zero(t, size%Alignment)
		if n > smallest {
			require.LessOrEqual(t, float64(size), 1.25*float64(n), "%d bytes", n)
		}
		require.GreaterOrEqual(t, class, lastClass)
		require.Equal(t, class == lastClass, size == lastSize, "%d bytes", n)
		again, same := classOf(size)
		require.Equal(t, class, again)
		require.Equal(t, size, same)
		lastClass, lastSize = class, size
	}
}

func TestAllocIsAlignedAndUsable(t *testing.T) {
	for _, n := range []int64{0, 1, 63, 64, 257, 4097, 1 << 20, 3<<20 + 1} {
		p, err := Alloc(n)
		require.NoError(t, err)
		require.NotNil(t, p)
		assert.Zero(t, uintptr(p)%Alignment)
		s := unsafe.Slice((*byte)(p), n)
		for i := range s {
			s[i] = 0xff
		}
		Free(p)
	}
	Free(nil)
}

func TestAllocTakesFreedBlocksAgain(t *testing.T) {
	Trim()
	p, err := Alloc(1_000_000)
	require.NoError(t, err)
	assert.Zero(t, Cached())
	Free(p)
	assert.GreaterOrEqual(t, Cached(), int64(1_000_000))
	q, err := Alloc(999_000)
	require.NoError(t, err)
	assert.Equal(t, p, q)
	assert.Zero(t, Cached())
	Free(q)
	Trim()
	assert.Zero(t, Cached())
}

func TestCacheIsBoundedAndDropsTheOldest(t *testing.T) {
	Trim()
	defer Trim()
	old, err := Alloc(100 << 20)
	require.NoError(t, err)
	hot, err := Alloc(64 << 20)
	require.NoError(t, err)
	Free(old)
	Free(hot)
	var more []unsafe.Pointer
	for range 2 {
		p, err := Alloc(80 << 20)
		require.NoError(t, err)
		more = append(more, p)
	}
	for _, p := range more {
		Free(p)
		assert.LessOrEqual(t, Cached(), int64(CacheLimit))
	}
	again, err := Alloc(64 << 20)
	require.NoError(t, err)
	assert.Equal(t, hot, again, "the block used last was dropped before an older one")
	Free(again)

	huge, err := Alloc(CacheLimit + 1)
	require.NoError(t, err)
	before := Cached()
	Free(huge)
	assert.Equal(t, before, Cached())
}

func TestAllocErrorsNameTheSize(t *testing.T) {
	for n, code := range map[int64]status.Code{1 << 55: status.NoMemory, -1: status.Argument, math.MaxInt64: status.Argument} {
		p, err := Alloc(n)
		assert.Nil(t, p)
		assert.Equal(t, code, status.CodeOf(err))
		assert.Regexp(t, `-1|36028797018963968|9223372036854775807`, err.Error())
	}
}

func TestFreeTwicePanics(t *testing.T) {
	p, err := Alloc(10)
	require.NoError(t, err)
	Free(p)
	assert.Panics(t, func() { Free(p) })
}

// No block is given out twice, and the free lists do not confuse the garbage collector.
func TestAllocConcurrently(t *testing.T) {
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(uint64(g), 0))
			held := map[unsafe.Pointer]int64{}
			for range 2000 {
				n := int64(1 + rng.IntN(10000))
				p, err := Alloc(n)
				if !assert.NoError(t, err) {
					return
				}
				s := unsafe.Slice((*byte)(p), n)
				for i := range s {
					s[i] = byte(g)
				}
				held[p] = n
				for q, m := range held {
					if len(held) < 20 {
						break
					}
					for _, v := range unsafe.Slice((*byte)(q), m) {
						if v != byte(g) {
							t.Errorf("a block of goroutine %d holds %d", g, v)
							break
						}
					}
					Free(q)
					delete(held, q)
				}
			}
			for q := range held {
				Free(q)
			}
		}()
	}
	wg.Wait()
}

func TestCopy(t *testing.T) {
	for _, n := range []int{0, 1, 64 << 10, 64<<10 + 1, 1 << 20} {
		b := block(t, n+1)
		for i := range b {
			b[i] = byte(i * 7)
		}
		want := append([]byte{}, b[:n]...)
		Copy(at(b, 1), at(b, 0), int64(n)) // the two overlap
		require.Equal(t, want, append([]byte{}, b[1:]...))
	}
	Copy(nil, nil, 0)
}

func BenchmarkAlloc(b *testing.B) {
	for b.Loop() {
		p, _ := Alloc(1 << 20)
		Free(p)
	}
}
