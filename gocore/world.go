package gocore

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/crash"
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/messages"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// membership is the part of this process in a world: a set of ranks, and the groups that were made of them. init makes
// the first one. A process may have several, because a call finds its world by the id of its group.
type membership struct {
	lib          mpi.Library // nil if the ranks are connected without MPI
	env          *world.Env
	all          atomic.Pointer[group.Group] // the group of all its ranks, which is made first
	ended        atomic.Bool                 // it was destroyed, or this process has left
	removeCloser func()                      // removes the function of closesWithMPI
}

// library is nil before an Init that starts MPI. It stays after Destroy, because MPI can be initialised only once.
var library mpi.Library

// initial is the world that init made. Id 0 stands for its group of all ranks. It is nil before
// Init and after Destroy.
var initial atomic.Pointer[membership]

// poisoned is why the core takes no more calls: a panic.
var poisoned atomic.Pointer[string]

// entry is a group and its world.
type entry struct {
	w *membership
	g *group.Group
}

// groups has the groups of all worlds that are not destroyed, by id. An id is used once in a process, so
// that the id of a group that was destroyed is recognised. Readers take no lock: a change replaces the map.
var groups struct {
	mu   sync.Mutex
	last atomic.Int64 // the id that was given last; the first is 1
	live atomic.Pointer[map[int64]entry]
}

// inUse says that MPI cannot be finalized: an init has failed half way, and other ranks may still wait in it, or a thread is
// inside a call of MPI that does not return.
var inUse atomic.Bool

// departing holds the environments of worlds that have ended while other ranks have not departed
// yet.
var departing []*world.Env

// last is the environment of the world of all processes that ended last, if its ranks have departed. It shows
// whether their processes end, so that MPI is finalized together. It is nil if there is none, and in a process
// in which other code finalizes MPI.
var last *world.Env

func newMembership(lib mpi.Library, env *world.Env) *membership {
	return &membership{lib: lib, env: env, removeCloser: func() {}}
}

// transport returns what carries the messages of w.
func (w *membership) transport() string {
	if w.lib == nil {
		return "node"
	}
	return "mpi"
}

// initialWorld returns the part in the world that init made, or the error that says why there is none.
func initialWorld() (*membership, error) {
	if err := healthy(); err != nil {
		return nil, err
	}
	w := initial.Load()
	if w == nil {
		return nil, status.New(status.NotInitialized, "not initialised: call init_process_group first (or it was destroyed)")
	}
	return w, nil
}

// updateGroups changes the map of groups.
func updateGroups(change func(map[int64]entry)) {
	groups.mu.Lock()
	defer groups.mu.Unlock()
	live := map[int64]entry{}
	if now := groups.live.Load(); now != nil {
		live = maps.Clone(*now)
	}
	change(live)
	groups.live.Store(&live)
}

// add makes a group of w and gives it the next id. Several threads may make groups at once.
func (w *membership) add(make func(id int64) (*group.Group, error)) (*group.Group, error) {
	id := groups.last.Add(1)
	g, err := make(id)
	if err != nil {
		return nil, err
	}
	w.all.CompareAndSwap(nil, g)
	crash.NameGroup(id, w.env.Topo.Rank, g.String())
	updateGroups(func(live map[int64]entry) { live[id] = entry{w, g} })
	return g, nil
}

// forgetGroups takes the groups of a world that has ended out of the map.
func forgetGroups(w *membership) {
	updateGroups(func(live map[int64]entry) {
		maps.DeleteFunc(live, func(_ int64, e entry) bool { return e.w == w })
	})
}

// remove destroys a group. Its world may still keep it, because MPI uses it or a wait was interrupted.
func remove(g *group.Group) error {
	closeWindows(func(other *group.Group) bool { return other == g }, false)
	err := g.Destroy()
	updateGroups(func(live map[int64]entry) { delete(live, g.ID) })
	return err
}

