package lifecycle

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/registry"
)

// departureStages is how often a departure is taken further where nobody waits for it: it has as many stages.
const departureStages = 3

// closeDeparted frees the ended worlds whose ranks have all departed, except for what registry.Last needs.
func closeDeparted() {
	registry.Departing = slices.DeleteFunc(registry.Departing, func(w *registry.World) bool {
		for range departureStages {
			if w.Env.Departure.AllDeparted() {
				_ = w.Env.Close()
				keep(w)
				return true
			}
		}
		return false
	})
}

// keep makes w the last world, and frees the one that was the last before. It frees w instead if some processes of the
// job are not in it, or other code finalizes MPI.
func keep(w *registry.World) {
	if !endsTheJob(w) {
		_ = w.Env.Free()
		return
	}
	setLast(w)
}

// setLast makes w the last world, nil if one begins, and frees the one before.
func setLast(w *registry.World) {
	if registry.Last != nil {
		_ = registry.Last.Env.Free()
	}
	registry.Last = w
}

// endsTheJob tells whether w has all processes of the job, and this library finalizes their MPI.
func endsTheJob(w *registry.World) bool {
	if w.MPI == nil {
		return false
	}
	n, err := w.MPI.Size(w.MPI.World())
	return err == nil && n == w.Env.Topo.Size && w.MPI.Info().Owner == "paddlempi"
}

// awaitDepartures waits until all ranks of ended worlds have departed, and answers their questions
// until then. It returns false if MPI cannot be finalized.
func awaitDepartures() bool {
	all := true
	for _, w := range registry.Departing {
		if w.Env.Departure.AwaitDepartures() {
			keep(w)
		} else {
			all = false
		}
	}
	registry.Departing = nil
	return all
}
