// Package gocore is the core of paddlempi. It connects the rooms below it and has the functions
// that capi offers across the C ABI. See doc.go for a tour.
package gocore

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/crash"
	"github.com/paddlempi/paddlempi/gocore/diagnose"
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/messages"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// Preempted is the status of a rank that leaves because the job was asked to end: EX_TEMPFAIL of
// sysexits.h. All ranks agree on that first, so that they leave in order, as with status 0.
const Preempted = 75

// buildInfo says how the core was built. The build sets it.
var buildInfo string

// buildID names the sources that the core was built of: tools/build/core.py. The build sets it.
var buildID string

var (
	initOnce sync.Mutex // held by Init, Destroy and Exit
	endFile  string     // InitOptions.EndFile
)

// Init starts MPI, unless it runs already or o.Job needs none, and makes the first world. Id 0 stands for that world's
// group of all ranks. Init is collective.
func Init(o InitOptions) error {
	initOnce.Lock()
	defer initOnce.Unlock()
	if o.Job != nil {
		defer o.Job.close()
	}
	if err := healthy(); err != nil {
		return err
	}
	if initial.Load() != nil {
		return status.New(status.AlreadyInitialized, "init: already initialised; call destroy_process_group first")
	}
	// A launcher may bind this process to one CPU. Calls of several threads must not queue for one
	// Go processor while one of them waits inside MPI.
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
	first := library == nil
	comm, lib, err := o.begin()
	if first && library != nil {
		if err := library.OnFinalize(BeforeFinalize); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	closeDeparted()
	env, err := world.NewEnv(comm, o.Timeout, o.Interrupt)
	if lib == nil {
		_ = comm.Free() // the world has a duplicate; a communicator of MPI belongs to others
	}
	if err != nil {
		if code := status.CodeOf(err); code == status.Timeout || code == status.Interrupted {
			inUse.Store(lib != nil) // MPI still waits for the ranks that did not come
		}
		return err
	}
	if endsTheJob(env) {
		forgetLast()
	}
	env.Groups.Survives = o.Survives
	if lib != nil {
		env.Device.Aware.Trial = diagnose.NewTrial(lib.Info(), env.Topo.LocalRank, o.Trial, closing.add)
	}
	env.Engine.Panicked = func(p any) { Poison(fmt.Sprint(p)) }
	w := newMembership(lib, env)
	if _, err := w.add(func(id int64) (*group.Group, error) { return group.World(env, id, o.Timeout) }); err != nil {
		return err
	}
	endFile = o.EndFile
	initial.Store(w)
	messages.SetInitial(w.all.Load().ID)
	crash.SetInitial(w.all.Load().ID)
	w.closesWithMPI()
	return nil
}

// Submit carries out an operation, or starts it. id is the number of the work, 0 if the operation
// is over. If Submit fails, id is 0 unless MPI may still use the memory. nested says that the call
// comes from a handler that interrupted a wait of its own thread.
func Submit(d *op.Desc, nested bool) (id uint64, r work.Result, err error) {
	var h *work.Handle
	if d.Prepared != 0 {
		h, r, err = submitPrepared(d, nested)
	} else {
		var g *group.Group
		if g, err = groupOf(d.Group); err != nil {
			return 0, r, status.New(status.CodeOf(err), "%s: %v", d.Code, err)
		}
		h, r, err = g.Submit(d, nested)
	}
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

// Refuse tells the members of a group that this rank takes no part in their next collective.
func Refuse(id int64, code op.Code) error {
	g, err := groupOf(id)
	if err != nil {
		return err
	}
	return g.Refuse(code)
}

// Wait waits until a work is over, up to limit. If limit is negative, it waits until the
// operation's own deadline. If release is set, and the work succeeded and left nothing on a device,
// Wait releases it and returns released = true. released is also true if the work does not exist,
// because another thread has released it. A work may outlive its world.
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

// Test advances a work without waiting, and returns whether it is over.
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

// Destroy frees the first world and its groups, after it has given operations under way time to
// end. MPI runs until the process ends.
func Destroy() error {
	initOnce.Lock()
	defer initOnce.Unlock()
	w, err := initialWorld()
	if err != nil {
		return err
	}
	guests.disconnectAll()
	initial.Store(nil)
	return w.destroy()
}

// BeforeFinalize runs inside MPI_Finalize, which this library or other code has called. When it
// returns, the core has no operation of MPI under way.
func BeforeFinalize() {
	closing.run(true)
	guests.endWithProcess()
	awaitDepartures()
}

// launchersTurn is how long a process lives on that ends without MPI_Finalize. Its launcher hears of a death at the same
// time, and ends the job because of that. MPICH's otherwise sometimes sees the survivors end first, with status 0, and
// makes that the status of the job.
const launchersTurn = 500 * time.Millisecond

// Exit ends this rank's part in the job when the process ends. With the status 0 and Preempted the other ranks are told
// that this one has left. MPI is then finalized, without a deadline, because the others may go on for long. If the
// application initialised MPI, the application finalizes it. Another status ends the whole job by MPI, because the other
// ranks would wait for this one for ever. Without MPI they see that this one has died; who started them ends them.
func Exit(code int) {
	initOnce.Lock()
	defer initOnce.Unlock()
	running := library != nil && !library.Finalized()
	inOrder := code == 0 || code == Preempted
	finalize := inOrder && (library == nil || running && library.Info().Owner == "paddlempi")
	if !inOrder {
		tellFailure(code)
	}
	closing.run(finalize)
	if !inOrder {
		noteEnd(code)
		if running {
			library.Abort(code)
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
	guests.endWithProcess()
	if !awaitDepartures() || inUse.Load() || !endTogether() {
		// A rank has died or ended, or does not come back from MPI: MPI_Finalize would wait for it.
		if running {
			time.Sleep(launchersTurn)
		}
		return
	}
	if running {
		_ = library.Finalize()
	}
}

// tellFailure tells the ranks of this node that this process ends with a status, which is not 0.
func tellFailure(code int) {
	if w := initial.Load(); w != nil {
		w.env.Node.Fail(code)
	}
}

// noteEnd tells the program that started the launcher, by a line in a file, that this process ends
// by its own will, and with which status. A launcher's own status does not tell that.
func noteEnd(code int) {
	if endFile == "" {
		return
	}
	// The process ends, so that an error of the file has nobody to go to.
	if f, err := os.OpenFile(endFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		_, _ = fmt.Fprintf(f, "exit %d\n", code)
		_ = f.Close()
	}
}

// Abort ends the whole job at once with a status; without MPI only this process, as Exit does.
func Abort(code int) {
	noteEnd(code)
	tellFailure(code)
	if library != nil && !library.Finalized() {
		library.Abort(code)
	}
	os.Exit(code) // not reached if MPI runs: MPI_Abort does not return
}
