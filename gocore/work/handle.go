package work

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Result is what an operation found out: for a receive or a probe, whom the
// message came from (group rank), its tag and its length.
type Result struct {
	Source int32
	Tag    int32
	Bytes  int64
	Device int32 // 1 + number of the device that still works on it; 0: none
}

// Tail is what an operation leaves queued on a device when it is done for the host.
type Tail interface {
	// Order makes a stream of the device wait for it.
	Order(stream uint64) error
	// Ended tells, without waiting, whether the device is done too.
	Ended() (bool, error)
	// Release gives back what Order and Ended need; they are not called again.
	Release()
}

// Handle is the caller's end of an operation. It is done exactly once.
type Handle struct {
	engine *Engine
	id     atomic.Uint64 // 0 until registered
	done   atomic.Bool
	// result and err are written before done and never after.
	result Result
	err    error
	tail   Tail
	// listed says that the completion was, or is being, handed to NextCompletion, which
	// takes three things in any order: that it was asked for, the end, and a number.
	notify, listed atomic.Bool
	// closed says that nobody will ask for the tail any more, freed that it was released.
	closed, freed atomic.Bool
}

// NewHandle makes a handle that the table does not know; Register adds it.
func (e *Engine) NewHandle() *Handle { return &Handle{engine: e} }

// Register gives h a number by which the caller names it across the C ABI.
func (e *Engine) Register(h *Handle) uint64 { return e.handles.add(h) }

// Lookup returns the handle of a number.
func (e *Engine) Lookup(id uint64) (*Handle, error) {
	if h := e.handles.get(id); h != nil {
		return h, nil
	}
	return nil, status.New(status.Argument, "work %d does not exist: it was released, or belongs to a group that was destroyed", id)
}

// Release forgets the number; the operation goes on.
func (e *Engine) Release(id uint64) { e.handles.remove(id) }

// Finish ends the operation for its caller. Only the first call counts.
func (h *Handle) Finish(r Result, err error) {
	if h.done.Load() {
		return
	}
	h.result, h.err = r, err
	h.done.Store(true)
	if h.closed.Load() {
		h.freeTail()
	}
	h.list()
}

// SetTail says, before Finish, what stays queued on a device.
func (h *Handle) SetTail(t Tail) { h.tail = t }

// Order makes stream wait for what the operation, which is done, left on its device.
func (h *Handle) Order(stream uint64) error {
	switch {
	case !h.done.Load():
		return status.New(status.Argument, "order: the operation is not over; wait for it first")
	case h.tail == nil || h.err != nil:
		return nil
	}
	return h.tail.Order(stream)
}

// Ended tells, without waiting, whether the operation is over on its device too.
func (h *Handle) Ended() (bool, error) {
	if !h.done.Load() || h.tail == nil || h.err != nil {
		return h.done.Load(), nil
	}
	return h.tail.Ended()
}

// Follow ends a synchronous operation that ended with err: where it is nil stream waits for
// what the operation left on its device. Nobody asks for the handle any more.
func (h *Handle) Follow(stream uint64, err error) error {
	if err == nil {
		err = h.Order(stream)
	}
	h.Close()
	return err
}

// Close gives back what the handle holds on a device, now or when the operation is done.
func (h *Handle) Close() {
	if h.closed.Swap(true) || !h.done.Load() {
		return
	}
	h.freeTail()
}

func (h *Handle) freeTail() {
	if h.tail != nil && !h.freed.Swap(true) {
		h.tail.Release()
	}
}

// Done tells whether the operation is over.
func (h *Handle) Done() bool { return h.done.Load() }

// Result returns the outcome; valid once Done.
func (h *Handle) Result() (Result, error) { return h.result, h.err }

// Notify asks that the end of the operation be reported by NextCompletion.
func (h *Handle) Notify() {
	h.notify.Store(true)
	h.engine.StartProgress()
	h.list()
}

// list is called after each of the three, so that the last one finds them all.
func (h *Handle) list() {
	if h.notify.Load() && h.done.Load() && h.id.Load() != 0 && !h.listed.Swap(true) {
		completed.push(h.id.Load())
	}
}

// Wait drives the engine until h is done or limit (negative: none) ran out, which
// is an error of code NotReady that leaves the operation running.
func (h *Handle) Wait(limit time.Duration, interrupt Interrupt) (Result, error) {
	var deadline time.Time
	if limit >= 0 {
		deadline = time.Now().Add(limit)
	}
	switch err := h.engine.Wait(h.Done, deadline, interrupt); err {
	case nil:
		return h.result, h.err
	case ErrDeadline:
		return Result{}, status.New(status.NotReady, "wait: not complete after %v; the operation goes on, wait again or longer", limit)
	default:
		return Result{}, err
	}
}

// lastID numbers the handles of the whole process, so that a number is never
// used twice, not even across destroy and init.
var lastID atomic.Uint64

type handleTable struct {
	mu sync.Mutex
	m  map[uint64]*Handle
}

func (t *handleTable) add(h *Handle) uint64 {
	id := lastID.Add(1)
	t.mu.Lock()
	if t.m == nil {
		t.m = make(map[uint64]*Handle)
	}
	t.m[id] = h
	t.mu.Unlock()
	h.id.Store(id)
	h.list()
	return id
}

func (t *handleTable) get(id uint64) *Handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.m[id]
}

func (t *handleTable) remove(id uint64) {
	t.mu.Lock()
	h := t.m[id]
	delete(t.m, id)
	t.mu.Unlock()
	if h != nil {
		h.Close()
	}
}

// completions is the list behind NextCompletion. It belongs to the process, not to
// an engine, so that the thread which reads it outlives destroy and init.
type completions struct {
	once sync.Once
	fd   int
	mu   sync.Mutex
	ids  []uint64
}

var completed completions

func (c *completions) open() int {
	c.once.Do(func() { c.fd = newEventfd() })
	return c.fd
}

func (c *completions) push(id uint64) {
	fd := c.open()
	c.mu.Lock()
	c.ids = append(c.ids, id)
	c.mu.Unlock()
	one := [8]byte{1} // little endian on every platform we build for
	_, _ = syscall.Write(fd, one[:])
}

func (c *completions) pop() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ids) == 0 {
		return 0
	}
	id := c.ids[0]
	c.ids = c.ids[1:]
	return id
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
			ms = int(max(0, time.Until(end)).Milliseconds())
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
