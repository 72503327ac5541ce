package gocore

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

const (
	// guestPatience is how long a process that ends waits until the other party of a join has disconnected, too.
	guestPatience = 10 * time.Second
	// unfinalized is how long a process that cannot finalize MPI goes on after the last world has ended: the other party may
	// be in MPI_Finalize, and a process of Intel MPI crashes there if this one ends (measured).
	unfinalized = time.Second
	// freeLimit is how long both parties may take to free what connects them, once both have disconnected.
	freeLimit = 5 * time.Second
)

// guests has the worlds that join has made, and that have not ended.
var guests guestList

type guestList struct {
	mu   sync.Mutex
	list []*guest
	died bool // a process has died for which MPI would wait when it is finalized; mu guards it
}

// guest is a world of two parties.
type guest struct {
	*membership
	leaving sync.Mutex // held by a thread that ends it
	left    bool       // this process has left it; guarded by leaving
}

// add enters a world. It is left in order before MPI is finalized.
func (l *guestList) add(w *membership) {
	one := &guest{membership: w}
	l.mu.Lock()
	l.list = append(l.list, one)
	l.mu.Unlock()
	w.removeCloser = closing.add(func(finalizing bool) {
		if finalizing {
			one.leave(func() { _, _ = one.env.Leave() })
		}
	})
}

func (l *guestList) remove(w *guest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.list, w); i >= 0 {
		l.list = slices.Delete(l.list, i, i+1)
	}
}

func (l *guestList) all() []*guest {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

// of returns the world whose group of all ranks has an id; nil if there is none.
func (l *guestList) of(id int64) *guest {
	for _, w := range l.all() {
		if w.all.Load().ID == id {
			return w
		}
	}
	return nil
}

// leave begins the end of the world on this party, once.
func (w *guest) leave(how func()) {
	w.leaving.Lock()
	defer w.leaving.Unlock()
	if w.left {
		return
	}
	w.left = true
	w.ended.Store(true)
	how()
	forgetGroups(w.membership)
}

// disconnect ends the world, and waits until the other party does, limit at most. If some rank has died, or has ended
// without that, nothing is waited for. After a deadline or an interrupt it may be called again.
func (w *guest) disconnect(limit time.Duration, interrupt work.Interrupt) (err error) {
	w.leave(func() {
		w.removeCloser()
		_, err = w.env.Destroy()
	})
	if err != nil {
		return err
	}
	w.leaving.Lock()
	defer w.leaving.Unlock()
	over, err := w.env.Departure.Await(time.Now().Add(limit), interrupt)
	if err == work.ErrDeadline {
		return status.New(status.Timeout, "disconnect: after %v the other party had not disconnected; call it again to wait longer", limit)
	}
	if err != nil {
		return err
	}
	guests.remove(w)
	if over {
		w.free()
	} else {
		w.noteDeaths()
	}
	return nil
}

// noteDeaths keeps this process from finalizing MPI if MPI would wait for processes that have died.
func (w *guest) noteDeaths() {
	if j, ok := w.env.Base.(transport.Joiner); ok && j.WaitsForDead() && w.env.Departure.Deserted() {
		inUse.Store(true)
		guests.mu.Lock()
		guests.died = true
		guests.mu.Unlock()
	}
}

// free gives everything back, once both parties have left. MPI waits for both parties in that, so it is on a thread of its own.
func (w *guest) free() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_ = w.env.Close()
		_ = w.env.Free()
	}()
	select {
	case <-done:
	case <-time.After(freeLimit):
		inUse.Store(true) // a thread is inside MPI
	}
}

// endWithProcess ends what is left of all worlds, because this process ends. The other parties may be in no hurry.
func (l *guestList) endWithProcess() {
	deadline := time.Now().Add(guestPatience)
	for _, w := range l.all() {
		over, _ := w.env.Departure.Await(deadline, nil)
		l.remove(w)
		if over {
			w.free()
		} else {
			w.env.Departure.GoAlone()
			w.noteDeaths()
		}
	}
	l.mu.Lock()
	died := l.died
	l.mu.Unlock()
	if died {
		time.Sleep(unfinalized)
	}
}

// disconnectAll ends all worlds, because the first world ends. It waits for the other parties only as long as that does.
func (l *guestList) disconnectAll() {
	for _, w := range l.all() {
		_ = w.disconnect(destroyTogether, nil)
	}
}
