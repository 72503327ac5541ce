package client

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// turn is a lock that is held during a wait for servers. An interrupt runs the program's signal
// handlers in that wait, on the thread that holds the lock. A handler that asked for the lock would
// wait for the call that waits for the handler. So the lock knows the thread that holds it, and
// refuses that thread.
type turn struct {
	free   chan struct{} // has a value while nobody holds the turn
	holder atomic.Int64  // thread; 0: none, or not known
}

func newTurn() *turn {
	t := &turn{free: make(chan struct{}, 1)}
	t.free <- struct{}{}
	return t
}

// take waits until no other thread holds the turn. thread is the caller's number; 0: it is not
// known. what is for errors: of the deadline, of interrupt (nil: none), and Reentrant.
func (t *turn) take(what string, thread int, deadline time.Time, interrupt work.Interrupt) error {
	if thread != 0 && t.holder.Load() == int64(thread) {
		return status.New(status.Reentrant, "%s: called by a signal handler that interrupted a push of the same thread, which cannot end before the handler does. "+
			"Let the handler set a flag, and look at the flag between two steps", what)
	}
	select {
	case <-t.free:
	default:
		err := work.Await(t.free, deadline, interrupt)
		if errors.Is(err, work.ErrDeadline) {
			return status.New(status.Timeout, "%s: a push of another thread has not ended by the deadline; nothing was sent", what)
		}
		if err != nil {
			return err
		}
	}
	t.holder.Store(int64(thread))
	return nil
}

func (t *turn) give() {
	t.holder.Store(0)
	t.free <- struct{}{}
}
