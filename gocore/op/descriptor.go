package op

import (
	"time"
	"unsafe"
)

// Types of devices, as in DLPack. 0 stands for DeviceCPU.
const (
	DeviceCPU         int32 = 1
	DeviceCUDA        int32 = 2
	DeviceCUDAHost    int32 = 3 // pinned: host memory
	DeviceCUDAManaged int32 = 13
)

// Buf is pmpi_buf of capi/pmpi.h, field for field. It describes memory that the
// caller owns; all pointers are to memory outside the Go heap.
type Buf struct {
	Data       unsafe.Pointer
	Count      int64 // elements
	DType      DType
	DeviceType int32 // Device*
	DeviceID   int32
	NDim       int32
	Shape      unsafe.Pointer // NDim int64, or nil: a flat buffer of Count elements
	Strides    unsafe.Pointer // NDim int64 in elements, or nil: contiguous
}

// Desc is pmpi_op of capi/pmpi.h, field for field: one operation.
type Desc struct {
	Size      uint32 // of the caller's pmpi_op in bytes
	Code      Code
	ReduceOp  ReduceOp
	Flags     uint32
	Scale     float64 // of PremulSum
	Group     int64
	Root      int32 // rank of the group; -1 is none
	Peer      int32 // rank of the group; -1 is any source
	Tag       int32
	Peer2     int32 // source of a SendRecv
	Tag2      int32
	NSend     int32
	NRecv     int32
	Reserved0 int32
	Send      unsafe.Pointer // NSend Buf
	Recv      unsafe.Pointer // NRecv Buf
	TimeoutNS int64          // below 0 is the group's default
	Stream    uint64         // CUDA stream that device tensors are ordered with
	Cookie    uint64         // goes back to the caller with the completion
	State     *uint32        // nil, or a word in the caller's memory: see work.Handle.Watch
	Reserved  uint64
}

// Timeout returns the deadline asked for, or the group's own, whose length is given; longest is the most
// that is kept.
func (d *Desc) Timeout(own, longest time.Duration) time.Duration {
	if d.TimeoutNS < 0 {
		return own
	}
	return min(time.Duration(d.TimeoutNS), longest)
}

// Sends returns the send buffers where they lie, without a copy. They are the
// caller's: valid during submit only.
func (d *Desc) Sends() []Buf { return bufs(d.Send, d.NSend) }

// Recvs returns the receive buffers where they lie, as Sends does.
func (d *Desc) Recvs() []Buf { return bufs(d.Recv, d.NRecv) }

func bufs(p unsafe.Pointer, n int32) []Buf {
	if p == nil || n <= 0 {
		return nil
	}
	return unsafe.Slice((*Buf)(p), n)
}

// OnHost tells whether the memory is the host's, which MPI and this process can touch.
func (b *Buf) OnHost() bool {
	return b.DeviceType == DeviceCPU || b.DeviceType == 0 || b.DeviceType == DeviceCUDAHost
}

// Bytes returns the length of the elements without gaps.
func (b *Buf) Bytes() int64 { return b.Count * int64(b.DType.Size()) }

// Dims returns the shape where it lies; nil for a flat or a zero-dim buffer.
func (b *Buf) Dims() []int64 { return int64s(b.Shape, b.NDim) }

// Steps returns the strides in elements where they lie; nil for a contiguous buffer.
func (b *Buf) Steps() []int64 { return int64s(b.Strides, b.NDim) }

func int64s(p unsafe.Pointer, n int32) []int64 {
	if p == nil || n <= 0 {
		return nil
	}
	return unsafe.Slice((*int64)(p), n)
}

// Contiguous tells whether the elements lie in row-major order without gaps.
// The stride of a dimension of size 1 says nothing, as in NumPy.
func (b *Buf) Contiguous() bool {
	steps := b.Steps()
	if steps == nil || b.Count <= 1 {
		return true
	}
	dims := b.Dims()
	if dims == nil { // strides without a shape describe nothing
		return false
	}
	want := int64(1)
	for i := len(dims) - 1; i >= 0; i-- {
		if dims[i] == 1 {
			continue
		}
		if steps[i] != want {
			return false
		}
		want *= dims[i]
	}
	return true
}
