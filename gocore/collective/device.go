package collective

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/buffer"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// onDevice finds the device of a tensor that is in device memory, which is that of all others.
func (c checker) onDevice(side string, i int, b *op.Buf) error {
	var on *cuda.Device
	if c.args.DeviceArgs != nil {
		on = c.args.DeviceArgs.Device
	}
	dev, at, err := buffer.Beside(c.args.Code, side, i, b, on, "call")
	if err != nil {
		return err
	}
	if on == nil {
		c.args.DeviceArgs = &coll.DeviceArgs{Device: dev}
		c.mappable = true
	}
	c.mappable = c.mappable && (at.IPC || b.Count == 0)
	return nil
}

// checkDevice ends the check of a call with tensors in device memory. It records what the producing
// stream has queued by now, because that comes before the collective. Its flags say which paths
// this rank can take.
func (c checker) checkDevice() error {
	g := c.g
	pl, s := c.args.DeviceArgs, &g.Env.Device
	var err error
	if pl.Ready, err = buffer.Mark(c.args.Code, pl.Device, c.stream); err != nil {
		return err
	}
	pl.PieceBytes = s.Chunk
	c.flags |= coll.Device
	if s.IPC && g.Local && c.mappable && coll.Exportable(&c.args) {
		c.flags |= coll.IPC
	}
	if !s.Direct || !coll.DirectOK(&c.args) || !g.Env.Device.Aware.CUDAAware() {
		c.flags |= coll.NotDirect
	}
	if !s.Staged {
		c.flags |= coll.NotStaged
	}
	if coll.Bytes(&c.args) >= s.ReduceOnDevice {
		c.flags |= coll.DeviceReduce
	}
	return nil
}

// awaitEvent waits, before r is announced, for what a device has to do first.
func awaitEvent(r *request, device *cuda.Device, event cuda.Event) (err error) {
	waitErr := r.g.Members().Wait(func() bool {
		var done bool
		done, err = device.Query(event)
		return done || err != nil
	}, time.Now().Add(r.timeout))
	if waitErr == work.ErrDeadline {
		return status.New(status.Timeout, "%s timed out after %v: the stream of the tensors on CUDA device %d has not come to it; an operation queued there before has not ended",
			r.g.Members().Of(r.args.Code.String()), r.timeout, device.Index).WithRanks(r.g.Ranks[r.g.Rank])
	}
	if waitErr != nil {
		return waitErr
	}
	return err
}

// releaseDevice gives back what the call holds on its device, once its program has ended. It
// returns the event that ends what is still queued there, nil if nothing is.
func releaseDevice(pl *coll.DeviceArgs) *buffer.Tail {
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
	t := &buffer.Tail{Device: pl.Device, Event: pl.Tail}
	pl.Tail = 0
	return t
}
