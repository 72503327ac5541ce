package work

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
)

// Result is what an operation returns. Source (a group rank), Tag and Bytes describe the message of
// a receive or a probe.
type Result struct {
	Source int32
	Tag    int32
	Bytes  int64
	Device int32 // 1 + the number of the device that still works on the operation; 0 for none
}

// Tail is the work of an operation that is still queued on a device when the operation is over on
// the host.
type Tail interface {
	// Order makes a stream of the device wait for the tail.
	Order(stream uint64) error
	// Ended tells, without waiting, whether the device has finished the tail.
	Ended() (bool, error)
	// Release frees what Order and Ended need. Neither is called afterwards.
	Release()
}

// Handle is an operation as its caller sees it. It becomes done exactly once. An operation that was
// given up is done, although MPI may still use its memory. The handle becomes settled when MPI has
// stopped using the memory.
//
// Invariant: a settled handle is done, or becomes done at once.
type Handle struct {
	engine *Engine
	id     atomic.Uint64 // 0 until Register
	// The arguments of Watch.
	cookie uint64
	state  *uint32
	mark   trace.Mark // see Mark
	// claimed is set by the first call of Finish or GiveUp, done once that call has written the
	// outcome.
	claimed, done atomic.Bool
	settled       atomic.Bool
	// released says that the number was released before the memory could be freed. inReleased says
	// that the handle was put into the list of NextReleased.
	released, inReleased atomic.Bool
	// dropped says that the caller released the handle, so its end is not reported.
	dropped atomic.Bool
	// These fields are written before done is set, and never afterwards.
	result  Result
	err     error
	tail    Tail         // nil if nothing is queued on a device
	late    bool         // the caller set StateLate
	awaited atomic.Int64 // when a caller was first seen to wait, see monotonic; 0: never
	// hurry is one of the constants below.
	hurry atomic.Int32
	// inCompleted says that the handle was put into the list of NextCompletions. That needs notify,
	// done and a number, which may come in any order.
	notify, inCompleted atomic.Bool
	// closed says that Order and Ended will not be called any more, freed that the tail was
	// released.
	closed, freed atomic.Bool
}

// NewHandle makes a handle without a number. Register gives it one.
func (e *Engine) NewHandle() *Handle { return &Handle{engine: e} }

// The values of Handle.hurry.
const (
	unhurried int32 = iota
	hurried         // counted in Engine.urgent
	hurryOver       // the handle is done
)

// Bits of the word that is given to Watch: PMPI_STATE_* of capi/pmpi.h.
const (
	StateOver   uint32 = 1 // set by the core when the operation is over for its caller
	StateNotify uint32 = 2 // set by the caller, so that the end is reported
	// StateLate is set by the caller together with StateNotify. The end is then reported only when
	// no goroutine has waited for a while (patience), unless the caller took it (TakeCompletion).
	StateLate uint32 = 4
)

// Watch records what the caller passed in op.Desc, before the operation starts. cookie is returned
// with the completion. state (nil: none) is a word in the caller's memory, in which core and caller
// set the bits above without a call. The word must stay valid as long as the operation's memory.
func (h *Handle) Watch(cookie uint64, state *uint32) { h.cookie, h.state = cookie, state }

// Mark says which entry of the flight recorder is to have the time at which the caller begins to wait for the operation. It is called
// before the operation starts.
func (h *Handle) Mark(m trace.Mark) { h.mark = m }

// Register gives h a number, which stands for it across the C ABI until Release.
func Register(h *Handle) uint64 {
	handles.mu.Lock()
	handles.last++
	id := handles.last
	handles.m[id] = h
	handles.mu.Unlock()
	h.id.Store(id)
	h.listCompletion()
	return id
}

// Lookup returns the handle with a number.
func Lookup(id uint64) (*Handle, error) {
	if h := handles.get(id); h != nil {
		return h, nil
	}
	return nil, status.New(status.Argument, "work %d does not exist: it was released", id)
}

// Release forgets the number. The operation goes on. free says whether the caller may free the
// operation's memory now. If it may not, NextReleased returns the number once it may.
func Release(id uint64) (free bool) {
	h := handles.remove(id)
	if h == nil {
		return true
	}
	h.dropped.Store(true)
	if h.memoryFree() {
		h.Close()
		return true
	}
	h.released.Store(true)
	h.listReleased()
	return false
}

// MemoryFree returns whether the caller may free the memory of the operation with a number.
func MemoryFree(id uint64) bool {
	h := handles.get(id)
	return h == nil || h.memoryFree()
}

// Forget releases the number of an operation that succeeded and left nothing queued on a device. In
// any other case it returns false. A completion that the caller asked for is reported nevertheless.
func (h *Handle) Forget() bool {
	if !h.done.Load() || h.err != nil || h.tail != nil || !h.memoryFree() {
		return false
	}
	handles.remove(h.id.Load())
	return true
}

// Finish ends the operation: MPI is done with its memory, and the caller is told of the outcome
// unless an earlier call told it. Finish returns whether this call was the first. Calls may come
// from several goroutines at once.
func (h *Handle) Finish(r Result, err error) bool { return h.FinishOn(nil, r, err) }

// FinishOn is Finish for an operation that leaves tail queued on a device (nil: nothing). If
// another call was first, tail is released.
func (h *Handle) FinishOn(tail Tail, r Result, err error) bool {
	first := h.tell(tail, r, err, true)
	h.settled.Store(true)
	h.listReleased()
	return first
}

// GiveUp tells the caller that the operation failed while MPI may still use its memory. Finish
// follows when MPI is done. GiveUp returns whether it was the first call, as Finish does.
func (h *Handle) GiveUp(err error) bool { return h.tell(nil, Result{}, err, false) }