// worldOf returns this process's part in the world of a group; 0 stands for the world that init made.
func worldOf(id int64) (*membership, error) {
	g, err := groupOf(id)
	if err != nil || id == 0 {
		return initial.Load(), err
	}
	if live := groups.live.Load(); live != nil {
		if e, ok := (*live)[g.ID]; ok {
			return e.w, nil
		}
	}
	return nil, status.New(status.GroupDestroyed, "group %d was destroyed", id)
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
	if live := groups.live.Load(); live != nil {
		if e, ok := (*live)[id]; ok && !e.w.ended.Load() {
			return e.g, nil
		}
	}
	switch {
	case err != nil:
		return nil, err
	case id < 0 || id > groups.last.Load():
		return nil, status.New(status.Argument, "there is no group %d", id)
	case id < w.all.Load().ID:
		return nil, status.New(status.GroupDestroyed, "group %d was destroyed with its world, before init_process_group was called again; make a new one with new_group", id)
	}
	return nil, status.New(status.GroupDestroyed, "group %d was destroyed; make a new one with new_group", id)
}

// closesWithMPI makes w leave in order before MPI is finalized, by this library or by other code.
func (w *membership) closesWithMPI() {
	w.removeCloser = closing.add(func(finalizing bool) {
		if finalizing {
			w.leave()
		}
	})
}

// destroy frees the groups of w and its environment, after it has given operations under way time
// to end.
func (w *membership) destroy() error {
	w.removeCloser()
	w.ended.Store(true)
	w.closeWindows(false)
	settled, err := w.env.Destroy()
	forgetGroups(w)
	departing = append(departing, w.env)
	// Ranks mostly destroy a world together. Then everything is freed now, and not at the next init.
	_ = work.NewEngine().Wait(func() bool {
		closeDeparted()
		return !slices.Contains(departing, w.env) || w.env.Departure.Deserted()
	}, time.Now().Add(destroyTogether), nil)
	if settled && w.lib != nil { // else an operation of MPI may still use what FreeAll frees
		w.lib.FreeAll()
	}
	return err
}

// leave tells the other ranks that this one has left, and ends operations under way, also those of
// daemon threads.
func (w *membership) leave() {
	w.ended.Store(true)
	initial.CompareAndSwap(w, nil)
	w.closeWindows(true)
	_, _ = w.env.Leave()
	departing = append(departing, w.env)
}

// closeWindows closes the windows of all groups of w. leaving says that the process ends.
func (w *membership) closeWindows(leaving bool) {
	closeWindows(func(g *group.Group) bool { return g.Env == w.env }, leaving)
}

// destroyTogether is how long the end of a world waits for other ranks that end it, too.
const destroyTogether = time.Second

// departureStages is how often a departure is taken further where nobody waits for it: it has as many stages.
const departureStages = 3

// closeDeparted frees the environments of ended worlds whose ranks have all departed, except for what last needs.
func closeDeparted() {
	departing = slices.DeleteFunc(departing, func(e *world.Env) bool {
		for range departureStages {
			if e.Departure.AllDeparted() {
				_ = e.Close()
				keep(e)
				return true
			}
		}
		return false
	})
}

// keep makes e the last environment if it is one of all processes, and frees the one that is it no more.
func keep(e *world.Env) {
	if !endsTheJob(e) {
		_ = e.Free()
		return
	}
	forgetLast()
	last = e
}

// forgetLast frees the last environment: another world follows it.
func forgetLast() {
	if last != nil {
		_ = last.Free()
		last = nil
	}
}

// endsTheJob tells whether this library finalizes MPI, for the processes of e.
func endsTheJob(e *world.Env) bool {
	if lib, _ := mpi.Of(e.Base); lib == nil {
		return false
	}
	n, err := library.Size(library.World())
	return err == nil && n == e.Topo.Size && library.Info().Owner == "paddlempi"
}

// awaitDepartures waits until all ranks of ended worlds have departed, and answers their questions
// until then. It returns false if MPI cannot be finalized.
func awaitDepartures() bool {
	all := true
	for _, e := range departing {
		if !e.Departure.AwaitDepartures() {
			all = false
			continue
		}
		keep(e)
	}
	departing = nil
	return all
}

// endTogether waits until the processes of all ranks are about to end, and tells whether they are.
func endTogether() bool {
	return last == nil || last.Departure.EndTogether()
}

// healthy returns an error if the core has panicked before.
func healthy() error {
	if why := poisoned.Load(); why != nil {
		return status.New(status.Panic, "the core failed before in this process (%s) and takes no more calls; end the job", *why)
	}
	return nil
}

// Poison makes every later call fail, after a panic.
func Poison(why string) {
	if i := strings.IndexByte(why, '\n'); i >= 0 {
		why = why[:i]
	}
	poisoned.CompareAndSwap(nil, &why)
	messages.Stop()
}
