package gocore

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// world is a set of ranks with the groups that were made of them. init makes the first. Calls find
// theirs by the id of a group, so that a process may have several.
type world struct {
	lib    mpi.Library
	env    *group.Env
	all    atomic.Pointer[group.Group] // of all its ranks: the first that was made
	ended  atomic.Bool                 // destroyed, or this process leaves
	unlist func()                      // takes its closer back
}

// initial is the world that init made, whose group of all ranks id 0 names. It is nil before init and after destroy.
var initial atomic.Pointer[world]

// entry is a group by its id. g is nil while it is made, and after its world has ended.
type entry struct {
	w *world
	g *group.Group
}

// groups are those of all worlds, by id. Ids are unique for the process: a group from before a destroy
// and another init is known as such. The list grows and never shrinks; readers take no lock.
var groups struct {
	mu   sync.Mutex
	list atomic.Pointer[[]entry] // of id 1 and on
}

// departing are environments of worlds that have ended, while other ranks did not depart.
var departing []*group.Env

func newWorld(lib mpi.Library, env *group.Env) *world {
	return &world{lib: lib, env: env, unlist: func() {}}
}

// first returns the world that init made.
func first() (*world, error) {
	if err := healthy(); err != nil {
		return nil, err
	}
	w := initial.Load()
	if w == nil {
		return nil, status.New(status.NotInitialized, "not initialised: call init_process_group first (or it was destroyed)")
	}
	return w, nil
}

// update changes the list of groups. The caller holds groups.mu.
func update(change func([]entry) []entry) {
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
	update(func(list []entry) []entry {
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
	update(func(list []entry) []entry {
		list[id-1].g = g
		return list
	})
	return g, nil
}

// groupOf returns the group of an id.
func groupOf(id int64) (*group.Group, error) {
	w, err := first()
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

// closesWithMPI has w leave in order when MPI is finalized, by whomever.
func (w *world) closesWithMPI() {
	w.unlist = closing.add(func(finalizing bool) {
		if finalizing {
			w.leave()
		}
	})
}

// destroy frees the groups of w and what they stand on, after what is under way.
func (w *world) destroy() error {
	w.unlist()
	w.ended.Store(true)
	settled, err := w.env.Destroy()
	groups.mu.Lock()
	update(func(list []entry) []entry {
		for i := range list {
			if list[i].w == w {
				list[i].g = nil
			}
		}
		return list
	})
	groups.mu.Unlock()
	if !settled {
		inUse.Store(true) // what MPI uses stays
		return err
	}
	departing = append(departing, w.env)
	sweep()
	w.lib.FreeAll()
	return err
}

// leave tells the others that this rank comes no more and ends what is under way, that
// of daemon threads included.
func (w *world) leave() {
	w.ended.Store(true)
	initial.CompareAndSwap(w, nil)
	if settled, _ := w.env.Leave(); settled {
		departing = append(departing, w.env)
	} else {
		inUse.Store(true)
	}
}

// sweep frees the environments of worlds that have ended and whose ranks have all departed.
func sweep() {
	departing = slices.DeleteFunc(departing, func(e *group.Env) bool {
		if !e.Gone() {
			return false
		}
		_ = e.Close()
		return true
	})
}

// awaitOthers waits until all ranks have departed of those that cannot see this one leave; it
// answers them until then. It returns false where some will not: MPI cannot be finalized then.
func awaitOthers() bool {
	all := true
	for _, e := range departing {
		all = e.AwaitGone() && all
	}
	departing = nil
	return all
}
