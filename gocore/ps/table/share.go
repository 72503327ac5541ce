package table

// #cgo noescape pt_share
// #cgo nocallback pt_share
// #cgo noescape pt_push_share
// #cgo nocallback pt_push_share
// #cgo noescape pt_admit
// #cgo nocallback pt_admit
// #cgo noescape pt_settle
// #cgo nocallback pt_settle
// #include "table.h"
import "C"

import (
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
)

// shareBytes is the least that a thread gets of a batch: to wake one takes as long as some ten KiB.
const shareBytes = 512 << 10

// threads returns how many threads work on a batch of n ids.
func (t *Table) threads(n C.int64_t) int {
	bytes := int64(n) * int64(t.t.row_bytes+t.t.state_bytes)
	return int(max(1, min(int64(t.Threads), bytes/shareBytes)))
}

// together calls each with 0 to n - 1 at the same time, and returns the first result that is no
// success.
func together(n int, each func(i int) C.int) C.int {
	results := make([]C.int, n)
	var others sync.WaitGroup
	for i := 1; i < n; i++ {
		others.Add(1)
		go func() {
			defer others.Done()
			results[i] = each(i)
		}()
	}
	results[0] = each(0)
	others.Wait()
	for _, rc := range results {
		if rc != C.PT_OK {
			return rc
		}
	}
	return C.PT_OK
}

// push updates the rows of a batch, by several threads if it is large. The shards are dealt to
// them, so the sums of an id's gradients have the same order as with one.
func (t *Table) push(b *C.pt_batch) C.int {
	n := t.threads(b.n)
	if n == 1 {
		return C.pt_push(t.t, b)
	}
	size := int64(C.pt_share(t.t, b))
	room, err := mem.Alloc(int64(n) * size)
	if err != nil {
		return C.PT_NO_MEMORY
	}
	defer mem.Free(room)
	part := func(i int) C.int {
		return C.pt_push_share(t.t, b, unsafe.Add(room, int64(i)*size))
	}
	rc := together(n, part)
	if rc == C.PT_OK && C.pt_admit(t.t, b) > 0 {
		rc = together(n, part)
	}
	C.pt_settle(t.t, b)
	return rc
}

// copyOut copies the rows of a batch by pt_pull or pt_look, by several threads if it is large: each
// has some of the ids.
func (t *Table) copyOut(b *C.pt_batch, copied func(part *C.pt_batch) C.int) C.int {
	n := t.threads(b.n)
	if n == 1 || b.values == nil {
		return copied(b)
	}
	row := int64(elementBytes(b.dtype)) * t.Dim
	parts := make([]*C.pt_batch, n)
	for i := range parts {
		from, to := int64(b.n)*int64(i)/int64(n), int64(b.n)*int64(i+1)/int64(n)
		part := *b
		part.ids, part.n = unsafe.Add(b.ids, from*int64(b.id_bytes)), C.int64_t(to-from)
		part.values = unsafe.Add(b.values, from*row)
		part.scratch = unsafe.Add(b.scratch, 4*from) // a pull needs 4 bytes an id
		parts[i] = &part
	}
	return together(n, func(i int) C.int { return copied(parts[i]) })
}

func elementBytes(dtype C.int32_t) int {
	if dtype == C.PT_FLOAT32 {
		return 4
	}
	return 2
}
