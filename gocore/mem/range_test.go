package mem

import (
	"math/rand"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// drawn returns a tensor in memory of its own: any order of the axes, gaps, and axes that run backwards.
func drawn(t *testing.T, rng *rand.Rand, d op.DType) op.Buf {
	t.Helper()
	shape := make([]int64, 1+rng.Intn(4))
	steps := make([]int64, len(shape))
	room, offset, count := int64(1), int64(0), int64(1)
	for i := range shape {
		shape[i] = 1 + rng.Int63n(5)
		count *= shape[i]
	}
	for _, axis := range rng.Perm(len(shape)) {
		step := []int64{1, 1, 2, -1, -3}[rng.Intn(5)]
		steps[axis] = room * step
		if step < 0 {
			offset -= room * step * (shape[axis] - 1)
		}
		room *= shape[axis] * max(step, -step)
	}
	size := int64(d.Size())
	block, err := Alloc(room * size)
	require.NoError(t, err)
	t.Cleanup(func() { Free(block) })
	return op.Buf{Data: unsafe.Add(block, offset*size), Count: count, DType: d, NDim: int32(len(shape)),
		Shape: unsafe.Pointer(&shape[0]), Strides: unsafe.Pointer(&steps[0])}
}

// A tensor that is copied range by range, also within elements, is as one that is copied as a whole.
func TestCopyRange(t *testing.T) {
	rng := rand.New(rand.NewSource(3))
	for range 3000 {
		b := drawn(t, rng, []op.DType{op.UInt8, op.Int16, op.Float32, op.Float64, op.Complex128}[rng.Intn(5)])
		bytes := b.Bytes()
		want, err := Alloc(bytes)
		require.NoError(t, err)
		got, err := Alloc(bytes)
		require.NoError(t, err)
		wanted, gotten := unsafe.Slice((*byte)(want), bytes), unsafe.Slice((*byte)(got), bytes)
		_, _ = rng.Read(wanted)
		cuts := []int64{0, bytes}
		for range rng.Intn(5) {
			cut := rng.Int63n(bytes + 1)
			if rng.Intn(2) == 0 {
				cut -= cut % int64(b.DType.Size())
			}
			cuts = append(cuts, cut)
		}
		slices.Sort(cuts)
		for i := range cuts[1:] {
			require.NoError(t, CopyRange(unsafe.Add(want, cuts[i]), &b, cuts[i], cuts[i+1]-cuts[i], true))
		}
		require.NoError(t, Pack(got, &b))
		require.Equal(t, wanted, gotten, "%v of strides %v, cut at %v", b.Dims(), b.Steps(), cuts)
		clear(gotten)
		for i := range cuts[1:] {
			require.NoError(t, CopyRange(unsafe.Add(got, cuts[i]), &b, cuts[i], cuts[i+1]-cuts[i], false))
		}
		require.Equal(t, wanted, gotten, "%v of strides %v, cut at %v", b.Dims(), b.Steps(), cuts)
		Free(want)
		Free(got)
	}
	b := drawn(t, rng, op.Float32)
	b.Strides = unsafe.Pointer(&[]int64{9, 9, 9, 9}[0])
	for _, c := range [][2]int64{{-1, 1}, {0, b.Bytes() + 1}, {b.Bytes(), 1}, {0, -1}} {
		if !b.Contiguous() {
			assert.Error(t, CopyRange(nil, &b, c[0], c[1], false))
		}
	}
}

// addresses returns the addresses of all bytes of a tensor.
func addresses(b *op.Buf) map[uintptr]bool {
	all := map[uintptr]bool{}
	at := make([]int64, b.NDim)
	for range b.Count {
		p := int64(uintptr(b.Data))
		for i := range at {
			p += at[i] * b.Steps()[i] * int64(b.DType.Size())
		}
		for k := range b.DType.Size() {
			all[uintptr(p)+uintptr(k)] = true
		}
		for i := len(at) - 1; i >= 0; i-- {
			if at[i]++; at[i] < b.Dims()[i] {
				break
			}
			at[i] = 0
		}
	}
	return all
}

// Apart never calls tensors apart that share a byte, and finds the usual ones that lie between each other.
func TestApart(t *testing.T) {
	rng := rand.New(rand.NewSource(4))
	found := 0
	for range 3000 {
		x := drawn(t, rng, op.Float32)
		y := drawn(t, rng, op.Float32)
		y.Data = unsafe.Add(x.Data, 4*(rng.Intn(60)-30))
		shared := false
		in := addresses(&x)
		for a := range addresses(&y) {
			shared = shared || in[a]
		}
		if Apart(&x, &y) {
			require.False(t, shared, "%v of strides %v and %v of strides %v", x.Dims(), x.Steps(), y.Dims(), y.Steps())
			found++
		}
	}
	assert.Greater(t, found, 300)

	block, err := Alloc(4 * 64)
	require.NoError(t, err)
	defer Free(block)
	view := func(from int64, shape, steps []int64) *op.Buf {
		b := op.Buf{Data: unsafe.Add(block, 4*from), Count: 1, DType: op.Float32, NDim: int32(len(shape)), Shape: unsafe.Pointer(&shape[0]), Strides: unsafe.Pointer(&steps[0])}
		for _, n := range shape {
			b.Count *= n
		}
		return &b
	}
	left, right := view(0, []int64{8, 3}, []int64{8, 1}), view(3, []int64{8, 5}, []int64{8, 1})
	assert.True(t, Apart(left, right), "columns")
	assert.False(t, Apart(left, view(2, []int64{8, 3}, []int64{8, 1})))
	evens, odds := view(0, []int64{8, 4}, []int64{8, 2}), view(1, []int64{8, 4}, []int64{8, 2})
	assert.True(t, Apart(evens, odds), "every second element")
	assert.True(t, Apart(evens, view(63, []int64{4, 8}, []int64{-2, -8})), "backwards")
	assert.False(t, Apart(evens, evens))
	assert.True(t, Apart(evens, view(0, []int64{0, 4}, []int64{8, 2})), "an empty one")
}
