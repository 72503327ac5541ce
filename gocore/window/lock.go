package window

// #include "access.h"
import "C"

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Every member's memory has a lock, which one member holds alone or several hold shared. It keeps nobody from the
// memory: it excludes those that take it. Its state is in the control block. For the members of other nodes the owner writes it,
// as their messages say.
//
// A member that wants the lock alone writes itself into exclusive, if nobody is there, and waits until nobody reads. A member
// that wants it shared says that it reads, and takes that back if somebody is in exclusive: who comes second sees the other.

// held says how this rank holds the lock of a member.
type held uint8

const (
	notHeld held = iota
	taking       // a thread of this rank waits for it
	heldAlone
	heldShared
)

// tryLock takes the lock of a member's memory for another one, or says who holds it.
func (m *memory) tryLock(member int, shared bool, size int) (taken bool, holder int) {
	exclusive, me := word(&m.control.exclusive), uint32(member)+1
	if shared {
		reading := word(&slotOf(m.control, member).reading)
		if atomic.LoadUint32(exclusive) == 0 {
			atomic.StoreUint32(reading, 1)
			if atomic.LoadUint32(exclusive) == 0 {
				return true, 0
			}
			atomic.StoreUint32(reading, 0)
			work.Ring() // who wants it alone may have seen this
		}
		return false, int(atomic.LoadUint32(exclusive)) - 1
	}
	if !atomic.CompareAndSwapUint32(exclusive, 0, me) && atomic.LoadUint32(exclusive) != me {
		return false, int(atomic.LoadUint32(exclusive)) - 1
	}
	for r := range size {
		if atomic.LoadUint32(word(&slotOf(m.control, r).reading)) != 0 {
			return false, r
		}
	}
	return true, 0
}

// unlock gives the lock back that a member has, or waits for.
func (m *memory) unlock(member int) {
	atomic.StoreUint32(word(&slotOf(m.control, member).reading), 0)
	atomic.CompareAndSwapUint32(word(&m.control.exclusive), uint32(member)+1, 0)
	work.Ring()
}

// lock waits until this rank has the lock of member r.
func (w *Window) lock(r int, shared bool, deadline time.Time) error {
	what := Lock.String()
	w.mu.Lock()
	if w.held[r] != notHeld {
		w.mu.Unlock()
		return status.New(status.Argument, "%s: rank=%d is locked already by this rank", what, r)
	}
	w.held[r] = taking
	w.mu.Unlock()
	var err error
	if w.members.near(r) {
		err = w.lockNear(what, r, shared, deadline)
	} else {
		err = w.lockFar(what, r, shared, deadline)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
		w.held[r] = notHeld
	case shared:
		w.held[r] = heldShared
	default:
		w.held[r] = heldAlone
	}
	return err
}

func (w *Window) lockNear(what string, r int, shared bool, deadline time.Time) error {
	m, holder := w.members.memoryOf(r), r
	var err error
	try := func() bool {
		if err = w.members.enter(what, r); err != nil {
			return true
		}
		defer w.members.leave(r)
		taken, by := m.tryLock(w.ws.me, shared, w.ws.size)
		if !taken && by >= 0 && by < w.ws.size {
			holder = by
		}
		return taken
	}
	if try() {
		return err
	}
	late := w.awaitBy(w.ws.g.WaitRung, what, deadline, func() int { return holder }, try)
	if late == nil {
		late = err
	}
	if late != nil && w.members.enter(what, r) == nil {
		m.unlock(w.ws.me)
		w.members.leave(r)
	}
	return late
}

// unlock gives the lock of member r back, after this rank's accesses to it.
func (w *Window) unlock(r int, deadline time.Time) error {
	what := Unlock.String()
	w.mu.Lock()
	if w.held[r] != heldAlone && w.held[r] != heldShared {
		w.mu.Unlock()
		return status.New(status.Argument, "%s: rank=%d is not locked by this rank", what, r)
	}
	w.held[r] = notHeld
	w.mu.Unlock()
	err := w.flush(what, r, deadline)
	if !w.members.near(r) {
		if _, failure := w.send(what, r, &call{head: head{code: Unlock}}, deadline); err == nil {
			err = failure
		}
		return err
	}
	if failure := w.members.enter(what, r); failure != nil {
		return failure
	}
	defer w.members.leave(r)
	m := w.members.memoryOf(r)
	m.unlock(w.ws.me)
	return err
}

// signal adds a signal of this rank at member r, after its accesses to r.
func (w *Window) signal(r int, deadline time.Time) error {
	what := Signal.String()
	if !w.members.near(r) {
		_, err := w.send(what, r, &call{head: head{code: Signal}}, deadline)
		return err
	}
	if err := w.members.enter(what, r); err != nil {
		return err
	}
	defer w.members.leave(r)
	addSignal(w.members.of(r).control, w.ws.me)
	return nil
}

func addSignal(c *C.pw_control, from int) {
	atomic.AddUint64((*uint64)(unsafe.Pointer(&slotOf(c, from).signals)), 1)
	work.Ring()
}

// waitSignal takes a signal of member r, and waits until there is one.
func (w *Window) waitSignal(r int, deadline time.Time) error {
	sent := (*uint64)(unsafe.Pointer(&slotOf(w.members.own.block, r).signals))
	taken := (*uint64)(unsafe.Pointer(&w.members.of(r).taken))
	return w.awaitBy(w.ws.g.WaitRung, WaitSignal.String(), deadline, only(r), func() bool {
		for was := atomic.LoadUint64(taken); atomic.LoadUint64(sent) > was; was = atomic.LoadUint64(taken) {
			if atomic.CompareAndSwapUint64(taken, was, was+1) {
				return true
			}
		}
		return false
	})
}

// flush returns when this rank's puts and accumulates to member r are done there. It tells of one that failed.
func (w *Window) flush(what string, r int, deadline time.Time) error {
	if w.members.near(r) {
		if err := w.members.enter(what, r); err != nil {
			return err
		}
		w.members.leave(r) // an instruction that orders memory
		return nil
	}
	return w.flushFar(what, r, deadline)
}

// fence returns when the accesses of all members before their fence are done.
func (w *Window) fence(o *Op, nested bool) error {
	deadline := w.ws.deadline(o)
	flushed := w.onAll(&Op{Code: Flush, TimeoutNS: o.TimeoutNS})
	if status.CodeOf(flushed) == status.Interrupted {
		_ = w.ws.g.Refuse(op.Barrier)
		return flushed
	}
	left := max(0, time.Until(deadline))
	if err := (collective{w.ws.g, left, nested}).barrier(); err != nil {
		return prefix(Fence.String(), err)
	}
	return flushed
}
