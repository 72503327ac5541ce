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
	// Locked is false if the driver gave no pinned memory. Copies between the block and a device
	// then make the caller wait, and kernels cannot reach the block.
	Locked bool

	class  int32
	device *cuda.Device // the device that GetPinned was called for
	busy   cuda.Event   // the work that may still read the block after PutPinned; 0: none
}

// pinned keeps the blocks that were given back. Pinning costs milliseconds and stops the device, so
// blocks are kept as long as the limit allows. The block that was given back last is used first.
//
// Invariant: bytes is the sum of the sizes of idle.
var pinned struct {
	sync.Mutex
	bytes int64
	idle  []*Pinned
}

// GetPinned returns a block of at least n bytes for copies of d. Nothing else reads or writes the
// block. If the driver has no pinned memory left, the block is pageable and Locked is false.
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
			b.device = d // PutPinned uses its streams and events
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

// free tells whether queued work has stopped reading the block.
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

// PutPinned gives a block back. reader is a stream of the block's device, or 0. The work that is
// queued on it now may still use the block.
func PutPinned(b *Pinned, reader cuda.Stream) {
	if !b.Locked {
		// A copy from pageable memory has read it all when the call returns.
		Free(b.Data)
		return
	}
	if reader != 0 {
		if b.device.Mark(&b.busy, reader) != nil {
			return // the context is broken, so the end of its work cannot be seen
		}
	}
	pinned.Lock()
	pinned.idle = append(pinned.idle, b)
	pinned.bytes += b.Bytes
	drop := dropPinned(PinnedLimit)
	pinned.Unlock()
	releasePinned(drop)
}

// TrimPinned gives the blocks that no work reads back to the driver.
func TrimPinned() {
	pinned.Lock()
	drop := dropPinned(0)
	pinned.Unlock()
	releasePinned(drop)
}

// dropPinned takes blocks that no work reads out of the list, the oldest first, until at most limit
// bytes are left. The caller holds the lock.
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
		_ = b.device.HostFree(b.Data) // fails in a broken context, which then keeps the block
	}
}
