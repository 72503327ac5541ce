package join

import (
	"runtime"
	"time"

	"github.com/paddlempi/paddlempi/gocore/registry"
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

// leave begins the end of a world on this party, once.
func leave(w *registry.World, how func() (settled bool, err error)) (err error) {
	w.Leaving.Lock()
	defer w.Leaving.Unlock()
	if !w.Left {
		w.Left = true
		w.End()
		_, err = how()
		w.ForgetGroups()
	}
	return err
}

// Disconnect ends the world, and waits until the other party does, limit at most. If some rank has died, or has ended
// without that, nothing is waited for. After a deadline or an interrupt it may be called again.
func Disconnect(w *registry.World, limit time.Duration, interrupt work.Interrupt) error {
	if err := leave(w, w.Env.Destroy); err != nil {
		return err
	}
	w.Leaving.Lock()
	defer w.Leaving.Unlock()
	over, err := w.Env.Departure.Await(time.Now().Add(limit), interrupt)
	if err == work.ErrDeadline {
		return status.New(status.Timeout, "disconnect: after %v the other party had not disconnected; call it again to wait longer", limit)
	}
	if err == nil {
		forget(w, over)
	}
	return err
}

// forget ends what is left of a world. over says that both parties have left it.
func forget(w *registry.World, over bool) {
	registry.Guests.Forget(w.All().ID)
	if over {
		free(w)
	} else if j := transport.JoinerOf(w.Env.Base); j != nil && j.WaitsForDead() && w.Env.Departure.Deserted() {
		registry.MPIInUse.Store(true) // MPI would wait for processes that have died
		registry.Deserted.Store(true)
	}
}

// free gives everything back, once both parties have left. MPI waits for both parties in that, so it is on a thread of its own.
func free(w *registry.World) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_ = w.Env.Close()
		_ = w.Env.Free()
	}()
	select {
	case <-done:
	case <-time.After(freeLimit):
		registry.MPIInUse.Store(true) // a thread is inside MPI
	}
}

// EndWithProcess ends what is left of all worlds, because this process ends. The other parties may be in no hurry.
func EndWithProcess() {
	deadline := time.Now().Add(guestPatience)
	for _, w := range registry.Guests.All() {
		over, _ := w.Env.Departure.Await(deadline, nil)
		if !over {
			w.Env.Departure.GoAlone()
		}
		forget(w, over)
	}
	if registry.Deserted.Load() {
		time.Sleep(unfinalized)
	}
}
