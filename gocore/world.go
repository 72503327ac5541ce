package gocore

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// world is a set of ranks with the groups that were made of them. init makes the first one. A
// process may have several, because a call finds its world by the id of its group.
type world struct {
	lib          mpi.Library
	env          *group.Env
	all          atomic.Pointer[group.Group] // the group of all its ranks, which is made first
	ended        atomic.Bool                 // it was destroyed, or this process has left
	removeCloser func()                      // removes the function of closesWithMPI
}

// initial is the world that init made. Id 0 stands for its group of all ranks. It is nil before
// Init and after Destroy.
var initial atomic.Pointer[world]

// entry is a group that has an id. g is nil while the group is being made, and after its world has
// ended.
type entry struct {
	w *world
	g *group.Group
}

// groups has the groups of all worlds, by id. An id is used once in a process, so that the id of a
// group from before Destroy and another Init is recognised. The list never shrinks. Readers take no
// lock.
var groups struct {
	mu   sync.Mutex
	list atomic.Pointer[[]entry] // the entry of id 1 comes first
}

// departing holds the environments of worlds that have ended while other ranks have not departed
// yet.
var departing []*group.Env

func newWorld(lib mpi.Library, env *group.Env) *world {
	return &world{lib: lib, env: env, removeCloser: func() {}}
}

// initialWorld returns the world that init made, or the error that says why there is none.
func initialWorld() (*world, error) {
	if err := healthy(); err != nil {
		return nil, err
	}
	w := initial.Load()
	if w == nil {
		return nil, status.New(status.NotInitialized, "not initialised: call init_process_group first (or it was destroyed)")
	}
	return w, nil
}

// updateGroups replaces the list of groups. The caller holds groups.mu.
func updateGroups(change func([]entry) []entry) {
	var list []entry
	if now := groups.list.Load(); now != nil {
		list = slices.Clone(*now)
	}
	list = change(list)
	groups.list.Store(&list)
}

// add makes a group of w and gives it the next id. Several threads may make groups at once.
func (w *world) add(make func(id int64) (*group.Group, error)) (*group.Group, error) {
	groups.mu.Lock()
	var id int64
	updateGroups(func(list []entry) []entry {
		id = int64(len(list)) + 1
		return append(list, entry{w: w})
	})
	groups.mu.Unlock()
	g, err := make(id)
	if err != nil {
		return nil, err
	}
	w.all.CompareAndSwap(nil, g)
	groups.mu.Lock()
	defer groups.mu.Unlock()
	updateGroups(func(list []entry) []entry {
		list[id-1].g = g
		return list
	})
	return g, nil
}

// groupOf returns the group with an id.
func groupOf(id int64) (*group.Group, error) {
	w, err := initialWorld()
	if id == 0 {
		if err != nil {
			return nil, err
		}
		return w.all.Load(), nil
	}
	list := groups.list.Load()
	if list == nil || id < 0 || id > int64(len(*list)) {
		if err == nil {
			err = status.New(status.Argument, "there is no group %d", id)
		}
		return nil, err
	}
	switch e := (*list)[id-1]; {
	case e.w.ended.Load():
		if err == nil {
			err = status.New(status.GroupDestroyed, "group %d was destroyed with its world, before init_process_group was called again; make a new one with new_group", id)
		}
		return nil, err
	case e.g == nil:
		return nil, status.New(status.Argument, "there is no group %d", id)
	default:
		return e.g, nil
	}
}

// closesWithMPI makes w leave in order before MPI is finalized, by this library or by other code.
func (w *world) closesWithMPI() {
	w.removeCloser = closing.add(func(finalizing bool) {
		if finalizing {
			w.leave()
		}
	})
}

// destroy frees the groups of w and its environment, after it has given operations under way time
// to end.
func (w *world) destroy() error {
	w.removeCloser()
	w.ended.Store(true)
	settled, err := w.env.Destroy()
	groups.mu.Lock()
	updateGroups(func(list []entry) []entry {
		for i := range list {
			if list[i].w == w {
				list[i].g = nil
			}
		}
		return list
	})
	groups.mu.Unlock()
	departing = append(departing, w.env)
	closeDeparted()
	if settled { // else an operation of MPI may still use what FreeAll frees
		w.lib.FreeAll()
	}
	return err
}

// leave tells the other ranks that this one has left, and ends operations under way, also those of
// daemon threads.
func (w *world) leave() {
	w.ended.Store(true)
	initial.CompareAndSwap(w, nil)
	_, _ = w.env.Leave()
	departing = append(departing, w.env)
}

// departureStages is how often a departure is taken further where nobody waits for it: it has as many stages.
const departureStages = 3

// closeDeparted frees the environments of ended worlds whose ranks have all departed.
func closeDeparted() {
	departing = slices.DeleteFunc(departing, func(e *group.Env) bool {
		for range departureStages {
			if e.AllDeparted() {
				_ = e.Close()
				return true
			}
		}
		return false
	})
}

// awaitDepartures waits until all ranks of ended worlds have departed, and answers their questions
// until then. It returns false if MPI cannot be finalized.
func awaitDepartures() bool {
	all := true
	for _, e := range departing {
		all = e.AwaitDepartures() && all
	}
	departing = nil
	return all
}
