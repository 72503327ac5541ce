package registry

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/crash"
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport/memory"
	"github.com/paddlempi/paddlempi/gocore/window"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// World is the part of this process in a world: a set of ranks, and the groups that were made of them. Init makes the
// first one, and a join of two parties another. A call finds its world by the id of its group.
type World struct {
	MPI     mpi.Library // nil if the ranks are connected without MPI
	Env     *world.Env
	all     atomic.Pointer[group.Group] // the group of all its ranks, which is made first
	ended   atomic.Bool                 // it was destroyed, or this process has left
	unclose func()                      // takes back what AtFinalize has asked for

	// Of a world of two parties.
	Leaving sync.Mutex // held by a thread that ends it
	Left    bool       // this process has left it; Leaving guards it
}

// NewWorld returns a world that has no groups yet.
func NewWorld(env *world.Env) *World {
	lib, _ := mpi.Of(env.Base)
	return &World{MPI: lib, Env: env, unclose: func() {}}
}

// Guests has the worlds of two parties that have not ended, by the ids of their groups of all ranks.
var Guests ByNumber[*World]

// Starting guards these.
var (
	// Departing has the worlds that have ended while other ranks have not departed yet.
	Departing []*World

	// Abandoned has the worlds that were revoked and given up for others, while members that live have not said that they write
	// into them no more.
	Abandoned []*World

	// Last is the world of all processes that ended last, if its ranks have departed. It shows whether their processes
	// end, so that MPI is finalized together. It is nil if there is none, and in a process in which other code finalizes
	// MPI.
	Last *World
)

// initial is the world that init made. Id 0 stands for its group of all ranks. It is nil before init and after the world
// was destroyed.
var initial atomic.Pointer[World]

// member is a group and its world.
type member struct {
	w *World
	g *group.Group
}

// groups has the groups of all worlds that have not ended.
var groups ByNumber[*member]

// reformed is the id of the last group that was made before the last reform.
var reformed atomic.Int64

// Poisoned is why the core takes no more calls, the first line of a panic; nil while it takes them.
var Poisoned atomic.Pointer[string]

// Healthy returns an error if the core has panicked before.
func Healthy() error {
	if why := Poisoned.Load(); why != nil {
		return status.New(status.Panic, "the core failed before in this process (%s) and takes no more calls; end the job", *why)
	}
	return nil
}

// Poison makes every later call fail, after a panic.
func Poison(why string) {
	why, _, _ = strings.Cut(why, "\n")
	Poisoned.CompareAndSwap(nil, &why)
	memory.StopQuick()
}

// SetInitial makes w the world of id 0.
func SetInitial(w *World) {
	initial.Store(w)
	memory.SetInitial(w.All().ID)
	crash.SetInitial(w.All().ID)
}

// ForgetInitial leaves no world to id 0, if w is that one.
func ForgetInitial(w *World) { initial.CompareAndSwap(w, nil) }

// InitialOrNil returns the world that init made, nil if there is none.
func InitialOrNil() *World { return initial.Load() }

// Initial returns the world that init made, or the error that says why there is none.
func Initial() (*World, error) {
	if err := Healthy(); err != nil {
		return nil, err
	}
	w := initial.Load()
	if w == nil {
		return nil, status.New(status.NotInitialized, "not initialised: call init_process_group first (or it was destroyed)")
	}
	return w, nil
}

// All returns the group of all ranks of w.
func (w *World) All() *group.Group { return w.all.Load() }

// Transport returns what carries the messages of w.
func (w *World) Transport() string {
	if w.MPI == nil {
		return "node"
	}
	return "mpi"
}

// Add makes a group of w, which gets the next id. Several threads may make groups at once.
func (w *World) Add(make func(id int64) (*group.Group, error)) (*group.Group, error) {
	id := groups.last.Add(1)
	g, err := make(id)
	if err != nil {
		return nil, err
	}
	w.all.CompareAndSwap(nil, g)
	crash.NameGroup(id, w.Env.Topo.Rank, g.String())
	groups.Put(id, &member{w, g})
	return g, nil
}

