package messages

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// waiting has the transfers of a group whose tensor is not ready, receives that look for a message, and those behind them.
//
// Invariant: while a transfer waits, no message of the group goes without Go.
type waiting struct {
	mu        sync.Mutex
	transfers []*transfer
	queued    atomic.Int32    // len(transfers); can be read without mu
	quick     transport.Quick // nil: no message of the group goes without Go
}

// ready tells whether no transfer waits until its tensor is ready.
func (w *waiting) ready() bool {
	if w.queued.Load() == 0 {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.transfers, func(tr *transfer) bool { return !tr.ready })
}

// mayStart tells whether MPI may be called for tr now. MPI's messages between two ranks do not
// overtake each other, and neither may these. Therefore a transfer whose tensor is not ready, or which has found no
// message, is put into a list, and later transfers to or from the same rank wait behind it. Two receives whose tags
// differ never take the same message.
func (w *waiting) mayStart(tr *transfer, ready bool) bool {
	if ready && w.queued.Load() == 0 {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	tr.ready = ready
	w.enqueue(tr)
	first := w.transfers[:slices.Index(w.transfers, tr)]
	return ready && !slices.ContainsFunc(first, func(one *transfer) bool { return one.goesBefore(tr) })
}

// goesBefore tells whether MPI has to be called for tr, which was first, before it is called for other.
func (tr *transfer) goesBefore(other *transfer) bool {
	if tr.receives != other.receives || tr.peer != other.peer && tr.peer >= 0 && other.peer >= 0 {
		return false
	}
	return !tr.receives || tr.tag == other.tag || tr.tag < 0 || other.tag < 0
}

// isAwaited tells whether a receive in the list, which was called before, takes the first message of a rank with a tag.
func (w *waiting) isAwaited(source, tag int32) bool {
	if w.queued.Load() == 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.transfers, func(tr *transfer) bool {
		return tr.receives && (tr.peer < 0 || tr.peer == source) && (tr.tag < 0 || tr.tag == tag)
	})
}

// await puts tr into the list: it has found no message.
func (w *waiting) await(tr *transfer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.enqueue(tr)
}

// enqueue puts tr into the list, unless it is there. The caller holds mu.
func (w *waiting) enqueue(tr *transfer) {
	if !tr.queued {
		tr.queued = true
		w.transfers = append(w.transfers, tr)
		w.queued.Add(1)
		w.hold(1)
	}
}

// unqueue takes tr out of the list, if it is there.
func (w *waiting) unqueue(tr *transfer) {
	if !tr.queued {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	tr.queued = false
	if i := slices.Index(w.transfers, tr); i >= 0 {
		w.transfers = slices.Delete(w.transfers, i, i+1)
		w.queued.Add(-1)
		w.hold(-1)
	}
}

// hold says that by more messages wait for something before they begin: no other one may overtake them. The caller holds mu.
func (w *waiting) hold(by int32) {
	if w.quick != nil {
		w.quick.Hold(by)
	}
}
