package mem

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// block returns n bytes of Alloc, which are freed when the test ends.
func block(t testing.TB, n int) []byte {
	p, err := Alloc(int64(n))
	require.NoError(t, err)
	t.Cleanup(func() { Free(p) })
	return unsafe.Slice((*byte)(p), n)
}

func at(b []byte, offset int) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), offset)
}

// tensor is a strided view of a block. Element 0 is at first.
type tensor struct {
	dtype   op.DType
	room    []byte
	first   int
	shape   []int64
	strides []int64
}

func (v *tensor) buf() *op.Buf {
	count := int64(1)
	for _, n := range v.shape {
		count *= n
	}
	return &op.Buf{
		Data: at(v.room, v.first), Count: count, DType: v.dtype, DeviceType: op.DeviceCPU, NDim: int32(len(v.shape)),
		Shape: unsafe.Pointer(unsafe.SliceData(v.shape)), Strides: unsafe.Pointer(unsafe.SliceData(v.strides)),
	}
}

// offsets returns where each element is in the room, in row-major order.
func (v *tensor) offsets() []int {
	places := []int{v.first}
	for k, n := range v.shape {
		var next []int
		for _, p := range places {
			for i := range n {
				next = append(next, p+int(i*v.strides[k])*v.dtype.Size())
			}
		}
		places = next
	}
	return places
}

var bySize = []op.DType{op.UInt8, op.BFloat16, op.Float32, op.Float64, op.Complex128}

// random returns a dense tensor of up to 5 dimensions that was sliced with steps, reversed and
// transposed at random. If broadcast is set, some dimensions repeat (stride 0).
func random(t testing.TB, rng *rand.Rand, broadcast bool) *tensor {
	v := &tensor{dtype: bySize[rng.IntN(len(bySize))]}
	size := v.dtype.Size()
	ndim := rng.IntN(6)
	stride := int64(1)
	for range ndim {
		dense := int64(1 + rng.IntN(9))
		if rng.IntN(6) == 0 {
			dense = int64(30 + rng.IntN(70)) // more than a tile
		}
		if stride*dense > 40000 {
			dense = 1
		}
		step := int64(1 + rng.IntN(3))
		n, s := (dense+step-1)/step, step*stride
		switch {
		case rng.IntN(40) == 0:
			n = 0
		case broadcast && rng.IntN(4) == 0:
			s = 0
		case rng.IntN(3) == 0:
			v.first += int((n-1)*s) * size
			s = -s
		}
		v.shape, v.strides = append(v.shape, n), append(v.strides, s)
		stride *= dense
	}
	rng.Shuffle(ndim, func(i, j int) {
		v.shape[i], v.shape[j] = v.shape[j], v.shape[i]
		v.strides[i], v.strides[j] = v.strides[j], v.strides[i]
	})
	skip := rng.IntN(3) // so that not even elements are aligned
	v.first += skip
	v.room = block(t, int(stride)*size+skip)
	for i := range v.room {
		v.room[i] = byte(rng.Uint32())
	}
	return v
}

func TestPackAndUnpackRandomTensors(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 3000 {
		v := random(t, rng, i%3 == 0)
		size, places := v.dtype.Size(), v.offsets()
		what := fmt.Sprintf("%v %v %v", v.dtype, v.shape, v.strides)

		want := []byte{}
		for _, p := range places {
			want = append(want, v.room[p:p+size]...)
		}
		got := block(t, len(want)+2)
		got[0], got[len(got)-1] = 0xa5, 0x5a
		require.NoError(t, Pack(at(got, 1), v.buf()), what)
		require.Equal(t, want, append([]byte{}, got[1:len(got)-1]...), what)
		require.Equal(t, []byte{0xa5, 0x5a}, []byte{got[0], got[len(got)-1]}, what)

		seen, twice := map[int]bool{}, false
		for _, p := range places {
			twice = twice || seen[p]
			seen[p] = true
		}
		require.Equal(t, twice, Overlaps(v.buf()), what)
		if twice {
			continue
		}
		expected := append([]byte{}, v.room...)
		for k, p := range places {
			for j := range size {
				expected[p+j] = byte(k + j)
				got[1+k*size+j] = byte(k + j)
			}
		}
		require.NoError(t, Unpack(v.buf(), at(got, 1)), what)
		require.Equal(t, expected, append([]byte{}, v.room...), what)
	}
}

