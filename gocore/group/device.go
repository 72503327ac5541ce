package group

import (
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/ipc"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// locate returns the device of a tensor that its caller says is on one, and where exactly its
// memory is.
func locate(code op.Code, side string, i int, b *op.Buf) (*cuda.Device, cuda.Location, error) {
	if b.DeviceType != op.DeviceCUDA && b.DeviceType != op.DeviceCUDAManaged {
		return nil, cuda.Location{}, status.New(status.Unsupported, "%s: %s tensor %d is in the memory of a device of DLPack type %d; CUDA's and the host's are served: copy it to the CPU first",
			code, side, i, b.DeviceType)
	}
	driver, err := cuda.Open()
	if err != nil {
		return nil, cuda.Location{}, status.New(status.Unsupported, "%s: %s tensor %d is on CUDA device %d: %v", code, side, i, b.DeviceID, err)
	}
	at := cuda.Location{Kind: cuda.OnDevice, Device: int(b.DeviceID)}
	if b.Count > 0 {
		if at, err = driver.Where(b.Data); err != nil {
			return nil, at, err
		}
		switch at.Kind {
		case cuda.Host:
			return nil, at, status.New(status.Argument, "%s: %s tensor %d says that it is on CUDA device %d, but the driver does not know its memory at %p: it was freed, or belongs to another driver",
				code, side, i, b.DeviceID, b.Data)
		case cuda.Pinned, cuda.Managed:
			at.Device = int(b.DeviceID)
		}
	}
	dev, err := driver.Device(at.Device)
	return dev, at, err
}

// devicePart describes a tensor of a collective that is in device memory.
func (c *call) devicePart(d *op.Desc, side string, i int, b *op.Buf) (coll.Part, error) {
	dev, at, err := locate(d.Code, side, i, b)
	if err != nil {
		return coll.Part{}, err
	}
	if c.args.DeviceCall == nil {
		c.args.DeviceCall = &coll.DeviceCall{Device: dev}
		c.mappable = true
	}
	if on := c.args.DeviceCall.Device; on != dev {
		return coll.Part{}, status.New(status.Argument, "%s: %s tensor %d is on CUDA device %d, another tensor of the call on device %d; all device tensors of a call must be on one device",
			d.Code, side, i, dev.Index, on.Index)
	}
	c.mappable = c.mappable && (at.IPC || b.Count == 0)
	part := coll.Part{Data: b.Data, Count: b.Count, OnDevice: true}
	if !b.Contiguous() && b.Count > 0 {
		part.Layout = layout(b)
	}
	return part, nil
}

// layout returns b with copies of its shape and strides, which the caller keeps only during Submit.
// Only Go reads the copies.
func layout(b *op.Buf) *op.Buf {
	described := *b
	dims := append(append(make([]int64, 0, 2*b.NDim), b.Dims()...), b.Steps()...)
	described.Shape, described.Strides = unsafe.Pointer(&dims[0]), unsafe.Pointer(&dims[b.NDim])
	return &described
}

// checkDevice ends the check of a call with tensors in device memory. It records what the producing
// stream has queued by now, because that comes before the collective. Its flags say which paths
// this rank can take.
func (g *Group) checkDevice(c *call, stream cuda.Stream) error {
	pl, s := c.args.DeviceCall, &g.env.Device
	var err error
	if pl.Ready, err = markStream(c.args.Code, pl.Device, stream); err != nil {
		return err
	}
	c.stream = stream
	pl.PieceBytes = s.Chunk
	c.flags |= coll.Device
	if s.IPC && g.local && c.mappable && coll.Exportable(&c.args) {
		c.flags |= coll.IPC
	}
	if !s.Direct || !coll.DirectOK(&c.args) || !g.env.Aware.CUDAAware() {
		c.flags |= coll.NotDirect
	}
	if !s.Staged {
		c.flags |= coll.NotStaged
	}
	if s.ReduceOnDevice {
		c.flags |= coll.DeviceReduce
	}
	return nil
}

// awaitDevice waits until the producing stream has finished what it had queued before a synchronous
// call. It waits before the call is announced, because the wait can be long, and neither the
// deadline nor Ctrl-C can end the blocking MPI calls that follow. It does not wait if the ranks may
// map each other's memory: then the devices wait, not the host.
func (g *Group) awaitDevice(c *call) error {
	pl := c.args.DeviceCall
	if pl == nil || c.flags&coll.IPC != 0 {
		return nil
	}
	var err error
	waitErr := g.wait(func() bool {
		var done bool
		done, err = pl.Device.Query(pl.Ready)
		return done || err != nil
	}, time.Now().Add(c.timeout))
	if waitErr == work.ErrDeadline {
		return status.New(status.Timeout, "%s on the group of ranks %s timed out after %v: the stream of the tensors on CUDA device %d has not come to it; an operation queued there before has not ended",
			c.args.Code, status.Brief(g.Ranks), c.timeout, pl.Device.Index).WithRanks(g.Ranks[g.Rank])
	}
	if waitErr != nil {
		return waitErr
	}
	return err
}

// markStream returns an event that follows everything that stream has queued by now.
func markStream(code op.Code, dev *cuda.Device, stream cuda.Stream) (cuda.Event, error) {
	capturing, err := dev.Capturing(stream)
	if err != nil {
		return 0, err
	}
	if capturing {
		return 0, status.New(status.Unsupported, "%s: the stream of the tensors on CUDA device %d is being captured into a graph, and MPI cannot be part of one: call it outside of the capture", code, dev.Index)
	}
	var e cuda.Event
	err = dev.Mark(&e, stream)
	return e, err
}

// agreeOnDevice completes the DeviceCall of a call when all members have arrived. A call whose own
// tensors are on the host gets one too, because another member's tensors are in device memory.
func (c *call) agreeOnDevice(g *Group) {
	if c.args.DeviceCall == nil {
		c.args.DeviceCall = &coll.DeviceCall{PieceBytes: g.env.Device.Chunk}
	}
	if g.local && c.args.Agreed&coll.IPC != 0 {
		if g.peers == nil {
			g.peers = ipc.New(g.Rank, g.Size)
		}
		c.args.DeviceCall.Peers = g.peers
	}
}

// releaseDevice gives back what the call holds on its device, once its program has ended. It
// returns the event that ends what is still queued there, nil if nothing is.
func (c *call) releaseDevice() *endEvent {
	pl := c.args.DeviceCall
	if pl == nil || pl.Device == nil {
		return nil
	}
	if pl.Tail == 0 && pl.Ready != 0 {
		// The call queued nothing, but what the producing stream had queued before it may still
		// run. The values that are in the tensors after the call are those, so a stream that waits
		// for the call waits for them.
		if done, err := pl.Device.Query(pl.Ready); err == nil && !done {
			pl.Tail, pl.Ready = pl.Ready, 0
		}
	}
	if pl.Ready != 0 {
		pl.Device.PutEvent(pl.Ready)
		pl.Ready = 0
	}
	if pl.Tail == 0 {
		return nil
	}
	t := &endEvent{pl.Device, pl.Tail}
	pl.Tail = 0
	return t
}

// drop gives back what a call holds that did not run to its end.
func (c *call) drop() {
	for i := range c.staged {
		c.staged[i].free()
	}
	c.staged = nil
	c.freeSlot()
	c.prog.Close()
	if t := c.releaseDevice(); t != nil {
		t.Release()
	}
}

// endEvent follows everything that an operation has queued on a device.
type endEvent struct {
	device *cuda.Device
	event  cuda.Event
}

// Order makes a stream of the device wait for the event.
func (t *endEvent) Order(stream uint64) error {
	return t.device.StreamWait(cuda.Stream(stream), t.event)
}

// Ended tells whether the device has reached the event.
func (t *endEvent) Ended() (bool, error) { return t.device.Query(t.event) }

// Release gives the event back.
func (t *endEvent) Release() { t.device.PutEvent(t.event) }

// finish ends an operation with handle h. t, which may be nil, is what the operation left on a
// device. finish returns whether it was the first to tell the caller.
func (t *endEvent) finish(h *work.Handle, r work.Result, err error) bool {
	if t == nil {
		return h.Finish(r, err)
	}
	r.Device = int32(t.device.Index) + 1
	return h.FinishOn(t, r, err)
}

// follow ends a synchronous operation: stream waits for t, which may be nil.
func (t *endEvent) follow(stream cuda.Stream, err error) error {
	if t == nil {
		return err
	}
	if err == nil {
		err = t.Order(uint64(stream))
	}
	t.Release()
	return err
}
