package gocore

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// HeapAlloc takes memory of this process's heap. It works before init and after destroy.
func HeapAlloc(bytes int64) (unsafe.Pointer, error) {
	h, err := heap.OfProcess()
	if err != nil {
		return nil, err
	}
	return h.Alloc(bytes)
}

// HeapFree gives memory of HeapAlloc back.
func HeapFree(p unsafe.Pointer) error {
	h, err := heap.OfProcess()
	if err != nil {
		return err
	}
	return h.Free(p)
}

// controlHeapHas tells whether memory lies in this process's heap. Without a heap it does not.
func controlHeapHas(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Address uint64 `json:"address"`
		Bytes   int64  `json:"bytes"`
	}
	if err := method.Parse("heap_has", request, &r); err != nil {
		return nil, err
	}
	has := false
	if h, err := heap.OfProcess(); err == nil {
		_, has = h.Find(*(*unsafe.Pointer)(unsafe.Pointer(&r.Address)), r.Bytes)
	}
	return map[string]any{"has": has}, nil
}

// controlHeapAdopt makes memory that the process has mapped from a file a part of its heap.
func controlHeapAdopt(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Descriptor int    `json:"descriptor"`
		Address    uint64 `json:"address"`
		Bytes      int64  `json:"bytes"`
	}
	if err := method.Parse("heap_adopt", request, &r); err != nil {
		return nil, err
	}
	w, err := initialWorld()
	if err != nil {
		return nil, err
	}
	if !w.env.Node.Opens() {
		return nil, status.New(status.Unsupported, "heap_adopt: the ranks of this node cannot open each other's files through /proc")
	}
	h, err := heap.OfProcess()
	if err != nil {
		return nil, err
	}
	generation, err := h.Adopt(r.Descriptor, *(*unsafe.Pointer)(unsafe.Pointer(&r.Address)), r.Bytes)
	return map[string]any{"generation": generation}, err
}

// controlHeapDisown undoes heap_adopt. The memory may be unmapped before.
func controlHeapDisown(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Generation uint64 `json:"generation"`
	}
	if err := method.Parse("heap_disown", request, &r); err != nil {
		return nil, err
	}
	h, err := heap.OfProcess()
	if err == nil {
		h.Disown(r.Generation)
	}
	return struct{}{}, err
}

// heapInfo describes this process's heap, and whether the ranks of its node can map it.
type heapInfo struct {
	Reserved int64  `json:"reserved"` // bytes that the heap holds of the machine
	Used     int64  `json:"used"`     // bytes that are allocated
	Adopted  int64  `json:"adopted"`  // bytes of memory that the heap shares but has not made (heap_adopt)
	Left     *int64 `json:"left"`     // bytes that limits of this process leave; nil without a limit
	Mapped   *bool  `json:"mapped"`   // whether the ranks of this node map each other's heaps; nil before init
	Adopts   bool   `json:"adopts"`   // whether heap_adopt works now, and other ranks map the heap
	Opens    bool   `json:"opens"`    // whether heap_adopt works now
	Why      string `json:"why"`      // why they do not, or why there is no heap; "" otherwise
}

func describeHeap() heapInfo {
	var info heapInfo
	h, err := heap.OfProcess()
	if err != nil {
		info.Why = err.Error()
		return info
	}
	info.Reserved, info.Used, info.Adopted = h.Sizes()
	if left, limited := heap.Left(info.Reserved); limited {
		info.Left = &left
	}
	if w := initial.Load(); w != nil {
		mapped, why := w.env.Node.Heaps()
		info.Mapped, info.Why, info.Adopts, info.Opens = &mapped, why, w.env.Node.Adopts(), w.env.Node.Opens()
	}
	return info
}
