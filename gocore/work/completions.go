package work

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// released holds the operations that were released before their memory could be freed, and whose
// memory MPI does not use any more. A device may still use it.
var released releasedList

type releasedList struct {
	n    atomic.Int32 // len(list); can be read without mu
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
// freed, and whose memory can be freed now. It returns every number once, and 0 if there is none.
// It does not wait.
func NextReleased() uint64 {
	if released.n.Load() == 0 {
		return 0
	}
	released.mu.Lock()
	defer released.mu.Unlock()
	for i, h := range released.list {
		if h.memoryFree() {
			released.list = slices.Delete(released.list, i, i+1)
			released.n.Add(-1)
			h.Close()
			return h.id.Load()
		}
	}
	return 0
}

// Completion says how an operation ended. If Code is not OK, the error is in the handle.
type Completion struct {
	ID, Cookie uint64
	Code       status.Code
	// Released says that the number was released too: the memory may be freed, and the handle has
	// nothing to add.
	Released bool
	Result   Result
}

// completions holds the operations with Notify that have ended. There is one list in a process, not
// one in each engine, because its reader outlives destroy and init. Invariant: fd is readable while
// list is not empty.
type completions struct {
	once  sync.Once
	fd    int
	mu    sync.Mutex
	list  []*Handle
	late  []*Handle    // those with StateLate, until reportLate moves them to list
	nLate atomic.Int32 // len(late); can be read without mu
}

var completed completions

func (c *completions) open() int {
	c.once.Do(func() { c.fd = newEventfd() })
	return c.fd
}

func (c *completions) push(h *Handle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.late && !h.engine.progress.stopped.Load() { // no thread calls reportLate after stopped
		c.late = append(c.late, h)
		c.nLate.Store(int32(len(c.late)))
		h.engine.progress.wake(false)
		return
	}
	c.report(h)
}

// report appends to list. The caller holds mu.
func (c *completions) report(hs ...*Handle) {
	if len(c.list) == 0 {
		one := [8]byte{1} // little endian on every platform that we build for
		_, _ = syscall.Write(c.open(), one[:])
	}
	c.list = append(c.list, hs...)
}

// reportLate moves the completions with StateLate to list, because no goroutine has come to wait.
func (c *completions) reportLate() {
	if c.nLate.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.late) > 0 {
		c.report(c.late...)
		c.late = nil
		c.nLate.Store(0)
	}
}

// TakeCompletion takes the completion of an operation that NextCompletions has not returned yet. It
// returns false if there is none. NextCompletions never returns a completion that was taken.
func TakeCompletion(id uint64) bool {
	c := &completed
	same := func(h *Handle) bool { return h.id.Load() == id }
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.late, same); i >= 0 {
		c.late = slices.Delete(c.late, i, i+1)
		c.nLate.Store(int32(len(c.late)))
		return true
	}
	if i := slices.IndexFunc(c.list, same); i >= 0 {
		c.remove(i, i+1)
		return true
	}
	return false
}

// remove removes the handles from index i to j of list. The caller holds mu.
func (c *completions) remove(i, j int) {
	c.list = slices.Delete(c.list, i, j)
	if len(c.list) == 0 {
		var count [8]byte
		_, _ = syscall.Read(c.fd, count[:])
	}
}

// pop moves the oldest handles of the list to into, and returns how many.
func (c *completions) pop(into []*Handle) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(into, c.list)
	if n > 0 {
		c.remove(0, n)
	}
	return n
}

// CompletionFD returns an eventfd that is readable while NextCompletions would not wait.
func CompletionFD() int { return completed.open() }

// NextCompletions waits until operations with Notify have ended, up to limit (negative: for ever).
// It fills out with the oldest ones and returns their number. Every operation is returned once.
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

// completion returns how h, which is done, ended. It releases the number if Forget allows that.
func (h *Handle) completion() Completion {
	return Completion{ID: h.id.Load(), Cookie: h.cookie, Code: status.CodeOf(h.err), Released: h.Forget(), Result: h.result}
}
