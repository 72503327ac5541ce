package buffer

import (
	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Tail follows everything that an operation has queued on a device.
type Tail struct {
	Device *cuda.Device
	Event  cuda.Event
}

// Order makes a stream of the device wait for the event.
func (t *Tail) Order(stream uint64) error {
	return t.Device.StreamWait(cuda.Stream(stream), t.Event)
}

// Ended tells whether the device has reached the event.
func (t *Tail) Ended() (bool, error) { return t.Device.Query(t.Event) }

// Release gives the event back.
func (t *Tail) Release() { t.Device.PutEvent(t.Event) }

// Finish ends an operation with handle h. t, which may be nil, is what the operation left on a
// device. Finish returns whether it was the first to tell the caller.
func (t *Tail) Finish(h *work.Handle, r work.Result, err error) bool {
	if t == nil {
		return h.Finish(r, err)
	}
	r.Device = int32(t.Device.Index) + 1
	return h.FinishOn(t, r, err)
}

// Follow ends a synchronous operation: stream waits for t, which may be nil.
func (t *Tail) Follow(stream cuda.Stream, err error) error {
	if t == nil {
		return err
	}
	if err == nil {
		err = t.Order(uint64(stream))
	}
	t.Release()
	return err
}
