package messages

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// content is the tensors of a message, one after the other. On the wire they are their elements, each tensor's in
// row-major order, without gaps.
type content struct {
	bufs   []op.Buf // with shapes and strides of their own
	bytes  int64
	device *cuda.Device // nil if all tensors are in host memory
}

// newContent describes tensors whose shapes and strides the caller keeps only during the call.
func newContent(bufs []op.Buf) content {
	c := content{bufs: make([]op.Buf, len(bufs))}
	for i := range bufs {
		c.bufs[i] = buffer.Lasting(&bufs[i])
		c.bytes += bufs[i].Bytes()
	}
	return c
}

// overlap tells whether a tensor of one list may share memory with one of the other.
func overlap(x, y []op.Buf) bool {
	for i := range x {
		for j := range y {
			if !mem.Apart(&x[i], &y[j]) {
				return true
			}
		}
	}
	return false
}

// stridedOnDevice tells whether a tensor on the device is not contiguous.
func (c *content) stridedOnDevice() bool {
	return slices.ContainsFunc(c.bufs, func(b op.Buf) bool { return !b.OnHost() && !b.Contiguous() })
}

// copy copies bytes [from, from+n) of the message to the address at, or from there into the tensors. Copies of tensors
// on the device are queued on s.
func (c *content) copy(at unsafe.Pointer, from, n int64, into bool, s cuda.Stream) error {
	for i := range c.bufs {
		b := &c.bufs[i]
		if from >= b.Bytes() {
			from -= b.Bytes()
			continue
		}
		m := min(n, b.Bytes()-from)
		if err := c.copyOf(b, at, from, m, into, s); err != nil || m == n {
			return err
		}
		at, n, from = unsafe.Add(at, m), n-m, 0
	}
	return nil
}

func (c *content) copyOf(b *op.Buf, at unsafe.Pointer, from, n int64, into bool, s cuda.Stream) error {
	if b.OnHost() {
		return mem.CopyRange(at, b, from, n, into)
	}
	if b.Contiguous() {
		dst, src := at, unsafe.Add(b.Data, from)
		if into {
			dst, src = src, dst
		}
		return c.device.Copy(dst, src, n, s)
	}
	size := int64(b.DType.Size())
	if from%size != 0 || n%size != 0 { // a piece ends within an element: the bytes of an element are a dimension
		b, size = bytesOf(b), 1
	}
	return mem.MoveStrided(c.device, at, b, from/size, n/size, into, s)
}

// bytesOf views a tensor as one of bytes.
func bytesOf(b *op.Buf) *op.Buf {
	view, size := *b, int64(b.DType.Size())
	dims := append(slices.Clone(b.Dims()), size)
	steps := make([]int64, 0, len(dims))
	for _, s := range b.Steps() {
		steps = append(steps, s*size)
	}
	steps = append(steps, 1)
	view.DType, view.Count, view.NDim = op.UInt8, b.Bytes(), int32(len(dims))
	view.Shape, view.Strides = unsafe.Pointer(&dims[0]), unsafe.Pointer(&steps[0])
	return &view
}

// locate checks the tensors of a side, and finds the device of those that are on one.
func locate(code op.Code, side string, bufs []op.Buf) (dev *cuda.Device, err error) {
	for i := range bufs {
		b := &bufs[i]
		if err := buffer.Check(code, side, i, b); err != nil {
			return nil, err
		}
		if b.Count == 0 {
			continue
		}
		if side == "recv" && mem.Overlaps(b) {
			return nil, buffer.OverlapError(code, i)
		}
		if b.OnHost() {
			continue
		}
		if dev, _, err = buffer.Beside(code, side, i, b, dev, "message"); err != nil {
			return nil, err
		}
	}
	return dev, nil
}
