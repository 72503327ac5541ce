// Package gocore is the core of paddlempi: the composition root of the rooms below
// it and the few functions that capi offers across the C ABI. See doc.go for a tour.
package gocore

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/diagnose"
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// buildInfo says how the core was built; the build sets it.
var buildInfo string

var (
	initOnce sync.Mutex  // held by init, destroy and exit
	library  mpi.Library // stays after destroy: MPI can be initialised once only
	inUse    atomic.Bool // MPI does not let go of a request of a world that has ended
	poisoned atomic.Pointer[string]
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

// Init starts MPI, unless it runs already, and makes the first world, whose group of all ranks is
// the one that id 0 names. Collective.
func Init(o InitOptions) error {
	initOnce.Lock()
	defer initOnce.Unlock()
	if err := healthy(); err != nil {
		return err
	}
	if initial.Load() != nil {
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
	env.Trial = diagnose.NewTrial(library.Info(), env.Topo.LocalRank, o.Trial, closing.add)
	env.Engine.Panicked = func(p any) { Poison(fmt.Sprint(p)) }
	w := newWorld(library, env)
	if _, err := w.add(func(id int64) (*group.Group, error) { return env.World(id, o.Timeout) }); err != nil {
		return err
	}
	initial.Store(w)
	w.closesWithMPI()
	return nil
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

// Submit carries out one operation, or starts it. The number of the work is 0 when
// the operation is over. With an error it is 0 when MPI is done with the memory.
// nested says that the call comes from a handler that interrupted a wait of its own thread.
func Submit(d *op.Desc, nested bool) (uint64, work.Result, error) {
	g, err := groupOf(d.Group)
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
	g, err := groupOf(id)
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
	return r, release && err == nil && h.Forget(), err
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

// Destroy frees every group of the first world and what init made, after what is under way. MPI goes
// on until the process ends.
func Destroy() error {
	initOnce.Lock()
	defer initOnce.Unlock()
	w, err := first()
	if err != nil {
		return err
	}
	initial.Store(nil)
	return w.destroy()
}

// BeforeFinalize runs inside MPI_Finalize, whoever calls it: nothing of ours may be
// under way any more when MPI goes.
func BeforeFinalize() {
	closing.run(true)
	awaitOthers()
}

// Exit ends MPI when the process does. A status other than 0 takes the job with it:
// the other ranks would wait for this one for ever. With 0 the others are told that
// this rank comes no more, and MPI is finalized without a deadline, for they may go
// on alone. Where the application owns MPI, finalizing is its business.
func Exit(code int) {
	initOnce.Lock()
	defer initOnce.Unlock()
	running := library != nil && !library.Finalized()
	finalize := running && code == 0 && library.Info().Owner == "paddlempi"
	closing.run(finalize)
	if running && code != 0 {
		library.Abort(code)
	}
	if !finalize {
		return
	}
	if !awaitOthers() || inUse.Load() {
		return // after a failure MPI waits for ranks that never come, or uses memory of a broken group
	}
	_ = library.Finalize()
}

// Abort ends the job at once with the status given.
func Abort(code int) {
	if library != nil && !library.Finalized() {
		library.Abort(code)
	}
	os.Exit(code) // MPI_Abort does not return; this is for a library that is not there
}
