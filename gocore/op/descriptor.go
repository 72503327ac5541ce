package op

import (
	"time"
	"unsafe"
)

// Types of devices, as in DLPack. 0 means DeviceCPU, too.
const (
	DeviceCPU         int32 = 1
	DeviceCUDA        int32 = 2
	DeviceCUDAHost    int32 = 3 // pinned host memory
	DeviceCUDAManaged int32 = 13
)

// Buf has the fields of pmpi_buf in capi/pmpi.h. It describes memory that the caller owns. All
// pointers are to memory outside the Go heap.
type Buf struct {
	Data       unsafe.Pointer
	Count      int64 // elements
	DType      DType
	DeviceType int32 // one of the Device constants
	DeviceID   int32
	NDim       int32
	Shape      unsafe.Pointer // NDim int64, or nil for a flat buffer of Count elements
	Strides    unsafe.Pointer // NDim int64 in elements, or nil for a contiguous tensor
}

// Desc has the fields of pmpi_op in capi/pmpi.h: one operation.
type Desc struct {
	Size      uint32 // bytes of the caller's pmpi_op
	Code      Code
	ReduceOp  ReduceOp
	Flags     uint32
	Scale     float64 // factor of PremulSum
	Group     int64
	Root      int32 // rank of the group; -1: none
	Peer      int32 // rank of the group; -1: any source
	Tag       int32
	Peer2     int32 // source of a SendRecv
	Tag2      int32
	NSend     int32
	NRecv     int32
	Reserved0 int32
	Send      unsafe.Pointer // NSend times Buf
	Recv      unsafe.Pointer // NRecv times Buf
	TimeoutNS int64          // below 0: the group's default
	Stream    uint64         // CUDA stream that orders the device tensors
	Cookie    uint64         // returned to the caller with the completion
	State     *uint32        // nil, or a word in the caller's memory; see work.Handle.Watch
	Prepared  uint64         // 0, or the number of the prepared operation that this is a call of
}

// Timeout returns the timeout that the caller asks for, at most longest. If the caller asks for
// none, it returns the group's timeout.
func (d *Desc) Timeout(ofGroup, longest time.Duration) time.Duration {
	if d.TimeoutNS < 0 {
		return ofGroup
	}
	return min(time.Duration(d.TimeoutNS), longest)
}

// Sends returns the send buffers without a copy. They are the caller's memory, valid during submit
// only.
func (d *Desc) Sends() []Buf { return bufs(d.Send, d.NSend) }

// Recvs returns the receive buffers in the same way.
func (d *Desc) Recvs() []Buf { return bufs(d.Recv, d.NRecv) }

func bufs(p unsafe.Pointer, n int32) []Buf {
	if p == nil || n <= 0 {
		return nil
	}
	return unsafe.Slice((*Buf)(p), n)
}

// OnHost tells whether the memory is host memory, which MPI and this process can touch.
func (b *Buf) OnHost() bool {
	return b.DeviceType == DeviceCPU || b.DeviceType == 0 || b.DeviceType == DeviceCUDAHost
}

// Bytes returns the bytes of the elements, without gaps between them.
func (b *Buf) Bytes() int64 { return b.Count * int64(b.DType.Size()) }

// Dims returns the shape without a copy. It is nil for a flat or a 0-dimensional buffer.
func (b *Buf) Dims() []int64 { return int64s(b.Shape, b.NDim) }

// Steps returns the strides in elements without a copy. It is nil for a contiguous buffer.
func (b *Buf) Steps() []int64 { return int64s(b.Strides, b.NDim) }

func int64s(p unsafe.Pointer, n int32) []int64 {
	if p == nil || n <= 0 {
		return nil
	}
	return unsafe.Slice((*int64)(p), n)
}

// Contiguous tells whether the elements are in row-major order without gaps. As in NumPy, the
// stride of a dimension of size 1 does not matter.
func (b *Buf) Contiguous() bool {
	steps := b.Steps()
	if steps == nil || b.Count <= 1 {
		return true
	}
	dims := b.Dims()
	if dims == nil { // strides without a shape have no meaning
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
