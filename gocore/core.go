// Package gocore is the core of paddlempi: the composition root of the rooms below
// it and the few functions that capi offers across the C ABI. See doc.go for a tour.
package gocore

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// buildInfo says how the core was built; the build sets it.
var buildInfo string

// core is what exists between init and destroy.
type core struct {
	lib    mpi.Library
	env    *group.Env
	first  int64                          // id of groups[0], the world
	groups atomic.Pointer[[]*group.Group] // by id, counted from first; grows, never shrinks, so that an old id stays known
	mu     sync.Mutex                     // serialises changes of groups
}

var (
	current   atomic.Pointer[core]     // nil before init and after destroy
	initOnce  sync.Mutex               // held by init, destroy and exit
	library   mpi.Library              // stays after destroy: MPI can be initialised once only
	inUse     atomic.Bool              // MPI does not let go of a request of an earlier life
	departing []*group.Env             // of earlier lives, while ranks that they hold did not depart
	nextID    int64                = 1 // of a group; ids are unique for the process, and 0 is the world of the day
	poisoned  atomic.Pointer[string]
)

// InitOptions is what init is told.
type InitOptions struct {
	MPI       string        // path of libmpi, "" to find it
	Comm      *uint64       // communicator to take for the world, in MPI's own representation
	Timeout   time.Duration // default deadline of every operation
	SysPrefix string        // Python's sys.prefix
	Trial     []string      // the command that calls control method cuda_trial in a new process
	Interrupt work.Interrupt
}

// Init starts MPI, unless it runs already, and makes the group of all ranks, which
// has id 0. Collective.
func Init(o InitOptions) error {
	initOnce.Lock()
	defer initOnce.Unlock()
	if err := healthy(); err != nil {
		return err
	}
	if current.Load() != nil {
		return status.New(status.AlreadyInitialized, "init: already initialised; call destroy_process_group first")
	}
	// Affinity may leave one CPU, but calls of several threads must not queue for it
	// while one of them waits inside MPI.
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
	if library != nil && o.MPI != "" && o.MPI != library.Info().Path {
		return status.New(status.Argument, "init: mpi=%q, but %s was initialised before in this process, and MPI starts once only", o.MPI, library.Info().Path)
	}
	first := library == nil
	if first || !library.Finalized() {
		// After a destroy Open returns the same library, with what destroy freed made anew.
		lib, err := mpi.Open(mpi.Options{Path: o.MPI, SysPrefix: o.SysPrefix, Timeout: o.Timeout})
		if err != nil {
			return err
		}
		library = lib
	}
	if first {
		if err := library.OnFinalize(BeforeFinalize); err != nil {
			return err
		}
	}
	if library.Finalized() {
		return status.New(status.NotInitialized, "init: MPI was finalized in this process and cannot start again")
	}
	world := library.World()
	if o.Comm != nil {
		world = mpi.Comm(*o.Comm)
		if library.Info().ABI == "mpich" {
			world &= 0xffffffff
		}
	}
	sweep()
	env, err := group.NewEnv(library, world, o.Timeout, o.Interrupt)
	if err != nil {
		if code := status.CodeOf(err); code == status.Timeout || code == status.Interrupted {
			inUse.Store(true) // MPI still waits for the ranks that did not come
		}
		return err
	}
	env.Trial = newTrial(library.Info(), env.Topo.LocalRank, o.Trial)
	env.Engine.Panicked = func(p any) { Poison(fmt.Sprint(p)) }
	c := &core{lib: library, env: env, first: nextID}
	c.groups.Store(&[]*group.Group{})
	if _, err := c.add(func(id int64) (*group.Group, error) { return env.World(id, o.Timeout) }); err != nil {
		return err
	}
	current.Store(c)
	return nil
}

// add makes a group and gives it the next id.
func (c *core) add(make func(id int64) (*group.Group, error)) (*group.Group, error) {
	c.mu.Lock()
	at := len(*c.groups.Load())
	id := c.first + int64(at)
	list := append(append([]*group.Group(nil), *c.groups.Load()...), nil)
	c.groups.Store(&list) // reserves the id, for several threads may make groups at once
	c.mu.Unlock()
	g, err := make(id)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	list = append([]*group.Group(nil), *c.groups.Load()...)
	list[at] = g
	c.groups.Store(&list)
	c.mu.Unlock()
	return g, nil
}

func (c *core) group(id int64) (*group.Group, error) {
	list := *c.groups.Load()
	at := id - c.first
	switch {
	case id == 0:
		at = 0
	case id > 0 && at < 0:
		return nil, status.New(status.GroupDestroyed, "group %d was destroyed with its world, before init_process_group was called again; make a new one with new_group", id)
	case at < 0 || at >= int64(len(list)) || list[at] == nil:
		return nil, status.New(status.Argument, "there is no group %d", id)
	}
	return list[at], nil
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
}

