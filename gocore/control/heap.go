package control

import (
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// heapRequest is what the methods of the heap take: memory, and its file or its generation.
type heapRequest struct {
	Descriptor int `json:"descriptor"`
	memory
	Generation uint64 `json:"generation"`
}

// heapHas tells whether memory lies in this process's heap. Without a heap it does not.
func heapHas(r heapRequest, _ work.Interrupt) (any, error) {
	has := false
	if h, err := heap.OfProcess(); err == nil {
		_, has = h.Find(r.at(), r.Bytes)
	}
	return map[string]any{"has": has}, nil
}

// heapAdopt makes memory that the process has mapped from a file a part of its heap.
func heapAdopt(r heapRequest, _ work.Interrupt) (any, error) {
	w, err := registry.Initial()
	if err != nil {
		return nil, err
	}
	if !w.Env.Node.Opens() {
		return nil, status.New(status.Unsupported, "heap_adopt: the ranks of this node cannot open each other's files through /proc")
	}
	h, err := heap.OfProcess()
	if err != nil {
		return nil, err
	}
	generation, err := h.Adopt(r.Descriptor, r.at(), r.Bytes)
	return map[string]any{"generation": generation}, err
}

// heapDisown undoes heap_adopt. The memory may be unmapped before.
func heapDisown(r heapRequest, _ work.Interrupt) (any, error) {
	h, err := heap.OfProcess()
	if err == nil {
		h.Disown(r.Generation)
	}
	return done, err
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
	if w := registry.InitialOrNil(); w != nil {
		mapped, why := w.Env.Node.Heaps()
		info.Mapped, info.Why, info.Adopts, info.Opens = &mapped, why, w.Env.Node.Adopts(), w.Env.Node.Opens()
	}
	return info
}
