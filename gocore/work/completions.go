package work

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// released are the operations whose numbers were forgotten before their memory could be freed,
// and with which MPI is done by now; a device may not be.
var released releasedList

type releasedList struct {
	n    atomic.Int32 // len(list)
	mu   sync.Mutex
	list []*Handle
}

func (q *releasedList) push(h *Handle) {
	q.mu.Lock()
	q.list = append(q.list, h)
	q.n.Add(1)
	q.mu.Unlock()
}

// NextReleased returns the number of an operation that was released before its memory could be
// freed, and whose memory can be freed now; each once, 0 if there is none. It does not wait.
func NextReleased() uint64 {
	if released.n.Load() == 0 {
		return 0
	}
	released.mu.Lock()
	defer released.mu.Unlock()
	for i, h := range released.list {
		if h.free() {
			released.list = slices.Delete(released.list, i, i+1)
			released.n.Add(-1)
			h.Close()
			return h.id.Load()
		}
	}
	return 0
}

// Completion is how an operation ended, as far as it fits into numbers: where Code is not OK, the
// handle has the error.
type Completion struct {
	ID, Cookie uint64
	Code       status.Code
	// Released says that the number was forgotten, and the memory may be freed: nothing is left to ask.
	Released bool
	Result   Result
}

// completions are the operations with Notify that ended. The list belongs to the process, not to an
// engine: who reads it outlives destroy and init. Invariant: fd is readable while list is not empty.
type completions struct {
	once sync.Once
	fd   int
	mu   sync.Mutex
	list []*Handle
}

var completed completions

func (c *completions) open() int {
	c.once.Do(func() { c.fd = newEventfd() })
	return c.fd
}

func (c *completions) push(h *Handle) {
	fd := c.open()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, h)
	if len(c.list) == 1 {
		one := [8]byte{1} // little endian on every platform we build for
		_, _ = syscall.Write(fd, one[:])
	}
}

// pop takes the oldest ones.
func (c *completions) pop(into []*Handle) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(into, c.list)
	if n == 0 {
		return 0
	}
	c.list = slices.Delete(c.list, 0, n)
	if len(c.list) == 0 {
		var count [8]byte
		_, _ = syscall.Read(c.fd, count[:])
	}
	return n
}

// CompletionFD returns an eventfd that is readable while NextCompletions has something to return.
func CompletionFD() int { return completed.open() }

// NextCompletions waits up to limit (negative: for ever) for operations with Notify to end. It
// fills in the oldest of those that did, each once, and returns how many.
func NextCompletions(out []Completion, limit time.Duration) int {
	fd := completed.open()
	end := time.Now().Add(limit)
	var room [64]*Handle
	for {
		n := 0
		for _, h := range room[:completed.pop(room[:min(len(out), len(room))])] {
			if !h.dropped.Load() {
				out[n] = h.completion()
				n++
			}
		}
		if n > 0 {
			return n
		}
		ms := -1
		if limit >= 0 {
			left := time.Until(end)
			if left <= 0 {
				return 0
			}
			ms = int(min((left + time.Millisecond - 1).Milliseconds(), 1<<30))
		}
		readable(fd, ms)
	}
}

// completion tells how h, which is done, ended, and forgets it if nothing more can be asked of it.
func (h *Handle) completion() Completion {
	return Completion{ID: h.id.Load(), Cookie: h.cookie, Code: status.CodeOf(h.err), Released: h.Forget(), Result: h.result}
}
