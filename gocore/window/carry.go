package window

// #include "access.h"
import "C"

import (
	"slices"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// This file carries out what other members call. The caller of all functions holds Windows.mu.

// carryOut carries out a call of a member. It returns false if it has to be called again: the window is being made, or the
// lock of wide elements is held.
func (p *post) carryOut(from int, a *arrival) bool {
	q := &p.peers[from]
	w := p.ws.open[a.h.window]
	if w == nil && p.ws.soon > 0 && a.h.window >= p.ws.next {
		return false
	}
	if !a.begun {
		a.begun, q.more = true, a.h.more
		if a.h.seq != q.done+1 {
			p.lose(from, rubbish("call %d while %d is next", a.h.seq, q.done+1))
			return true
		}
		if p.acknowledge(from, a.h.done); q.lost != nil {
			return true
		}
		if w != nil {
			a.fail = w.accept(a, from)
		}
	}
	if w == nil {
		rank := p.ws.g.WorldRank(p.ws.me)
		a.fail = status.New(status.GroupDestroyed, "rank %d has freed the window", rank).WithRanks(rank)
	}
	done := true
	if a.fail == nil {
		done = p.act(w, from, a)
	}
	if !done {
		return false
	}
	q.done++
	switch reply := a.reply; {
	case a.fail != nil:
		mem.Free(reply)
		p.fail(from, a.h.seq, a.fail)
	case reply != nil:
		p.sendAnswer(from, head{kind: kindAnswer, seq: a.h.seq}, reply, headBytes+a.h.taken())
	}
	a.reply = nil
	return true
}

// accept checks a call, whose numbers may be anything, and prepares it.
func (w *Window) accept(a *arrival, from int) error {
	h := &a.h
	switch h.code {
	case Signal, Lock, LockShared, Unlock:
		return nil
	case Put, Get, Accumulate, GetAccumulate, CompareAndSwap:
	default:
		return rubbish("operation %d", h.code)
	}
	switch {
	case h.dtype != w.members.dtype:
		return rubbish("elements of %v in a window of %v", h.dtype, w.members.dtype)
	case h.count < 0 || h.count > pieceBytes/w.members.elem || h.code == CompareAndSwap && h.count != 1:
		return rubbish("%s of %d elements", h.code, h.count)
	case !a.at.within(w.members.count(w.ws.me)):
		return rubbish("elements at %d, of the shape %v and the strides %v, in a window of %d", h.offset, a.at.shape, a.at.steps, w.members.count(w.ws.me))
	case int64(len(a.rest)) != h.given():
		return rubbish("%d bytes of elements where %d belong", len(a.rest), h.given())
	case (h.code == Accumulate || h.code == GetAccumulate) && C.pw_defined(C.int32_t(w.members.dtype), C.int32_t(h.reduce)) == 0:
		return rubbish("op %d of %v", h.reduce, w.members.dtype)
	}
	a.a = access{code: h.code, reduce: h.reduce, holder: uint32(from) + 1}
	if len(a.rest) > 0 {
		a.a.send = unsafe.Pointer(&a.rest[0])
	}
	if h.code == CompareAndSwap {
		a.a.compare, a.a.send = a.a.send, unsafe.Add(a.a.send, w.members.elem)
	}
	if h.taken() == 0 {
		return nil
	}
	var err error
	if a.reply, err = mem.Alloc(headBytes + h.taken()); err == nil {
		a.a.recv = unsafe.Add(a.reply, headBytes)
	}
	return err
}

// act carries out a call that was accepted. It returns false if it has to be called again.
func (p *post) act(w *Window, from int, a *arrival) bool {
	m := w.members.memoryOf(w.ws.me)
	switch a.h.code {
	case Signal:
		addSignal(m.control, from)
	case Lock, LockShared:
		p.locks = append(p.locks, waiting{from, a.h.seq, w, a.h.code == LockShared}) // grantLocks looks at it next
	case Unlock:
		m.unlock(from)
		p.takeBack(w, from)
	default:
		done, err := m.apply(&a.a, &a.at)
		if a.fail = err; done || err != nil {
			return true
		}
		if now := time.Now(); now.Sub(a.looked) >= lookEvery { // the holder of the lock may be dead
			a.looked = now
			a.fail = p.ws.g.Trouble(a.h.code.String(), wideHolder(m.control, w.ws.size, w.ws.me)())
		}
		return a.fail != nil
	}
	return true
}

// takeBack ends the wait of a member for a lock, which it has given up.
func (p *post) takeBack(w *Window, from int) {
	p.locks = slices.DeleteFunc(p.locks, func(l waiting) bool {
		if l.w != w || l.from != from {
			return false
		}
		p.fail(l.from, l.seq, status.New(status.Interrupted, "the lock was given up"))
		return true
	})
}

// grantLocks gives locks to members that wait for them.
func (p *post) grantLocks() {
	look := len(p.locks) > 0 && time.Since(p.looked) >= lookEvery
	if look {
		p.looked = time.Now()
	}
	p.locks = slices.DeleteFunc(p.locks, func(l waiting) bool {
		m := l.w.members.memoryOf(p.ws.me)
		taken, holder := m.tryLock(l.from, l.shared, p.ws.size)
		if taken {
			p.answer(l.from, head{kind: kindAnswer, seq: l.seq}, nil)
			return true
		}
		if !look {
			return false
		}
		if p.ws.g.Trouble("", l.from) != nil { // nobody wants it any more
			m.unlock(l.from)
			return true
		}
		if holder < 0 || holder >= p.ws.size {
			return false
		}
		err := p.ws.g.Trouble(Lock.String(), holder)
		if err != nil {
			m.unlock(l.from)
			p.fail(l.from, l.seq, err)
		}
		return err != nil
	})
}
