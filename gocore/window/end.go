package window

// #include "access.h"
import "C"

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// endLimit is how long the end of a window waits for threads of this process, and for members of this node.
const endLimit = time.Second

// Free ends the window on all members together. It is collective. What this member has begun is done before, as flush
// says. After an error the window has ended on this member all the same, unless a member has refused.
func (w *Window) Free(timeout time.Duration, nested bool) error {
	if w.ended.Load() {
		return nil
	}
	w.mu.Lock()
	locked := slices.IndexFunc(w.held, func(h held) bool { return h != notHeld })
	w.mu.Unlock()
	if locked >= 0 {
		_ = w.ws.g.Refuse(op.Barrier)
		return status.New(status.Argument, "%s: this rank holds the lock of rank %d, or waits for it", Free, locked)
	}
	o := Op{Code: Flush, TimeoutNS: int64(timeout)}
	deadline := w.ws.deadline(&o)
	flushed := w.onAll(&o)
	if status.CodeOf(flushed) == status.Interrupted {
		w.Close()
		return flushed
	}
	err := prefix(Free.String(), collective{w.ws.g, max(0, time.Until(deadline)), nested}.barrier())
	if status.CodeOf(err) == status.Refused {
		return err
	}
	if err != nil {
		w.Close()
		return err
	}
	w.close()
	if w.ws.until(time.Now().Add(endLimit), func() bool { return w.members.own.allLeft(w.ws) }) && !w.InUse() {
		w.members.own.free() // else it stays: a member may still look at it
	}
	return flushed
}

// Close ends the window on this member alone. A member that accesses its memory later gets an error. What members have
// sent is thrown away. The control block stays, because they may look at it.
func (w *Window) Close() {
	w.ws.mu.Lock()
	if w.ws.post != nil && w.ws.open[w.number] == w {
		w.ws.post.stays = true // members may still send
	}
	w.ws.mu.Unlock()
	w.close()
}

func (w *Window) close() {
	if w.ended.Swap(true) {
		return
	}
	w.ws.remove(w)
	C.pw_close(w.members.c)
	limit := time.Now().Add(endLimit)
	w.ws.until(limit, func() bool { return w.calls.Load() == 0 })
	atomic.StoreUint32(word(&w.members.own.block.freed), 1)
	w.ws.until(limit, func() bool { return !w.members.own.touched(w.ws) })
	if w.InUse() {
		return // everything stays
	}
	w.mu.Lock()
	w.members.leaveAll()
	w.gone = true
	w.mu.Unlock()
	structs.Lock()
	defer structs.Unlock()
	C.pw_recycle(w.members.c)
}

// Revoke ends the calls of all windows on this member, whose world was revoked: when it returns, no thread of this process is in
// the memory of another one. Nothing is given back, because others may still be in this one's.
func (ws *Windows) Revoke() {
	ws.eachOpen(func(w *Window) {
		if !w.ended.Swap(true) {
			C.pw_close(w.members.c)
			ws.until(time.Now().Add(endLimit), func() bool { return w.calls.Load() == 0 })
		}
	})
}

// Abandon gives back what Revoke has left: no member is in the memory of this one any more.
func (ws *Windows) Abandon() {
	ws.eachOpen(func(w *Window) {
		ws.remove(w)
		if w.calls.Load() > 0 {
			return // everything stays
		}
		w.mu.Lock()
		w.members.own.free()
		w.members.release() // the others may have given their control blocks back
		w.gone = true
		w.mu.Unlock()
		structs.Lock()
		defer structs.Unlock()
		C.pw_recycle(w.members.c)
	})
}

// eachOpen calls f for every window that was not removed.
func (ws *Windows) eachOpen(f func(w *Window)) {
	ws.mu.Lock()
	all := slices.Collect(maps.Values(ws.open))
	ws.mu.Unlock()
	for _, w := range all {
		f(w)
	}
}

// until waits until done returns true, and tells whether it has.
func (ws *Windows) until(limit time.Time, done func() bool) bool {
	_ = ws.g.Engine().Wait(done, limit, nil)
	return done()
}

// InUse tells whether the memory may be used by the window: it has not ended, or a thread of this process or a member
// did not leave the memory in time.
func (w *Window) InUse() bool {
	return !w.ended.Load() || w.calls.Load() > 0 || w.members.own.block != nil && w.members.own.touched(w.ws)
}

// Over tells whether nothing of the window is used any more.
func (w *Window) Over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.InUse() && !slices.ContainsFunc(w.members.maps, func(n int) bool { return n > 0 })
}

// touched tells whether a member is in this member's memory.
func (c *control) touched(ws *Windows) bool {
	return c.anyOther(ws, func(slot *C.pw_slot) bool { return atomic.LoadUint32(word(&slot.users)) != 0 })
}

// allLeft tells whether no member looks at the control block any more.
func (c *control) allLeft(ws *Windows) bool {
	return !c.anyOther(ws, func(slot *C.pw_slot) bool { return atomic.LoadUint32(word(&slot.left)) == 0 })
}

// anyOther tells whether a check is true of the slot of another living member that may map the block.
func (c *control) anyOther(ws *Windows, check func(*C.pw_slot) bool) bool {
	for r := range ws.size {
		if r != ws.me && c.heap != nil && ws.g.HeapOf(r) != nil && check(slotOf(c.block, r)) && status.CodeOf(ws.g.Trouble("", r)) != status.PeerDied {
			return true
		}
	}
	return false
}

// undo gives back what a New has made that failed because of err. Another member may have got further, and look at the
// control block.
func (w *Window) undo(err error) {
	w.ended.Store(true)
	if w.members.c == nil {
		w.members.own.free()
		return
	}
	w.ws.remove(w)
	C.pw_close(w.members.c)
	atomic.StoreUint32(word(&w.members.own.block.freed), 1)
	w.members.leaveAll()
	switch status.CodeOf(err) {
	case status.Argument, status.Type, status.Unsupported, status.NoMemory, status.Mismatch, status.Refused:
		w.members.own.free() // no member has gone further
	}
	structs.Lock()
	defer structs.Unlock()
	C.pw_recycle(w.members.c)
}