func TestPackSixtyFourDims(t *testing.T) {
	v := &tensor{dtype: op.Int32, room: block(t, 4<<6)}
	for i := range v.room {
		v.room[i] = byte(i)
	}
	for k := range 64 { // six dimensions of size 2, in reverse order; the others are of size 1
		n, s := int64(1), int64(77)
		if k%11 == 0 {
			n, s = 2, int64(1)<<(k/11)
		}
		v.shape, v.strides = append(v.shape, n), append(v.strides, s)
	}
	got, want := block(t, 4<<6), []byte{}
	require.NoError(t, Pack(at(got, 0), v.buf()))
	for _, p := range v.offsets() {
		want = append(want, v.room[p:p+4]...)
	}
	assert.Equal(t, want, append([]byte{}, got...))

	v.shape, v.strides = append(v.shape, 2), append(v.strides, 0)
	err := Pack(at(got, 0), v.buf())
	assert.Equal(t, status.Argument, status.CodeOf(err))
	assert.ErrorContains(t, err, "65 dimensions")
}

func TestPackRefusesACountThatIsNotTheShapes(t *testing.T) {
	v := &tensor{dtype: op.Int32, room: block(t, 64), shape: []int64{2, 2}, strides: []int64{1, 2}}
	b := v.buf()
	b.Count = 3
	assert.Equal(t, status.Argument, status.CodeOf(Pack(at(v.room, 32), b)))
	assert.Equal(t, status.Argument, status.CodeOf(Unpack(b, at(v.room, 32))))
	v.shape[0] = -2
	assert.Equal(t, status.Argument, status.CodeOf(Pack(at(v.room, 32), b)))
}

func TestPackFlatBuffer(t *testing.T) {
	room := block(t, 200)
	for i := range room {
		room[i] = byte(i)
	}
	b := &op.Buf{Data: at(room, 0), Count: 25, DType: op.Float32}
	require.NoError(t, Pack(at(room, 100), b))
	assert.Equal(t, append([]byte{}, room[:100]...), append([]byte{}, room[100:]...))
	room[100] = 99
	require.NoError(t, Unpack(b, at(room, 100)))
	assert.Equal(t, byte(99), room[0])
	assert.False(t, Overlaps(b))
	assert.NoError(t, Pack(nil, &op.Buf{DType: op.Float32}))
}

func TestOverlaps(t *testing.T) {
	for _, c := range []struct {
		shape, strides []int64
		want           bool
	}{
		{[]int64{4}, []int64{0}, true},
		{[]int64{1, 4}, []int64{0, 2}, false},
		{[]int64{0, 4}, []int64{0, 0}, false},
		{[]int64{3, 3}, []int64{1, 1}, true},    // a sliding window
		{[]int64{3, 4}, []int64{-4, -1}, false}, // reversed
		{[]int64{2, 3}, []int64{1, 2}, false},   // transposed
		{[]int64{2, 2}, []int64{3, -2}, false},  // every second column
		{[]int64{2, 3, 2}, []int64{6, 2, 6}, true},
	} {
		v := &tensor{dtype: op.Int8, room: make([]byte, 64), first: 32, shape: c.shape, strides: c.strides}
		assert.Equal(t, c.want, Overlaps(v.buf()), "%v %v", c.shape, c.strides)
	}
}

func BenchmarkPack(b *testing.B) {
	n := int64(2048)
	for _, c := range []struct {
		name           string
		shape, strides []int64
	}{
		{"contiguous", []int64{n, n}, []int64{n, 1}},
		{"rows", []int64{n / 2, n}, []int64{2 * n, 1}},
		{"columns", []int64{n, n / 2}, []int64{n, 2}},
		{"transposed", []int64{n, n}, []int64{1, n}},
		{"nchw-to-nhwc", []int64{16, 64, 64, 64}, []int64{64 * 64 * 64, 64, 1, 64 * 64}},
	} {
		for _, d := range []op.DType{op.BFloat16, op.Float32} {
			v := &tensor{dtype: d, room: block(b, int(n*n)*4), shape: c.shape, strides: c.strides}
			clear(v.room)
			buf := v.buf()
			dst := block(b, int(n*n)*4)
			clear(dst)
			b.Run(fmt.Sprintf("%s/%v/pack", c.name, d), func(b *testing.B) {
				b.SetBytes(2 * buf.Bytes())
				for b.Loop() {
					_ = Pack(at(dst, 0), buf)
				}
			})
			b.Run(fmt.Sprintf("%s/%v/unpack", c.name, d), func(b *testing.B) {
				b.SetBytes(2 * buf.Bytes())
				for b.Loop() {
					_ = Unpack(buf, at(dst, 0))
				}
			})
		}
	}
}
