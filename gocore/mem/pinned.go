package mem

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// PinnedLimit bounds the bytes of pinned blocks that are kept for the next GetPinned.
const PinnedLimit = 512 << 20

// Pinned is a block of host memory between a device and MPI.
type Pinned struct {
	Data  unsafe.Pointer
	Bytes int64
	// Locked is false where the driver gave no pinned memory: copies of the device then
	// make the caller wait, and kernels cannot reach the block.
	Locked bool

	class  int32
	device *cuda.Device // whose copies use it, since GetPinned
	busy   cuda.Event   // what still reads the block after PutPinned; 0: nothing
}

// pinned keeps the blocks that were given back. Pinning costs milliseconds and stops the
// device, so that blocks are kept as long as the limit allows, the latest first in.
//
// Invariant: bytes is the sum of the sizes of idle.
var pinned struct {
	sync.Mutex
	bytes int64
	idle  []*Pinned
}

// GetPinned returns a block of at least n bytes that nothing reads or writes, for copies of
// d. Where the driver has no pinned memory left the block is pageable: Locked tells.
// PutPinned gives it back.
func GetPinned(d *cuda.Device, n int64) (*Pinned, error) {
	class, size := classOf(n)
	pinned.Lock()
	for i := len(pinned.idle) - 1; i >= 0; i-- {
		b := pinned.idle[i]
		if b.class == class && b.free() {
			pinned.idle = slices.Delete(pinned.idle, i, i+1)
			pinned.bytes -= b.Bytes
			pinned.Unlock()
			b.device = d // whose streams and events PutPinned is told of
			return b, nil
		}
	}
	pinned.Unlock()
	b := &Pinned{Bytes: size, Locked: true, class: class, device: d}
	var err error
	if b.Data, err = d.HostAlloc(size); err == nil {
		return b, nil
	}
	if status.CodeOf(err) != status.NoMemory {
		return nil, err
	}
	TrimPinned()
	if b.Data, err = d.HostAlloc(size); err == nil {
		return b, nil
	}
	b.Locked = false
	b.Data, err = Alloc(n)
	return b, err
}

// free tells whether nothing reads the block any more.
func (b *Pinned) free() bool {
	if b.busy == 0 {
		return true
	}
	done, err := b.device.Query(b.busy)
	if !done || err != nil {
		return false
	}
	b.device.PutEvent(b.busy)
	b.busy = 0
	return true
}

// PutPinned gives a block back. What was queued by now on reader, a stream of the device it was
// taken for, or 0, may still use the block.
func PutPinned(b *Pinned, reader cuda.Stream) {
	if !b.Locked {
		// Copies from pageable memory have left it when they return.
		Free(b.Data)
		return
	}
	if reader != 0 {
		if b.device.Mark(&b.busy, reader) != nil {
			return // the context is broken: nobody can tell when the block is free
		}
	}
	pinned.Lock()
	pinned.idle = append(pinned.idle, b)
	pinned.bytes += b.Bytes
	drop := dropPinned(PinnedLimit)
	pinned.Unlock()
	releasePinned(drop)
}

// TrimPinned gives the blocks that nothing reads back to the driver.
func TrimPinned() {
	pinned.Lock()
	drop := dropPinned(0)
	pinned.Unlock()
	releasePinned(drop)
}

// dropPinned takes blocks out of the list, the oldest first, until at most limit bytes are
// left. The caller holds the lock.
func dropPinned(limit int64) (drop []*Pinned) {
	pinned.idle = slices.DeleteFunc(pinned.idle, func(b *Pinned) bool {
		if pinned.bytes <= limit || !b.free() {
			return false
		}
		pinned.bytes -= b.Bytes
		drop = append(drop, b)
		return true
	})
	return drop
}

func releasePinned(drop []*Pinned) {
	for _, b := range drop {
		_ = b.device.HostFree(b.Data) // a context that is broken keeps it
	}
}
