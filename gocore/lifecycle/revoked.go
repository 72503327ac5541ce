package lifecycle

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// endRevoked ends this rank's part in a world that some member has revoked.
func endRevoked(w *registry.World) error {
	if w.Env.Revoked() {
		return nil
	}
	if w.MPI != nil {
		registry.MPIInUse.Store(true) // a member that has died, or is in another world, would never finalize MPI
	}
	w.RevokeWindows()
	if !w.Env.Revoke() {
		return status.New(status.Unsupported, "revoke: a thread of this process is inside a call that does not return (MPI gives a blocking call up for nobody), "+
			"so this process cannot go on in another world: end it. init_process_group(abort_on_death=False) makes no such calls")
	}
	return nil
}

// giveUp ends the use of a world that this rank has revoked.
func giveUp(w *registry.World) {
	w.Reform()
	registry.Abandoned = append(registry.Abandoned, w)
	abandon()
}

// abandon gives back the worlds that were revoked, as far as no other process writes into their memory any more.
func abandon() {
	registry.Abandoned = slices.DeleteFunc(registry.Abandoned, func(w *registry.World) bool {
		over := w.Env.Abandon(w.AbandonWindows)
		if over {
			w.ForgetGroups()
		}
		return over
	})
}