// AtFinalize has leave called before MPI is finalized, by this library or by other code, unless w ends before.
func (w *World) AtFinalize(leave func()) {
	w.unclose = Closing.Add(func(finalizing bool) {
		if finalizing {
			leave()
		}
	})
}

// End makes calls no longer find w, because it was destroyed or this process leaves it.
func (w *World) End() {
	w.unclose()
	w.ended.Store(true)
}

// Reform is End because this process goes on in another world, in which no group of this one counts.
func (w *World) Reform() {
	w.Env.Reform()
	reformed.Store(groups.last.Load())
	reformWindows()
	w.End()
	ForgetInitial(w)
}

// ForgetGroups takes the groups of a world that has ended out of the table.
func (w *World) ForgetGroups() {
	groups.forgetIf(func(m *member) bool { return m.w == w })
}

// Remove destroys a group. Its world may still keep it, because MPI uses it or a wait was interrupted.
func Remove(g *group.Group) error {
	closeWindows(func(other *group.Group) bool { return other == g }, false)
	err := g.Destroy()
	groups.Forget(g.ID)
	return err
}

// RevokeWindows ends the calls of the windows of all groups of w, which was revoked. AbandonWindows gives them back.
func (w *World) RevokeWindows() {
	eachMaker(w.has, func(_ any, m *window.Windows) { m.Revoke() })
}

// AbandonWindows gives back what RevokeWindows has left.
func (w *World) AbandonWindows() {
	eachMaker(w.has, func(g any, m *window.Windows) {
		makers.Delete(g)
		m.Abandon()
	})
	ForgetWindows()
}

// CloseWindows closes the windows of all groups of w. leaving says that the process ends.
func (w *World) CloseWindows(leaving bool) {
	closeWindows(w.has, leaving)
}

func (w *World) has(g *group.Group) bool { return g.Env == w.Env }

// WorldOf returns this process's part in the world of a group.
func WorldOf(g *group.Group) (*World, error) {
	if m, ok := groups.Get(g.ID); ok {
		return m.w, nil
	}
	return nil, status.New(status.GroupDestroyed, "group %d was destroyed", g.ID)
}

// Group returns the group with an id.
func Group(id int64) (*group.Group, error) {
	w, err := Initial()
	if id == 0 {
		if err != nil {
			return nil, err
		}
		return w.all.Load(), nil
	}
	if m, ok := groups.Get(id); ok && !m.w.ended.Load() {
		return m.g, nil
	}
	switch {
	case err != nil:
		return nil, err
	case id < 0 || id > groups.last.Load():
		return nil, status.New(status.Argument, "there is no group %d", id)
	case id <= reformed.Load():
		return nil, status.New(status.GroupDestroyed, "group %d was of a world that was reformed; make a new one with new_group", id)
	case id < w.All().ID:
		return nil, status.New(status.GroupDestroyed, "group %d was destroyed with its world, before init_process_group was called again; make a new one with new_group", id)
	}
	return nil, status.New(status.GroupDestroyed, "group %d was destroyed; make a new one with new_group", id)
}

// NewWindow makes a window of this rank's memory, and returns its id. It is collective over the group with an id.
func NewWindow(memory *op.Buf, id int64, timeout time.Duration, nested bool) (int64, error) {
	g, err := Group(id)
	if err != nil {
		return 0, status.New(status.CodeOf(err), "Window: %v", err)
	}
	maker, _ := makers.LoadOrStore(g, window.Of(window.Group{Members: g.Members(), Calls: g}))
	w, err := maker.(*window.Windows).New(memory, timeout, nested)
	if err != nil {
		return 0, err
	}
	windows.Put(w.ID(), w)
	crash.NameWindow(w.ID(), g.ID)
	return w.ID(), nil
}
