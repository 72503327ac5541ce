package messages

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// deviceTensor is a tensor in device memory that is sent or received. MPI is given the tensor's
// address if it takes device memory, else a pinned block of the same length. The block is not cut
// into pieces, because the peer has posted one message.
type deviceTensor struct {
	device *cuda.Device
	tensor op.Buf
	recv   bool
	block  *mem.Pinned // nil if MPI is given the tensor's address
	before cuda.Event  // what the producing stream had queued before the call
	gate   cuda.Event  // MPI may be called when this event has happened; 0 if it has
	copied cuda.Event  // the copy from the block to the tensor; 0 until it is queued
}

// newDeviceTensor prepares the tensor of a message. For a send through a block it queues the copy
// to the host. If viaCopy is set, the tensor goes through a block in any case.
func (g *Messages) newDeviceTensor(code op.Code, side string, b *op.Buf, viaCopy bool, stream cuda.Stream) (*deviceTensor, error) {
	dev, _, err := buffer.Locate(code, side, 0, b)
	if err != nil {
		return nil, err
	}
	t := &deviceTensor{device: dev, tensor: *b, recv: side == "recv"}
	if !b.Contiguous() {
		if t.recv && mem.Overlaps(b) {
			return nil, buffer.OverlapError(code, 0)
		}
		t.tensor = *buffer.Layout(b)
	}
	if t.before, err = buffer.Mark(code, dev, stream); err != nil {
		return nil, err
	}
	if b.Contiguous() && !viaCopy && g.Env.Device.Direct && g.Env.Aware.CUDAAware() {
		t.gate = t.before
		return t, nil
	}
	if err := g.stageMessage(t, code, side); err != nil {
		t.free()
		return nil, err
	}
	return t, nil
}

func (g *Messages) stageMessage(t *deviceTensor, code op.Code, side string) (err error) {
	if !g.Env.Device.Staged {
		return status.New(status.Unsupported, "%s: %s tensor 0 is on CUDA device %d; PADDLEMPI_CUDA_PATHS leaves out \"staged\", and direct wants a CUDA-aware MPI and a contiguous tensor",
			code, side, t.device.Index)
	}
	if t.block, err = mem.GetPinned(t.device, t.tensor.Bytes()); err != nil {
		return err
	}
	if !t.block.Locked && !t.tensor.Contiguous() {
		return status.New(status.NoMemory, "%s: %s tensor 0 on CUDA device %d is not contiguous and needs %d bytes of pinned host memory, and the driver gives none: free some, or pass a contiguous copy",
			code, side, t.device.Index, t.tensor.Bytes())
	}
	if t.recv {
		return nil
	}
	t.gate, err = t.move(t.device.Out)
	return err
}

// move queues the copy between tensor and block on stream s, and returns an event that follows it.
func (t *deviceTensor) move(s cuda.Stream) (cuda.Event, error) {
	if err := t.device.StreamWait(s, t.before); err != nil {
		return 0, err
	}
	var err error
	switch {
	case !t.tensor.Contiguous():
		err = mem.MoveStrided(t.device, t.block.Data, &t.tensor, 0, t.tensor.Count, t.recv, s)
	case t.recv:
		err = t.device.Copy(t.tensor.Data, t.block.Data, t.tensor.Bytes(), s)
	default:
		err = t.device.Copy(t.block.Data, t.tensor.Data, t.tensor.Bytes(), s)
	}
	if err != nil {
		return 0, err
	}
	var e cuda.Event
	err = t.device.Mark(&e, s)
	return e, err
}

// data is the address that MPI is given.
func (t *deviceTensor) data() unsafe.Pointer {
	if t.block != nil {
		return t.block.Data
	}
	return t.tensor.Data
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

// arrived queues the copy of a received message from its block to the tensor.
func (t *deviceTensor) arrived() (err error) {
	if t.block != nil {
		t.copied, err = t.move(t.device.In)
	}
	return err
}

// free gives back the block and the events. Copies from or to the block may still be queued.
func (t *deviceTensor) free() {
	if t.block != nil {
		s := t.device.Out
		if t.recv {
			s = t.device.In
		}
		mem.PutPinned(t.block, s)
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
