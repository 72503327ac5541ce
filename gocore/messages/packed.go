package messages

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// packed is the content of a message that is not one contiguous tensor in host memory. It goes through a block of host memory, or
// through two of them in fragments, which are pinned if tensors are in device memory. MPI is given the tensor's address if that is one
// tensor in device memory and MPI takes it.
type packed struct {
	content
	recv   bool
	block  block      // of the whole message; empty if MPI is given the tensor's address, or if it goes in fragments
	before cuda.Event // what the producing stream had queued before the call; 0 in host memory
	gate   cuda.Event // the transport may be called when this event has happened; 0 if it has
	copied cuda.Event // the copy from the block to the tensor; 0 until it is queued
}

// block is host memory through which a message goes.
type block struct {
	data   unsafe.Pointer
	pinned *mem.Pinned // nil if no tensor is in device memory
}

// pack prepares a transfer of tensors that MPI is not simply given. dev is the device of those that are on one, nil if all are in host
// memory. If viaCopy is set, they go through a block as a whole in any case. What it has made is freed with the message.
func (m *message) pack(tr *transfer, side string, bufs []op.Buf, dev *cuda.Device, viaCopy bool) (err error) {
	p := &packed{content: newContent(bufs), recv: tr.receives}
	p.device, tr.packed = dev, p
	if dev != nil {
		if p.before, err = buffer.Mark(m.code, dev, m.stream); err != nil {
			return err
		}
		env := m.g.Env
		if len(bufs) == 1 && bufs[0].Contiguous() && !viaCopy && env.Device.Direct && !m.comm.HostMemoryOnly() && env.Device.Aware.CUDAAware() {
			p.gate = p.before
			return nil
		}
		if !env.Device.Staged {
			return status.New(status.Unsupported, "%s: %s tensor 0 is on CUDA device %d; PADDLEMPI_CUDA_PATHS leaves out \"staged\", and direct wants a CUDA-aware MPI and a contiguous tensor",
				m.code, side, dev.Index)
		}
	}
	tr.data = nil
	if fragmenter(m.comm, p.bytes) != nil && !viaCopy {
		p.gate = p.before
		tr.fragments, err = newFragments(p)
		return err
	}
	if p.block, err = p.newBlock(p.bytes); err != nil {
		return err
	}
	if tr.data = p.block.data; !p.recv {
		p.gate, err = p.move(p.block, 0, p.bytes)
	}
	return err
}

// newBlock returns a block of so many bytes.
func (p *packed) newBlock(bytes int64) (b block, err error) {
	if p.device == nil {
		b.data, err = mem.Alloc(bytes)
		return b, err
	}
	if b.pinned, err = mem.GetPinned(p.device, bytes); err != nil {
		return block{}, err
	}
	if b.data = b.pinned.Data; !b.pinned.Locked && p.stridedOnDevice() {
		mem.PutPinned(b.pinned, 0)
		return block{}, status.New(status.NoMemory, "a tensor on CUDA device %d is not contiguous and needs %d bytes of pinned host memory, and the driver gives none: free some, or pass a contiguous copy",
			p.device.Index, bytes)
	}
	return b, nil
}

// freeBlock gives a block back. Copies from or to it may still be queued.
func (p *packed) freeBlock(b *block) {
	if b.pinned != nil {
		mem.PutPinned(b.pinned, p.stream())
	} else {
		mem.Free(b.data)
	}
	*b = block{}
}

// stream returns the stream for copies between the tensors and the blocks.
func (p *packed) stream() cuda.Stream {
	if p.recv {
		return p.device.In
	}
	return p.device.Out
}

// move copies a part of the message between the tensors and a block. If tensors are on a device it only queues the copy, and returns an
// event that follows it.
func (p *packed) move(b block, from, n int64) (e cuda.Event, err error) {
	if p.device == nil {
		return 0, p.copy(b.data, from, n, p.recv, 0)
	}
	s := p.stream()
	if err := p.device.StreamWait(s, p.before); err != nil {
		return 0, err
	}
	if err := p.copy(b.data, from, n, p.recv, s); err != nil {
		return 0, err
	}
	err = p.device.Mark(&e, s)
	return e, err
}

// ready tells whether MPI may be called. It is true if p is nil: MPI is given one contiguous tensor on the host.
func (p *packed) ready() (bool, error) {
	if p == nil || p.gate == 0 {
		return true, nil
	}
	done, err := p.device.Query(p.gate)
	if done && p.gate != p.before {
		p.device.PutEvent(p.gate)
	}
	if done {
		p.gate = 0
	}
	return done, err
}

// arrived copies a received message from its block to the tensors, if it has one.
func (p *packed) arrived() (err error) {
	if p.block.data != nil {
		p.copied, err = p.move(p.block, 0, p.bytes)
	}
	return err
}

// free gives back the block and the events.
func (p *packed) free() {
	if p.block.data != nil {
		p.freeBlock(&p.block)
	}
	if p.gate == p.before {
		p.gate = 0
	}
	for _, e := range []*cuda.Event{&p.gate, &p.before, &p.copied} {
		if *e != 0 {
			p.device.PutEvent(*e)
			*e = 0
		}
	}
}

// releaseDevice returns what a message that succeeded has left queued on a device, nil if nothing.
func (m *message) releaseDevice(err error) *buffer.Tail {
	for i := 0; i < m.n; i++ {
		if p := m.transfers[i].packed; p != nil && p.copied != 0 && err == nil {
			end := &buffer.Tail{Device: p.device, Event: p.copied}
			p.copied = 0
			return end
		}
	}
	return nil
}
