package work

import (
	"sync"
	"sync/atomic"
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

// Handle is the caller's end of an operation. It is done exactly once. An operation
// that was given up is done before MPI has let go of its memory, which is settled later.
//
// Invariant: a handle that is settled is done, or in the next moment.
type Handle struct {
	engine *Engine
	id     atomic.Uint64 // 0 until registered
	// What the caller gave with the operation: see Watch.
	cookie uint64
	state  *uint32
	// claimed is set by the first call of Finish or GiveUp, done when it has written the outcome.
	claimed, done atomic.Bool
	settled       atomic.Bool
	// released says that the caller forgot the number, and wants to know when the memory is
	// free; passed that the handle is among those that NextReleased looks at.
	released, passed atomic.Bool
	// dropped says that the caller released it: nobody wants to hear of its end.
	dropped atomic.Bool
	// These are written before done and never after.
	result Result
	err    error
	tail   Tail // nil where nothing is queued on a device
	// listed says that the completion was, or is being, handed to NextCompletion, which
	// takes three things in any order: that it was asked for, the end, and a number.
	notify, listed atomic.Bool
	// closed says that nobody will ask for the tail any more, freed that it was released.
	closed, freed atomic.Bool
}

// NewHandle makes a handle that has no number; Register gives it one.
func (e *Engine) NewHandle() *Handle { return &Handle{engine: e} }

// Bits of the word that Watch is given, PMPI_STATE_* of capi/pmpi.h.
const (
	StateOver   uint32 = 1 // set here when the operation is over for its caller
	StateNotify uint32 = 2 // set by the caller, who wants the end to be reported
)

// Watch takes what op.Desc has for the caller's sake, before the operation starts: a number that goes
// back to the caller, and a word (nil: none) in the caller's memory in which the two tell each other,
// without a call, that it is over and that its end is to be reported. The word is there for as long
// as the operation's memory.
func (h *Handle) Watch(cookie uint64, state *uint32) { h.cookie, h.state = cookie, state }

// Register gives h a number by which the caller names it across the C ABI, until Release.
func Register(h *Handle) uint64 { return handles.add(h) }

// Lookup returns the handle of a number.
func Lookup(id uint64) (*Handle, error) {
	if h := handles.get(id); h != nil {
		return h, nil
	}
	return nil, status.New(status.Argument, "work %d does not exist: it was released", id)
}

// Release forgets the number; the operation goes on. free says that the operation's
// memory may be freed; if not, NextReleased returns the number when it may.
func Release(id uint64) (free bool) {
	h := handles.remove(id)
	if h == nil {
		return true
	}
	h.dropped.Store(true)
	switch {
	case h.free():
		h.Close()
		return true
	}
	h.released.Store(true)
	h.passOn()
	return false
}

// Forget takes the number of an operation back that has ended well and of which nothing is left to ask;
// it returns false where something is. Its end is reported all the same, if that was asked for.
func (h *Handle) Forget() bool {
	if !h.done.Load() || h.err != nil || h.tail != nil || !h.free() {
		return false
	}
	handles.remove(h.id.Load())
	return true
}

// Finish ends the operation: its caller is told, unless an earlier call did, and MPI is
// done with its memory. It returns whether this call was the first; calls may come from
// several goroutines at once.
func (h *Handle) Finish(r Result, err error) bool { return h.FinishOn(nil, r, err) }

// FinishOn is Finish for an operation that leaves tail (nil: nothing) queued on a device;
// tail is released if another call was first.
func (h *Handle) FinishOn(tail Tail, r Result, err error) bool {
	first := h.tell(tail, r, err, true)
	h.settled.Store(true)
	h.passOn()
	return first
}

// GiveUp tells the caller that the operation failed while MPI may still use its memory; Finish
// follows when MPI does not. It returns as Finish does.
func (h *Handle) GiveUp(err error) bool { return h.tell(nil, Result{}, err, false) }

func (h *Handle) tell(tail Tail, r Result, err error, settles bool) bool {
	if h.claimed.Swap(true) {
		if tail != nil {
			tail.Release()
		}
		for !h.done.Load() { // whoever was first is writing the outcome
			Yield()
		}
		return false
	}
	h.tail, h.result, h.err = tail, r, err
	if settles { // before done: who waits for that may free the memory at once
		h.settled.Store(true)
	}
	if h.state != nil && atomic.OrUint32(h.state, StateOver)&StateNotify != 0 {
		h.notify.Store(true)
	}
	h.done.Store(true) // from here on the caller's word may be gone
	if h.closed.Load() {
		h.freeTail()
	}
	h.list()
	return true
}

// Settled tells whether MPI is done with the operation's memory.
func (h *Handle) Settled() bool { return h.settled.Load() }

// passOn is called after each of the two, so that the last one finds both.
func (h *Handle) passOn() {
	if h.settled.Load() && h.released.Load() && !h.passed.Swap(true) {
		released.push(h)
	}
}

// free tells whether neither MPI nor a device uses the operation's memory.
func (h *Handle) free() bool {
	if !h.settled.Load() {
		return false
	}
	over, err := h.Ended()
	return over || err != nil // a device that failed does nothing any more
}

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
		completed.push(h)
	}
}

// Test tells, after taking the operation as far as it goes at once, whether it is over, on its
// device too.
func (h *Handle) Test() (bool, error) {
	if !h.done.Load() && h.engine.stopped.Load() == nil {
		h.engine.Tick()
	}
	return h.Ended()
}

// Wait drives the engine until h is done or limit (negative: none) ran out, which
// is an error of code NotReady that leaves the operation running.
func (h *Handle) Wait(limit time.Duration, interrupt Interrupt) (Result, error) {
	var deadline time.Time
	if limit >= 0 {
		deadline = time.Now().Add(min(limit, Longest))
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

// handles are those of all engines: a caller may ask for the outcome of an operation whose world was
// destroyed.
var handles handleTable

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

func (t *handleTable) remove(id uint64) *Handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.m[id]
	delete(t.m, id)
	return h
}