func get() (*core, error) {
	if err := healthy(); err != nil {
		return nil, err
	}
	c := current.Load()
	if c == nil {
		return nil, status.New(status.NotInitialized, "not initialised: call init_process_group first (or it was destroyed)")
	}
	return c, nil
}

// Submit carries out one operation, or starts it. The number of the work is 0 when
// the operation is over. With an error it is 0 when MPI is done with the memory.
// nested says that the call comes from a handler that interrupted a wait of its own thread.
func Submit(d *op.Desc, nested bool) (uint64, work.Result, error) {
	c, err := get()
	if err != nil {
		return 0, work.Result{}, err
	}
	g, err := c.group(d.Group)
	if err != nil {
		return 0, work.Result{}, err
	}
	h, r, err := g.Submit(d, nested)
	if h == nil {
		return 0, r, err
	}
	if err != nil {
		return work.Register(h), r, err
	}
	if h.Done() && d.Flags&op.FlagNotify == 0 {
		if r, err := h.Result(); err == nil && r.Device == 0 {
			return 0, r, nil
		}
	}
	return work.Register(h), work.Result{}, nil
}

// Refuse publishes that this rank does not take part in a collective.
func Refuse(id int64, code op.Code) error {
	c, err := get()
	if err != nil {
		return err
	}
	g, err := c.group(id)
	if err != nil {
		return err
	}
	return g.Refuse(code)
}

// Wait waits for a work up to limit; a negative limit waits as long as its deadline. With release
// the number of a work that ended well, and of which nothing is left to ask, is forgotten: released
// tells, also when another thread was quicker. A work may outlive its world.
func Wait(id uint64, limit time.Duration, interrupt work.Interrupt, release bool) (r work.Result, released bool, err error) {
	if err := healthy(); err != nil {
		return r, false, err
	}
	h, err := work.Lookup(id)
	if err != nil {
		return r, true, err
	}
	r, err = h.Wait(limit, interrupt)
	return r, release && err == nil && r.Device == 0 && h.Settled() && work.Release(id), err
}

// Test tells whether a work is over, after taking it as far as it goes at once.
func Test(id uint64) (bool, error) {
	h, err := lookup(id)
	if err != nil {
		return false, err
	}
	return h.Test()
}

// Order makes a stream of the device wait for what a work has left queued there.
func Order(id, stream uint64) error {
	h, err := lookup(id)
	if err == nil {
		err = h.Order(stream)
	}
	return err
}

func lookup(id uint64) (*work.Handle, error) {
	if err := healthy(); err != nil {
		return nil, err
	}
	return work.Lookup(id)
}

// Destroy frees every group and what init made, after what is under way. MPI goes on until the process ends.
func Destroy() error {
	initOnce.Lock()
	defer initOnce.Unlock()
	c, err := get()
	if err != nil {
		return err
	}
	current.Store(nil)
	settled, err := c.env.Destroy()
	if nextID = c.first + int64(len(*c.groups.Load())); !settled {
		inUse.Store(true) // what MPI uses stays
		return err
	}
	departing = append(departing, c.env)
	sweep()
	c.lib.FreeAll()
	return err
}

// sweep frees the environments of earlier lives whose ranks have all departed.
func sweep() {
	departing = slices.DeleteFunc(departing, func(e *group.Env) bool {
		if !e.Gone() {
			return false
		}
		_ = e.Close()
		return true
	})
}

// BeforeFinalize runs inside MPI_Finalize, whoever calls it: nothing of ours may be
// under way any more when MPI goes.
func BeforeFinalize() {
	if c := current.Swap(nil); c != nil {
		leave(c)
	}
	awaitOthers()
}

// leave tells the others that this rank comes no more and ends what is under way, that
// of daemon threads included.
func leave(c *core) {
	if settled, _ := c.env.Leave(); settled {
		departing = append(departing, c.env)
	} else {
		inUse.Store(true)
	}
}

// awaitOthers returns when all ranks have departed of those that cannot see this one leave; it
// answers them until then.
func awaitOthers() {
	for _, e := range departing {
		e.AwaitGone()
	}
	departing = nil
}

// Exit ends MPI when the process does. A status other than 0 takes the job with it:
// the other ranks would wait for this one for ever. With 0 the others are told that
// this rank comes no more, and MPI is finalized without a deadline, for they may go
// on alone. Where the application owns MPI, finalizing is its business.
func Exit(code int) {
	initOnce.Lock()
	defer initOnce.Unlock()
	stopTrial()
	if library == nil || library.Finalized() {
		return
	}
	if code != 0 {
		library.Abort(code)
		return
	}
	if library.Info().Owner != "paddlempi" {
		return
	}
	if c := current.Swap(nil); c != nil {
		leave(c)
	}
	if inUse.Load() {
		return // MPI still uses memory of a broken group: finalizing would hang or crash
	}
	awaitOthers()
	_ = library.Finalize()
}

// Abort ends the job at once with the status given.
func Abort(code int) {
	if library != nil && !library.Finalized() {
		library.Abort(code)
	}
	os.Exit(code) // MPI_Abort does not return; this is for a library that is not there
}
