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
// one tensor and MPI takes device memory. Else a message of up to longest bytes goes through a pinned block, and a longer
// one through two blocks, in pieces (long).
type deviceTensor struct {
	content
	recv   bool
	blocks [2]*mem.Pinned // nil if MPI is given the tensor's address
	before cuda.Event     // what the producing stream had queued before the call
	gate   cuda.Event     // MPI may be called when this event has happened; 0 if it has
	copied cuda.Event     // the copy from the block to the tensor; 0 until it is queued
}

// newDeviceTensor prepares the content of a message. For a send through one block it queues the copy
// to the host. If viaCopy is set, the tensor goes through a block in any case.
func (g *Messages) newDeviceTensor(code op.Code, side string, bufs []op.Buf, dev *cuda.Device, viaCopy bool, stream cuda.Stream) (*deviceTensor, error) {
	t := &deviceTensor{content: newContent(bufs), recv: side == "recv"}
	t.device = dev
	var err error
	if t.before, err = buffer.Mark(code, dev, stream); err != nil {
		return nil, err
	}
	// What may be the header of a long message has to be read by the host.
	maybeHeader := t.recv && t.bytes <= headerBytes && g.Env.Device.Staged
	if len(bufs) == 1 && bufs[0].Contiguous() && !viaCopy && !maybeHeader && g.Env.Device.Direct && !g.Comm().HostMemoryOnly() && g.Env.Device.Aware.CUDAAware() {
		t.gate = t.before
		return t, nil
	}
	if err := g.stageMessage(t, code, side, viaCopy); err != nil {
		t.free()
		return nil, err
	}
	return t, nil
}

func (g *Messages) stageMessage(t *deviceTensor, code op.Code, side string, whole bool) (err error) {
	if !g.Env.Device.Staged {
		return status.New(status.Unsupported, "%s: %s tensor 0 is on CUDA device %d; PADDLEMPI_CUDA_PATHS leaves out \"staged\", and direct wants a CUDA-aware MPI and a contiguous tensor",
			code, side, t.device.Index)
	}
	inPieces := t.bytes > longest && !whole
	n, length := 1, max(t.bytes, headerBytes)
	if inPieces {
		n, length = len(t.blocks), pieceBytes
	}
	for i := range n {
		if t.blocks[i], err = mem.GetPinned(t.device, length); err != nil {
			return err
		}
		if !t.blocks[i].Locked && t.stridedOnDevice() {
			return status.New(status.NoMemory, "%s: %s tensor 0 on CUDA device %d is not contiguous and needs %d bytes of pinned host memory, and the driver gives none: free some, or pass a contiguous copy",
				code, side, t.device.Index, length)
		}
	}
	switch {
	case inPieces:
		if !t.recv {
			t.gate = t.before
		}
	case !t.recv:
		t.gate, err = t.move(t.blocks[0].Data, 0, t.bytes)
	}
	return err
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

// data is the address that MPI is given; nil if the message goes in pieces.
func (t *deviceTensor) data() unsafe.Pointer {
	switch {
	case t.blocks[1] != nil:
		return nil
	case t.blocks[0] != nil:
		return t.blocks[0].Data
	}
	return t.bufs[0].Data
}

// direct tells whether MPI is given the tensor's address. It is false if t is nil.
func (t *deviceTensor) direct() bool { return t != nil && t.blocks[0] == nil }

// now copies the first bytes of a tensor that MPI is given, or writes them, and waits for that.
func (t *deviceTensor) now(bytes *[headerBytes]byte, write bool) error {
	block, err := mem.Alloc(headerBytes)
	if err != nil {
		return err
	}
	defer mem.Free(block)
	d, s := t.device, t.stream()
	host := (*[headerBytes]byte)(block)
	dst, src := block, t.data()
	if write {
		*host = *bytes
		dst, src = src, dst
	}
	if err := d.Copy(dst, src, headerBytes, s); err != nil {
		return err
	}
	err = d.StreamSync(s)
	if !write {
		*bytes = *host
	}
	return err
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

// arrived queues the copy of a received message from its block to the tensor. One that came in pieces is there.
func (t *deviceTensor) arrived() (err error) {
	if t.blocks[0] != nil && t.blocks[1] == nil {
		t.copied, err = t.move(t.blocks[0].Data, 0, t.bytes)
	}
	return err
}

// free gives back the blocks and the events. Copies from or to the blocks may still be queued.
func (t *deviceTensor) free() {
	for i, b := range t.blocks {
		if b != nil {
			mem.PutPinned(b, t.stream())
			t.blocks[i] = nil
		}
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
