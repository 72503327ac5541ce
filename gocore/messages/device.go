package messages

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// deviceTensor is the content of a message that has tensors in device memory. MPI is given the tensor's address if that is
// one tensor and MPI takes device memory. Else the message goes through a pinned block, or through two of them in fragments.
type deviceTensor struct {
	content
	recv   bool
	block  *mem.Pinned // of the whole message; nil if MPI is given the tensor's address, or if it goes in fragments
	before cuda.Event  // what the producing stream had queued before the call
	gate   cuda.Event  // the transport may be called when this event has happened; 0 if it has
	copied cuda.Event  // the copy from the block to the tensor; 0 until it is queued
}

// newDeviceTensor prepares the content of a message. If viaCopy is set, the tensor goes through a block in any case. It returns
// false if the message is to go in fragments.
func (g *Messages) newDeviceTensor(code op.Code, side string, bufs []op.Buf, dev *cuda.Device, viaCopy bool, stream cuda.Stream) (t *deviceTensor, whole bool, err error) {
	t = &deviceTensor{content: newContent(bufs), recv: side == "recv"}
	t.device = dev
	if t.before, err = buffer.Mark(code, dev, stream); err != nil {
		return nil, true, err
	}
	comm := g.Comm()
	if len(bufs) == 1 && bufs[0].Contiguous() && !viaCopy && g.Env.Device.Direct && !comm.HostMemoryOnly() && g.Env.Device.Aware.CUDAAware() {
		t.gate = t.before
		return t, true, nil
	}
	if !g.Env.Device.Staged {
		t.free()
		return nil, true, status.New(status.Unsupported, "%s: %s tensor 0 is on CUDA device %d; PADDLEMPI_CUDA_PATHS leaves out \"staged\", and direct wants a CUDA-aware MPI and a contiguous tensor",
			code, side, dev.Index)
	}
	if fragmenter(comm, t.bytes) != nil && !viaCopy {
		t.gate = t.before
		return t, false, nil
	}
	if t.block, err = t.pin(t.bytes); err == nil && !t.recv {
		t.gate, err = t.move(t.block.Data, 0, t.bytes)
	}
	if err != nil {
		t.free()
		return nil, true, err
	}
	return t, true, nil
}

// pin returns a pinned block of so many bytes.
func (t *deviceTensor) pin(bytes int64) (*mem.Pinned, error) {
	b, err := mem.GetPinned(t.device, bytes)
	if err == nil && !b.Locked && t.stridedOnDevice() {
		mem.PutPinned(b, 0)
		return nil, status.New(status.NoMemory, "a tensor on CUDA device %d is not contiguous and needs %d bytes of pinned host memory, and the driver gives none: free some, or pass a contiguous copy",
			t.device.Index, bytes)
	}
	return b, err
}

// stream returns the stream for copies between the tensors and the blocks.
func (t *deviceTensor) stream() cuda.Stream {
	if t.recv {
		return t.device.In
	}
	return t.device.Out
}

// move queues the copy of a part of the message between the tensors and a block, and returns an event that follows it.
func (t *deviceTensor) move(block unsafe.Pointer, from, n int64) (cuda.Event, error) {
	s := t.stream()
	if err := t.device.StreamWait(s, t.before); err != nil {
		return 0, err
	}
	if err := t.copy(block, from, n, t.recv, s); err != nil {
		return 0, err
	}
	var e cuda.Event
	err := t.device.Mark(&e, s)
	return e, err
}

// data is the address that the transport is given.
func (t *deviceTensor) data() unsafe.Pointer {
	if t.block != nil {
		return t.block.Data
	}
	return t.bufs[0].Data
}

// ready tells whether MPI may be called. It is true if t is nil: the tensor is on the host.
func (t *deviceTensor) ready() (bool, error) {
	if t == nil || t.gate == 0 {
		return true, nil
	}
	done, err := t.device.Query(t.gate)
	if done && t.gate != t.before {
		t.device.PutEvent(t.gate)
	}
	if done {
		t.gate = 0
	}
	return done, err
}

// arrived queues the copy of a received message from its block to the tensor, if it has one.
func (t *deviceTensor) arrived() (err error) {
	if t.block != nil {
		t.copied, err = t.move(t.block.Data, 0, t.bytes)
	}
	return err
}

// free gives back the block and the events. Copies from or to the block may still be queued.
func (t *deviceTensor) free() {
	if t.block != nil {
		mem.PutPinned(t.block, t.stream())
		t.block = nil
	}
	if t.gate != 0 && t.gate != t.before {
		t.device.PutEvent(t.gate)
	}
	for _, e := range []*cuda.Event{&t.before, &t.copied} {
		if *e != 0 {
			t.device.PutEvent(*e)
			*e = 0
		}
	}
	t.gate = 0
}

// releaseDevice returns what a message that succeeded has left queued on a device, nil if nothing.
func (m *message) releaseDevice(err error) *buffer.Tail {
	for i := 0; i < m.n; i++ {
		if d := m.transfers[i].onDevice; d != nil && d.copied != 0 && err == nil {
			end := &buffer.Tail{Device: d.device, Event: d.copied}
			d.copied = 0
			return end
		}
	}
	return nil
}
