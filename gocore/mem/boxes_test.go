package mem

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// region is a box of a tensor: its place in the room, and its layout.
func (v *tensor) region(from, n []int64) tensor {
	r := tensor{v.dtype, v.room, v.first, n, v.strides}
	for k := range from {
		r.first += int(from[k]*v.strides[k]) * v.dtype.Size()
	}
	return r
}

// Boxes at both ends of every dimension go to a packed block, from there, and to the other end. What is beside them stays
// as it is.
func TestBoxesOfRandomTensors(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	dtypes := []op.DType{op.Int8, op.BFloat16, op.Float32, op.Int64, op.Complex128}
	for turn := range 150 {
		v := tensor{dtype: dtypes[turn%len(dtypes)]}
		size, step := v.dtype.Size(), int64(1+rng.IntN(2))
		v.shape, v.strides = make([]int64, 1+rng.IntN(4)), nil
		v.strides = make([]int64, len(v.shape))
		for _, k := range rng.Perm(len(v.shape)) {
			v.shape[k] = int64(4 + rng.IntN(6))
			v.strides[k] = step
			step *= v.shape[k] + int64(rng.IntN(2))
		}
		v.room = block(t, int(step)*size)
		for i := range v.room {
			v.room[i] = byte(rng.Uint32())
		}
		k := rng.IntN(len(v.shape)) // the dimension with two ends
		ends := func(from, count int64) tensor {
			begin, n := make([]int64, len(v.shape)), append([]int64(nil), v.shape...)
			begin[k], n[k] = from, count
			return v.region(begin, n)
		}
		width := int64(1 + rng.IntN(2))
		last := v.shape[k] - width
		first, end := ends(0, width), ends(last, width)
		count := first.buf().Count
		flat := &op.Buf{Count: count, DType: v.dtype}
		bytes := count * int64(size)

		packed := block(t, int(2*bytes))
		base := at(v.room, 0)
		toPack := make([]Box, 2)
		var err error
		for i, r := range []*tensor{&first, &end} {
			toPack[i], err = NewBox(int64(i)*bytes, flat, int64(r.first), r.buf())
			require.NoError(t, err)
		}
		assert.True(t, toPack[0].Alike(&toPack[1]))
		before := append([]byte(nil), v.room...)
		CopyBoxes(at(packed, 0), base, toPack)
		for i, r := range []*tensor{&first, &end} {
			for j, place := range r.offsets() {
				got := packed[i*int(bytes)+j*size:][:size]
				require.Equal(t, before[place:place+size], got, "%v, box %d, element %d", v, i, j)
			}
		}
		// Back, each to the other end; and then each end to the other one's place in a copy of the room.
		other := block(t, len(v.room))
		copy(other, before)
		swapped := make([]Box, 2)
		direct := make([]Box, 2)
		for i, r := range [][2]*tensor{{&end, &first}, {&first, &end}} {
			swapped[i], err = NewBox(int64(r[0].first), r[0].buf(), int64(i)*bytes, flat)
			require.NoError(t, err)
			direct[i], err = NewBox(int64(r[0].first), r[0].buf(), int64(r[1].first), r[1].buf())
			require.NoError(t, err)
		}
		CopyBoxes(base, at(packed, 0), swapped)
		CopyBoxes(at(other, 0), unsafe.Pointer(unsafe.SliceData(before)), direct)
		want := append([]byte(nil), before...)
		for j, place := range first.offsets() {
			there := end.offsets()[j]
			copy(want[place:place+size], before[there:there+size])
			copy(want[there:there+size], before[place:place+size])
		}
		require.Equal(t, want, v.room, "%v", v)
		require.Equal(t, want, other, "%v", v)
	}
}

func TestBoxesThatAreSpecial(t *testing.T) {
	room := block(t, 64)
	clear(room)
	copy(room, "abcdefgh")
	one, none := &op.Buf{Count: 1, DType: op.Int8}, &op.Buf{DType: op.Int8}
	single, err := NewBox(9, one, 2, one)
	require.NoError(t, err)
	empty, err := NewBox(10, none, 0, none)
	require.NoError(t, err)
	CopyBoxes(at(room, 0), at(room, 0), []Box{empty, single, empty})
	assert.Equal(t, "abcdefgh\x00c\x00", string(room[:11]))
	CopyBoxes(nil, nil, nil)

	shape, strides := make([]int64, 17), make([]int64, 17)
	for k := range shape {
		shape[k], strides[k] = 2, int64(3)<<(2*k)
	}
	many := &op.Buf{Count: 1 << 17, DType: op.Int8, NDim: 17, Shape: unsafe.Pointer(&shape[0]), Strides: unsafe.Pointer(&strides[0])}
	_, err = NewBox(0, &op.Buf{Count: many.Count, DType: op.Int8}, 0, many)
	assert.Equal(t, status.Unsupported, status.CodeOf(err))
}
