package lifecycle

import (
	"fmt"
	"os"
	"time"

	"github.com/paddlempi/paddlempi/gocore/join"
	"github.com/paddlempi/paddlempi/gocore/registry"
)

// Preempted is the status of a rank that leaves because the job was asked to end: EX_TEMPFAIL of
// sysexits.h. All ranks agree on that first, so that they leave in order, as with status 0.
const Preempted = 75

// launchersTurn is how long a process lives on that ends without MPI_Finalize. Its launcher hears of a death at the same
// time, and ends the job because of that. MPICH's otherwise sometimes sees the survivors end first, with status 0, and
// makes that the status of the job.
const launchersTurn = 500 * time.Millisecond

// BeforeFinalize runs inside MPI_Finalize, which this library or other code has called. When it
// returns, the core has no operation of MPI under way.
func BeforeFinalize() {
	registry.Closing.Run(true)
	join.EndWithProcess()
	awaitDepartures()
}

// leave tells the other ranks of the first world that this one has left, and ends operations under way, also those of
// daemon threads.
func leave(w *registry.World) {
	if w.Env.WasRevoked() { // nobody waits for anybody in it
		_ = endRevoked(w)
		w.Reform()
		return
	}
	w.End()
	registry.ForgetInitial(w)
	w.CloseWindows(true)
	_, _ = w.Env.Leave()
	registry.Departing = append(registry.Departing, w)
}

// Exit ends this rank's part in the job when the process ends. With the status 0 and Preempted the other ranks are told
// that this one has left. MPI is then finalized, without a deadline, because the others may go on for long. If the
// application initialised MPI, the application finalizes it. Another status ends the whole job by MPI, because the other
// ranks would wait for this one for ever. Without MPI they see that this one has died; who started them ends them.
func Exit(code int) {
	registry.Starting.Lock()
	defer registry.Starting.Unlock()
	lib := registry.MPI
	running := lib != nil && !lib.Finalized()
	inOrder := code == 0 || code == Preempted
	finalize := inOrder && (lib == nil || running && lib.Info().Owner == "paddlempi")
	if !inOrder {
		tellFailure(code)
	}
	registry.Closing.Run(finalize)
	if !inOrder {
		noteEnd(code)
		if running {
			lib.Abort(code)
		}
		return
	}
	if code == Preempted {
		// Before MPI_Finalize: as soon as one rank has ended with this status, launchers end the others.
		noteEnd(code)
	} else {
		defer noteEnd(code) // after MPI_Finalize, in which the launcher may end this process
	}
	if !finalize {
		return
	}
	join.EndWithProcess()
	if !awaitDepartures() || registry.MPIInUse.Load() || registry.Last != nil && !registry.Last.Env.Departure.EndTogether() {
		// A rank has died or ended, or does not come back from MPI: MPI_Finalize would wait for it.
		if running {
			time.Sleep(launchersTurn)
		}
		return
	}
	if running {
		_ = lib.Finalize()
	}
}

// Abort ends the whole job at once with a status; without MPI only this process, as Exit does.
func Abort(code int) {
	noteEnd(code)
	tellFailure(code)
	if lib := registry.MPI; lib != nil && !lib.Finalized() {
		lib.Abort(code)
	}
	os.Exit(code) // not reached if MPI runs: MPI_Abort does not return
}

// tellFailure tells the ranks of this node that this process ends with a status, which is not 0.
func tellFailure(code int) {
	if w := registry.InitialOrNil(); w != nil {
		w.Env.Node.Fail(code)
	}
}

// noteEnd tells the program that started the launcher, by a line in a file, that this process ends
// by its own will, and with which status. A launcher's own status does not tell that.
func noteEnd(code int) {
	if registry.EndFile == "" {
		return
	}
	// The process ends, so that an error of the file has nobody to go to.
	if f, err := os.OpenFile(registry.EndFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		_, _ = fmt.Fprintf(f, "exit %d\n", code)
		_ = f.Close()
	}
}
