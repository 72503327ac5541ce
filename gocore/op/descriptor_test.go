package op

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

// Sizes and offsets of pmpi_buf and pmpi_op in C on 64-bit machines, which programs were built with.
func TestLayout(t *testing.T) {
	var b Buf
	assert.EqualValues(t, 48, unsafe.Sizeof(b))
	assert.EqualValues(t, 8, unsafe.Alignof(b))
	assert.Equal(t, []uintptr{0, 8, 16, 20, 24, 28, 32, 40}, []uintptr{
		unsafe.Offsetof(b.Data), unsafe.Offsetof(b.Count), unsafe.Offsetof(b.DType), unsafe.Offsetof(b.DeviceType),
		unsafe.Offsetof(b.DeviceID), unsafe.Offsetof(b.NDim), unsafe.Offsetof(b.Shape), unsafe.Offsetof(b.Strides),
	})

	var d Desc
	assert.EqualValues(t, 120, unsafe.Sizeof(d))
	assert.EqualValues(t, 8, unsafe.Alignof(d))
	assert.Equal(t, []uintptr{0, 4, 8, 12, 16, 24, 32, 36, 40, 44, 48, 52, 56, 60, 64, 72, 80, 88, 96, 104, 112}, []uintptr{
		unsafe.Offsetof(d.Size), unsafe.Offsetof(d.Code), unsafe.Offsetof(d.ReduceOp), unsafe.Offsetof(d.Flags),
		unsafe.Offsetof(d.Scale), unsafe.Offsetof(d.Group), unsafe.Offsetof(d.Root), unsafe.Offsetof(d.Peer),
		unsafe.Offsetof(d.Tag), unsafe.Offsetof(d.Peer2), unsafe.Offsetof(d.Tag2), unsafe.Offsetof(d.NSend),
		unsafe.Offsetof(d.NRecv), unsafe.Offsetof(d.Reserved0), unsafe.Offsetof(d.Send), unsafe.Offsetof(d.Recv),
		unsafe.Offsetof(d.TimeoutNS), unsafe.Offsetof(d.Stream), unsafe.Offsetof(d.Cookie),
		unsafe.Offsetof(d.State), unsafe.Offsetof(d.Prepared),
	})
}

func TestFlags(t *testing.T) {
	assert.EqualValues(t, 1, FlagAsync)
	assert.EqualValues(t, 2, FlagNotify)
}

func TestBuffersOfADescriptor(t *testing.T) {
	send := []Buf{{Count: 1}, {Count: 2}}
	recv := []Buf{{Count: 3}}
	d := Desc{
		NSend: 2, Send: unsafe.Pointer(&send[0]),
		NRecv: 1, Recv: unsafe.Pointer(&recv[0]),
	}
	assert.Equal(t, send, d.Sends())
	assert.Equal(t, recv, d.Recvs())
	assert.Same(t, &send[0], &d.Sends()[0], "the buffers are not copied")

	for _, none := range []Desc{
		{},
		{NSend: 2, NRecv: 2},
		{NSend: -1, Send: d.Send, NRecv: -1, Recv: d.Recv},
	} {
		assert.Nil(t, none.Sends())
		assert.Nil(t, none.Recvs())
	}
	assert.Zero(t, testing.AllocsPerRun(10, func() { _ = d.Sends(); _ = d.Recvs() }))
}

// buf makes a buffer of float32 with a shape, and with strides unless they are nil.
func buf(shape, strides []int64) *Buf {
	b := &Buf{DType: Float32, DeviceType: DeviceCPU, NDim: int32(len(shape)), Count: 1}
	for _, n := range shape {
		b.Count *= n
	}
	if len(shape) > 0 {
		b.Shape = unsafe.Pointer(&shape[0])
	}
	if len(strides) > 0 {
		b.Strides = unsafe.Pointer(&strides[0])
	}
	return b
}

func TestContiguous(t *testing.T) {
	for _, c := range []struct {
		why            string
		shape, strides []int64
		want           bool
	}{
		{"zero-dim", nil, nil, true},
		{"no strides", []int64{2, 3}, nil, true},
		{"row-major", []int64{2, 3}, []int64{3, 1}, true},
		{"transposed", []int64{2, 3}, []int64{1, 2}, false},
		{"every other", []int64{3}, []int64{2}, false},
		{"reversed", []int64{3}, []int64{-1}, false},
		{"broadcast", []int64{2, 3}, []int64{0, 1}, false},
		{"columns of a wider matrix", []int64{2, 3}, []int64{5, 1}, false},
		{"one row of a wider matrix", []int64{1, 3}, []int64{5, 1}, true},
		{"a size of 1 in the middle", []int64{2, 1, 3}, []int64{3, 99, 1}, true},
		{"one element", []int64{1, 1}, []int64{7, 9}, true},
		{"no element", []int64{0, 3}, []int64{7, 9}, true},
	} {
		assert.Equal(t, c.want, buf(c.shape, c.strides).Contiguous(), c.why)
	}
	steps := []int64{1}
	noShape := Buf{Count: 4, NDim: 1, Strides: unsafe.Pointer(&steps[0])}
	assert.False(t, noShape.Contiguous(), "strides without a shape")
}

func TestBytesDimsSteps(t *testing.T) {
	b := buf([]int64{2, 3}, []int64{1, 2})
	assert.EqualValues(t, 24, b.Bytes())
	assert.Equal(t, []int64{2, 3}, b.Dims())
	assert.Equal(t, []int64{1, 2}, b.Steps())

	flat := Buf{Count: 5, DType: Complex128}
	assert.EqualValues(t, 80, flat.Bytes())
	assert.Nil(t, flat.Dims())
	assert.Nil(t, flat.Steps())
	assert.True(t, flat.Contiguous())

	large := Buf{Count: 1<<31 + 3, DType: Float64}
	assert.EqualValues(t, 8*(int64(1)<<31+3), large.Bytes())
}