func (h *Handle) tell(tail Tail, r Result, err error, settles bool) bool {
	if h.claimed.Swap(true) {
		if tail != nil {
			tail.Release()
		}
		for !h.done.Load() { // the first call is writing the outcome
			Yield()
		}
		return false
	}
	h.tail, h.result, h.err = tail, r, err
	if settles { // before done, because a caller that sees done may free the memory at once
		h.settled.Store(true)
	}
	if h.state != nil {
		if wish := atomic.OrUint32(h.state, StateOver); wish&StateNotify != 0 {
			h.late = wish&StateLate != 0
			h.notify.Store(true)
		}
	}
	h.done.Store(true) // from here on the caller may free its word
	h.engine.rouse()
	if h.hurry.Swap(hurryOver) == hurried {
		h.engine.urgent.Add(-1)
	}
	if h.closed.Load() {
		h.releaseTail()
	}
	h.listCompletion()
	return true
}

// Settled tells whether MPI is done with the operation's memory.
func (h *Handle) Settled() bool { return h.settled.Load() }

// listReleased puts the handle into the list of NextReleased once both settled and released are set. It is called
// after each of them is set, so that the later call sees both.
func (h *Handle) listReleased() {
	if h.settled.Load() && h.released.Load() && !h.inReleased.Swap(true) {
		released.push(h)
	}
}

// memoryFree tells whether neither MPI nor a device uses the operation's memory.
func (h *Handle) memoryFree() bool {
	if !h.settled.Load() {
		return false
	}
	over, err := h.Ended()
	return over || err != nil // a device that failed does not touch the memory any more
}

// Order makes stream wait for what the operation left on its device. The operation must be done.
func (h *Handle) Order(stream uint64) error {
	switch {
	case !h.done.Load():
		return status.New(status.Argument, "order: the operation is not over; wait for it first")
	case h.tail == nil || h.err != nil:
		return nil
	}
	return h.tail.Order(stream)
}

// Ended tells, without waiting, whether the operation is over on the host and on its device.
func (h *Handle) Ended() (bool, error) {
	if !h.done.Load() || h.tail == nil || h.err != nil {
		return h.done.Load(), nil
	}
	return h.tail.Ended()
}

// Follow ends a synchronous operation whose error was err. If err is nil, stream waits for what the
// operation left on its device. The handle must not be used afterwards, except for Settled.
func (h *Handle) Follow(stream uint64, err error) error {
	if err == nil {
		err = h.Order(stream)
	}
	h.Close()
	return err
}

// Close releases what the handle holds on a device. If the operation is not done, this happens when it is.
func (h *Handle) Close() {
	if h.closed.Swap(true) || !h.done.Load() {
		return
	}
	h.releaseTail()
}

func (h *Handle) releaseTail() {
	if h.tail != nil && !h.freed.Swap(true) {
		h.tail.Release()
	}
}

// Done tells whether the operation is over for its caller.
func (h *Handle) Done() bool { return h.done.Load() }

// Result returns the outcome. It is valid once Done.
func (h *Handle) Result() (Result, error) { return h.result, h.err }

// Notify asks that the end of the operation be reported by NextCompletions.
func (h *Handle) Notify() {
	h.notify.Store(true)
	h.engine.StartProgress()
	h.Hurry()
	h.listCompletion()
}

// Hurry says that no goroutine is going to wait for the operation. The progress thread then takes it
// further at once, and does not leave it to callers first.
func (h *Handle) Hurry() {
	h.await()
	h.engine.urgent.Add(1)
	if h.hurry.CompareAndSwap(unhurried, hurried) {
		h.engine.progress.wake(true)
	} else {
		h.engine.urgent.Add(-1)
	}
}

// await notes that somebody waits for the operation.
func (h *Handle) await() {
	if h.awaited.Load() == 0 {
		h.awaited.CompareAndSwap(0, monotonic())
	}
}

// Awaited returns when somebody began to wait for the operation, in Wait or for its completion. It returns the zero
// time if nobody has.
func (h *Handle) Awaited() time.Time {
	if at := h.awaited.Load(); at != 0 {
		return started.Add(time.Duration(at))
	}
	return time.Time{}
}

// listCompletion puts the handle into the list of NextCompletions once notify, done and the number are set. It is
// called after each of them is set, so that the last call sees all three.
func (h *Handle) listCompletion() {
	if h.notify.Load() && h.done.Load() && h.id.Load() != 0 && !h.inCompleted.Swap(true) {
		completed.push(h)
	}
}

// Test advances the operation without waiting. It returns whether the operation is over, on the
// host and on its device.
func (h *Handle) Test() (bool, error) {
	if !h.done.Load() && h.engine.stopped.Load() == nil {
		h.engine.Tick()
	}
	return h.Ended()
}

// Wait drives the engine until h is done, or until limit has passed (negative: no limit). In the
// latter case it returns an error of code NotReady, and the operation goes on.
func (h *Handle) Wait(limit time.Duration, interrupt Interrupt) (Result, error) {
	var deadline time.Time
	if limit >= 0 {
		deadline = time.Now().Add(min(limit, Longest))
	}
	switch err := h.engine.wait(h, true, h.Done, deadline, interrupt); err {
	case nil:
		return h.result, h.err
	case ErrDeadline:
		return Result{}, status.New(status.NotReady, "wait: not complete after %v; the operation goes on, wait again or longer", limit)
	default:
		return Result{}, err
	}
}

// handles holds the handles of all engines, because a caller may ask for the outcome of an operation whose
// world was destroyed. No number is used twice in a process, not even after a destroy and another init.
var handles = handleTable{m: map[uint64]*Handle{}}

type handleTable struct {
	mu   sync.Mutex
	last uint64 // the number that was given last
	m    map[uint64]*Handle
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
