package group

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// onChip is a tensor in device memory that is sent or received: MPI is given its address
// where it takes that, and else a pinned block, whole: the other side has posted one
// message, from host memory or a device, which pieces would not match.
type onChip struct {
	device *cuda.Device
	tensor op.Buf
	recv   bool
	block  *mem.Pinned // nil: MPI has the tensor's address
	before cuda.Event  // what the producing stream had queued
	gate   cuda.Event  // MPI may not be called before; 0: it may
	tail   cuda.Event  // the copy out of the block, once it is queued
}

// onChip prepares the tensor of a message. For a send the copy to the host is queued.
func (g *Group) onChip(code op.Code, side string, b *op.Buf, apart bool, stream cuda.Stream) (*onChip, error) {
	dev, _, err := locate(code, side, 0, b)
	if err != nil {
		return nil, err
	}
	h := &onChip{device: dev, tensor: *b, recv: side == "recv"}
	if !b.Contiguous() {
		if h.recv && mem.Overlaps(b) {
			return nil, shared(code, 0)
		}
		h.tensor = *layout(b)
	}
	if h.before, err = produced(code, dev, stream); err != nil {
		return nil, err
	}
	if b.Contiguous() && !apart && g.env.device.direct && g.env.CUDAAware() {
		h.gate = h.before
		return h, nil
	}
	if err := g.stageMessage(h, code, side); err != nil {
		h.free()
		return nil, err
	}
	return h, nil
}

func (g *Group) stageMessage(h *onChip, code op.Code, side string) (err error) {
	if !g.env.device.staged {
		return status.New(status.Unsupported, "%s: %s tensor 0 is on CUDA device %d; PADDLEMPI_CUDA_PATHS leaves out \"staged\", and direct wants a CUDA-aware MPI and a contiguous tensor",
			code, side, h.device.Index)
	}
	if h.block, err = mem.GetPinned(h.device, h.tensor.Bytes()); err != nil {
		return err
	}
	if !h.block.Locked && !h.tensor.Contiguous() {
		return status.New(status.NoMemory, "%s: %s tensor 0 on CUDA device %d is not contiguous and needs %d bytes of pinned host memory, and the driver gives none: free some, or pass a contiguous copy",
			code, side, h.device.Index, h.tensor.Bytes())
	}
	if h.recv {
		return nil
	}
	h.gate, err = h.move(h.device.Out)
	return err
}

// move queues the copy between tensor and block on s and returns an event for it.
func (h *onChip) move(s cuda.Stream) (cuda.Event, error) {
	if err := h.device.StreamWait(s, h.before); err != nil {
		return 0, err
	}
	var err error
	switch {
	case !h.tensor.Contiguous():
		err = mem.MoveStrided(h.device, h.block.Data, &h.tensor, 0, h.tensor.Count, h.recv, s)
	case h.recv:
		err = h.device.Copy(h.tensor.Data, h.block.Data, h.tensor.Bytes(), s)
	default:
		err = h.device.Copy(h.block.Data, h.tensor.Data, h.tensor.Bytes(), s)
	}
	if err != nil {
		return 0, err
	}
	var e cuda.Event
	err = h.device.Mark(&e, s)
	return e, err
}

// data is what MPI is given.
func (h *onChip) data() unsafe.Pointer {
	if h.block != nil {
		return h.block.Data
	}
	return h.tensor.Data
}

// ready tells whether MPI may be called; so it may for a tensor on the host, nil.
func (h *onChip) ready() (bool, error) {
	if h == nil || h.gate == 0 {
		return true, nil
	}
	done, err := h.device.Query(h.gate)
	if done && h.gate != h.before {
		h.device.PutEvent(h.gate)
	}
	if done {
		h.gate = 0
	}
	return done, err
}

// arrived queues the copy of a received message from its block to the tensor.
func (h *onChip) arrived() (err error) {
	if h.block != nil {
		h.tail, err = h.move(h.device.In)
	}
	return err
}

// free gives back what the message holds. Copies from and to the block may be queued yet.
func (h *onChip) free() {
	if h.block != nil {
		s := h.device.Out
		if h.recv {
			s = h.device.In
		}
		mem.PutPinned(h.block, s)
		h.block = nil
	}
	if h.gate != 0 && h.gate != h.before {
		h.device.PutEvent(h.gate)
	}
	for _, e := range []*cuda.Event{&h.before, &h.tail} {
		if *e != 0 {
			h.device.PutEvent(*e)
			*e = 0
		}
	}
	h.gate = 0
}

// leaveDevice returns what of a message that ended well is still queued on a device.
func (m *message) leaveDevice(err error) *tail {
	for i := 0; i < m.n; i++ {
		if h := m.halves[i].chip; h != nil && h.tail != 0 && err == nil {
			t := &tail{h.device, h.tail}
			h.tail = 0
			return t
		}
	}
	return nil
}

// mayStart tells whether h may be given to MPI now. One whose tensor is not ready is put
// into a list, and every later one to or from the same rank behind it: MPI's messages do
// not overtake each other and are received in the order of the calls, so these are too.
func (g *Group) mayStart(h *half, ready bool) bool {
	if ready && g.held.Load() == 0 {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !h.queued {
		h.queued = true
		g.waiting = append(g.waiting, h)
		g.held.Add(1)
	}
	for _, first := range g.waiting {
		if first == h {
			break
		}
		if first.call.Fn == h.call.Fn && (first.peer == h.peer || first.peer < 0 || h.peer < 0) {
			return false
		}
	}
	return ready
}

// unqueue takes a half out of the list, in which it may not be.
func (g *Group) unqueue(h *half) {
	if !h.queued {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	h.queued = false
	for i, s := range g.waiting {
		if s == h {
			g.waiting = append(g.waiting[:i], g.waiting[i+1:]...)
			g.held.Add(-1)
			return
		}
	}
}
