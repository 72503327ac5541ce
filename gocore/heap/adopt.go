package heap

// #include "fork.h"
import "C"

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// A heap can adopt memory of a file that somebody else in this process has made and mapped, for
// instance PyTorch. It becomes a segment like the others, except that the heap neither allocates in
// it nor frees it, and that the other ranks open its file through /proc of this process.

// Adopt makes n bytes at p, which map the beginning of the open file fd, a segment of the heap. The
// heap keeps a descriptor of its own. Disown must follow before the memory is unmapped. The returned
// generation identifies the segment.
func (h *Heap) Adopt(fd int, p unsafe.Pointer, n int64) (generation uint64, err error) {
	if n <= 0 {
		return 0, status.New(status.Argument, "a heap cannot adopt %d bytes", n)
	}
	file, err := segment.Duplicate(fd)
	if err != nil {
		return 0, err
	}
	if file.Size() < n {
		file.Close()
		return 0, status.New(status.Argument, "a heap cannot adopt %d bytes of a file of %d", n, file.Size())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	slot := h.freeSlot()
	if slot < 0 {
		file.Close()
		return 0, errFull
	}
	if C.ph_keep(p, C.size_t(n), C.int(file.FD()), 0) != 0 {
		file.Close()
		return 0, status.New(status.NoMemory, "no memory to note a segment of a heap")
	}
	h.enter(&block{slot: slot, mem: unsafe.Slice((*byte)(p), n), file: file})
	return h.generation, nil
}

// Disown takes an adopted segment out of the heap. It is no error if there is none of that generation.
func (h *Heap) Disown(generation uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.slots {
		if b != nil && b.file != nil && b.generation == generation {
			h.leave(b)
			C.ph_forget(unsafe.Pointer(&b.mem[0]))
			b.file.Close()
		}
	}
}
