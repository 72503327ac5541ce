// Package lifecycle begins and ends the core of a process: init and the first world, the end of a
// world, and the end of the process, which has to be in order with the other ranks and with MPI.
package lifecycle

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/diagnose"
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/join"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// Options are the arguments of init.
type Options struct {
	join.Options
	Trial    []string `json:"trial"`      // the command that calls control method cuda_trial in a new process
	EndFile  string   `json:"end_file"`   // file to which a line with the exit status is appended; "": none
	Tables   []string `json:"way_tables"` // folders with tables of ways, in the order in which they are searched
	Survives bool     `json:"-"`          // this rank's calls must return an error if a member dies
}

// Init starts MPI, unless it runs already or o.Job needs none, and makes the first world. Id 0 stands for that world's
// group of all ranks. Init is collective.
func Init(o Options) error {
	registry.Starting.Lock()
	defer registry.Starting.Unlock()
	defer o.Close()
	if err := registry.Healthy(); err != nil {
		return err
	}
	if registry.InitialOrNil() != nil {
		return status.New(status.AlreadyInitialized, "init: already initialised; call destroy_process_group first")
	}
	return begin(o)
}

// begin is Init of a process that has no world. The caller holds registry.Starting.
func begin(o Options) error {
	// A launcher may bind this process to one CPU. Calls of several threads must not queue for one
	// Go processor while one of them waits inside MPI.
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
	first := registry.MPI == nil
	comm, lib, err := o.Connect()
	if first && registry.MPI != nil {
		if err := registry.MPI.OnFinalize(BeforeFinalize); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	closeDeparted()
	env, err := world.NewEnv(comm, o.Within, o.Interrupt)
	if lib == nil || o.Job != nil && o.Job.Members != nil {
		_ = comm.Free() // the world has a duplicate; a communicator of MPI belongs to others
	}
	if err != nil {
		if code := status.CodeOf(err); code == status.Timeout || code == status.Interrupted {
			registry.MPIInUse.Store(lib != nil) // MPI still waits for the ranks that did not come
		}
		return err
	}
	if o.Job != nil {
		env.Generation = o.Job.Generation
		env.Recorder.SetGeneration(env.Generation)
	}
	env.Answer()
	w := registry.NewWorld(env)
	if endsTheJob(w) {
		setLast(nil)
	}
	env.Groups.Survives = o.Survives
	var name, version string
	if lib != nil {
		name, version = lib.Info().Name, lib.Info().Version
		env.Device.Aware.Trial = diagnose.NewTrial(lib.Info(), env.Topo.LocalRank, o.Trial, registry.Closing.Add)
	}
	if err := shareTable(env, name, version, o.Tables); err != nil {
		return err
	}
	env.Engine.Panicked = func(p any) { registry.Poison(fmt.Sprint(p)) }
	if err := Enter(w, o.Timeout); err != nil {
		return err
	}
	registry.EndFile = o.EndFile
	return nil
}

// Enter makes a world the first one, and its group of all ranks.
func Enter(w *registry.World, timeout time.Duration) error {
	if _, err := w.Add(func(id int64) (*group.Group, error) { return group.World(w.Env, id, timeout) }); err != nil {
		return err
	}
	registry.SetInitial(w)
	w.AtFinalize(func() { leave(w) })
	return nil
}

// Destroy frees the first world and its groups, after it has given operations under way time to
// end. MPI runs until the process ends.
func Destroy() error {
	registry.Starting.Lock()
	defer registry.Starting.Unlock()
	w, err := registry.Initial()
	if err != nil {
		return err
	}
	for _, other := range registry.Guests.All() {
		_ = join.Disconnect(other, destroyTogether, nil)
	}
	if w.Env.WasRevoked() {
		err := endRevoked(w)
		giveUp(w)
		return err
	}
	registry.ForgetInitial(w)
	return destroy(w)
}

// destroyTogether is how long the end of a world waits for other ranks that end it, too.
const destroyTogether = time.Second

// destroy frees the groups of w and its environment, after it has given operations under way time
// to end.
func destroy(w *registry.World) error {
	w.End()
	w.CloseWindows(false)
	settled, err := w.Env.Destroy()
	w.ForgetGroups()
	registry.Departing = append(registry.Departing, w)
	// Ranks mostly destroy a world together. Then everything is freed now, and not at the next init.
	_ = work.NewEngine().Wait(func() bool {
		closeDeparted()
		return !slices.Contains(registry.Departing, w) || w.Env.Departure.Deserted()
	}, time.Now().Add(destroyTogether), nil)
	if settled && w.MPI != nil { // else an operation of MPI may still use what FreeAll frees
		w.MPI.FreeAll()
	}
	return err
}
