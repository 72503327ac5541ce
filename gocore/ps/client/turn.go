package client

import (
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// turn is a lock that is held during a wait for servers. An interrupt runs the program's signal handlers in that wait,
// on the thread that holds the lock. A handler that asked for the lock would wait for the call that waits for the
// handler. So the lock knows the thread that holds it, and refuses that thread.
type turn struct {
	taken  chan struct{} // has room for one
	holder atomic.Int64  // thread; 0: none, or not known
}

// askEvery is the time between two calls of an interrupt.
const askEvery = 50 * time.Millisecond

func newTurn() *turn { return &turn{taken: make(chan struct{}, 1)} }

// take waits until no other thread holds the turn. thread is the caller's number; 0: it is not known. what is for
// errors: of the deadline, of interrupt (nil: none), and Reentrant.
func (t *turn) take(what string, thread int, deadline time.Time, interrupt work.Interrupt) error {
	if thread != 0 && t.holder.Load() == int64(thread) {
		return status.New(status.Reentrant, "%s: called by a signal handler that interrupted a push of the same thread, which cannot end before the handler does. "+
			"Let the handler set a flag, and look at the flag between two steps", what)
	}
	select {
	case t.taken <- struct{}{}:
	default:
		if err := t.await(what, deadline, interrupt); err != nil {
			return err
		}
	}
	t.holder.Store(int64(thread))
	return nil
}

func (t *turn) await(what string, deadline time.Time, interrupt work.Interrupt) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	over := time.NewTimer(time.Until(deadline))
	defer over.Stop()
	for {
		select {
		case t.taken <- struct{}{}:
			return nil
		case <-over.C:
			return status.New(status.Timeout, "%s: a push of another thread has not ended by the deadline; nothing was sent", what)
		case <-tick.C:
			if interrupt == nil {
				continue
			}
			if err := interrupt(); err != nil {
				return err
			}
		}
	}
}

func (t *turn) give() {
	t.holder.Store(0)
	<-t.taken
}
