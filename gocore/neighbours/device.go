package neighbours

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/grid"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Exchanges of tensors in device memory. What a rank gives to its neighbours is copied to pinned host memory before the call is
// announced, the exchange takes place between such blocks, and what has come is copied to the device at the end. Only
// the boxes are copied, each by a kernel. So the members need not agree on where their tensors are.

// deviceCopy is a box of a tensor in device memory, and its place in the block.
type deviceCopy struct {
	box  op.Buf
	at   int64
	from int64 // of a plan: where the box begins in the tensor, in bytes
	back bool  // it comes from the block
}

// Shadow is the block of a call with tensors in device memory.
type Shadow struct {
	Device *cuda.Device
	block  *mem.Pinned
	copies []deviceCopy
}

// locate finds the device of a tensor, which is that of all others of the call.
func (c *Call) locate(side string, i int, b *op.Buf) error {
	if c.Shadow == nil {
		c.Shadow = new(Shadow)
	}
	dev, _, err := buffer.Beside(c.Code, side, i, b, c.Shadow.Device, "call")
	if err == nil {
		c.Shadow.Device = dev
	}
	return err
}

// allocate takes the block of a call.
func (s *Shadow) allocate(code op.Code, bytes int64) (err error) {
	if s.block, err = mem.GetPinned(s.Device, max(bytes, 1)); err != nil {
		return err
	}
	if !s.block.Locked {
		return status.New(status.NoMemory, "%s: it needs %d bytes of pinned host memory, and the driver gives none: free some", code, bytes)
	}
	return nil
}

// Read begins to copy what the rank gives into the block, after what the producing stream has queued by now. The copies have
// ended when the event comes, which belongs to the caller.
func (s *Shadow) Read(code op.Code, producer cuda.Stream) (copied cuda.Event, err error) {
	ready, err := buffer.Mark(code, s.Device, producer)
	if err != nil {
		return 0, err
	}
	defer s.Device.PutEvent(ready)
	if err := s.Device.StreamWait(s.Device.Out, ready); err != nil {
		return 0, err
	}
	if err := s.move(false, s.Device.Out); err != nil {
		return 0, err
	}
	err = s.Device.Mark(&copied, s.Device.Out)
	return copied, err
}

// Write copies what has come to the device, and returns when it is there.
func (s *Shadow) Write() error {
	if err := s.move(true, s.Device.In); err != nil {
		return err
	}
	var copied cuda.Event
	if err := s.Device.Mark(&copied, s.Device.In); err != nil {
		return err
	}
	defer s.Device.PutEvent(copied)
	return s.Device.Wait(copied)
}

// move queues the copies of one way on a stream.
func (s *Shadow) move(back bool, stream cuda.Stream) error {
	for i := range s.copies {
		m := &s.copies[i]
		if m.back != back {
			continue
		}
		if err := mem.MoveStrided(s.Device, unsafe.Add(s.block.Data, m.at), &m.box, 0, m.box.Count, back, stream); err != nil {
			return err
		}
	}
	return nil
}

// Free gives the block back. Copies out of the device may still write into it after an error.
func (s *Shadow) Free() {
	if s.block != nil {
		mem.PutPinned(s.block, s.Device.Out)
	}
}

// deviceHalo is a plan for a tensor in device memory: the exchange within the block, and the copies, whose addresses count from
// the tensor's first element.
type deviceHalo struct {
	neighbours coll.Neighbours
	copies     []deviceCopy
	bytes      int64 // of the block
}

// onDevice makes the plan for a tensor in device memory. out and in are as arrange has sorted them. The block has what comes,
// then what goes, then what the rank gives to itself, which is copied to the block and back.
func (k *plan) onDevice(pattern *grid.Halo, rank int, out, in []grid.Box, steps []int64) (*deviceHalo, error) {
	h := &deviceHalo{neighbours: k.neighbours}
	n := &h.neighbours
	self := n.InBytes + n.OutBytes
	add := func(boxes []grid.Box, at int64, back bool) {
		alone := self
		for i := range boxes {
			from, box := placed(&boxes[i], k.dtype, steps)
			place := &at
			if boxes[i].Rank == rank {
				place = &alone
			}
			h.copies = append(h.copies, deviceCopy{box, *place, from, back})
			*place += box.Bytes()
		}
		h.bytes = max(h.bytes, alone)
	}
	add(out, n.InBytes, false)
	add(in, 0, true)
	var made boxer
	flat := func(to, from, bytes int64) coll.Copy {
		b := op.Buf{Count: bytes, DType: op.UInt8}
		return coll.Copy{Boxes: []mem.Box{made.box(to, &b, from, &b)}}
	}
	n.Self, n.Pack = nil, nil
	if n.OutBytes > 0 {
		n.Pack = []coll.Copy{flat(0, n.InBytes, n.OutBytes)}
	}
	comes := h.copies[len(out):]
	n.Lend = &coll.Lend{Layout: n.Lend.Layout, From: k.borrow(pattern, rank, in, func(i int) (int64, op.Buf) {
		return comes[i].at, op.Buf{Count: comes[i].box.Count, DType: k.dtype}
	})}
	n.In = append([]coll.Swap(nil), n.In...)
	at := int64(0)
	for i := range n.In {
		n.In[i].Unpack = flat(at, 0, n.In[i].Bytes)
		at += n.In[i].Bytes
	}
	return h, made.err
}

// haloOnDevice prepares the exchange of the border of a tensor in device memory.
func (c *Call) haloOnDevice(h *deviceHalo, tensor *op.Buf) error {
	s := c.Shadow
	if err := s.allocate(c.Code, h.bytes); err != nil {
		return err
	}
	for _, m := range h.copies {
		m.box.Data = unsafe.Add(tensor.Data, m.from)
		s.copies = append(s.copies, m)
	}
	c.Neighbours = &h.neighbours
	c.Recv[0].Data = s.block.Data
	return nil
}

// graphOnDevice prepares an exchange of tensors some of which are in device memory. It returns the tensors with blocks in the
// place of these.
func (c *Call) graphOnDevice(sends, recvs []op.Buf) (onHost [2][]op.Buf, err error) {
	s, bytes := c.Shadow, int64(0)
	onHost = [2][]op.Buf{slices.Clone(sends), slices.Clone(recvs)}
	var moved []*op.Buf
	var parts []*coll.Part
	for side, list := range [2][]coll.Part{c.Send, c.Recv} {
		for i := range list {
			if b := &onHost[side][i]; !b.OnHost() {
				moved, parts = append(moved, b), append(parts, &list[i])
				s.copies = append(s.copies, deviceCopy{box: buffer.Lasting(b), at: bytes, back: side == 1})
				bytes += (b.Bytes() + mem.Alignment - 1) &^ (mem.Alignment - 1)
			}
		}
	}
	if err := s.allocate(c.Code, bytes); err != nil {
		return onHost, err
	}
	for i, b := range moved {
		*b = op.Buf{Data: unsafe.Add(s.block.Data, s.copies[i].at), Count: b.Count, DType: b.DType, DeviceType: op.DeviceCPU}
		parts[i].Data = b.Data
	}
	return onHost, nil
}
