package work

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ids is a list of numbers of operations. The lists belong to the process, not to an
// engine: who reads them outlives destroy and init.
type ids struct {
	n    atomic.Int32 // len(list)
	mu   sync.Mutex
	list []uint64
}

func (q *ids) push(id uint64) {
	q.mu.Lock()
	q.list = append(q.list, id)
	q.n.Add(1)
	q.mu.Unlock()
}

// pop returns the oldest number, 0 if there is none.
func (q *ids) pop() uint64 {
	if q.n.Load() == 0 {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return 0
	}
	id := q.list[0]
	q.list = q.list[1:]
	q.n.Add(-1)
	return id
}

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

// completions is the list behind NextCompletion.
type completions struct {
	once sync.Once
	fd   int
	ids
}

var completed completions

func (c *completions) open() int {
	c.once.Do(func() { c.fd = newEventfd() })
	return c.fd
}

func (c *completions) push(id uint64) {
	fd := c.open()
	c.ids.push(id)
	one := [8]byte{1} // little endian on every platform we build for
	_, _ = syscall.Write(fd, one[:])
}

// CompletionFD returns an eventfd (semaphore) that is readable while NextCompletion
// has something to return.
func CompletionFD() int { return completed.open() }

// NextCompletion waits up to limit (negative: for ever) for an operation with
// Notify to end and returns its number, 0 if none did.
func NextCompletion(limit time.Duration) uint64 {
	fd := completed.open()
	end := time.Now().Add(limit)
	for {
		ms := -1
		if limit >= 0 {
			ms = int(min(max(0, time.Until(end)).Milliseconds(), 1<<30))
		}
		if readable(fd, ms) {
			var count [8]byte
			if n, _ := syscall.Read(fd, count[:]); n == 8 {
				if id := completed.pop(); id != 0 {
					return id
				}
			}
		}
		if limit >= 0 && !time.Now().Before(end) {
			return 0
		}
	}
}
