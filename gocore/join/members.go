package join

import (
	"runtime"
	"time"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// membersLimit is how long MPI may take to make a communicator of ranks that have met. It takes milliseconds. MPICH never
// returns once a rank of the job has died, and no MPI must if one dies meanwhile.
const membersLimit = 5 * time.Second

// connectMembers connects some ranks of a job that MPI's launcher has started, after others have died. They have met in the world
// that id names. The call of MPI has no deadline, so it is made on a thread of its own, which may never come back.
func connectMembers(members []int, id string, within time.Duration, interrupt work.Interrupt) (transport.Comm, mpi.Library, error) {
	lib, ranks := registry.MPI, make([]int32, len(members))
	if lib == nil || lib.Finalized() {
		return nil, nil, status.New(status.NotInitialized, "reform: the members %v are ranks of MPI's world, and MPI does not run in this process", members)
	}
	for i, r := range members {
		ranks[i] = int32(r)
	}
	type result struct {
		comm mpi.Comm
		err  error
	}
	made := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		comm, err := lib.CreateWithout(ranks, id)
		made <- result{comm, err}
	}()
	tick := time.NewTicker(work.InterruptEvery)
	defer tick.Stop()
	limit := min(within, membersLimit)
	late := time.After(limit)
	for {
		select {
		case r := <-made:
			if r.err != nil {
				return nil, nil, r.err
			}
			comm, err := mpi.NewCommunicator(lib, r.comm)
			return comm, lib, err
		case <-late:
			return nil, nil, status.New(status.Timeout, "reform: after %v %s had not made a communicator of the %d ranks that have met", limit, lib.Info().Name, len(ranks))
		case <-tick.C:
			if interrupt == nil {
				continue
			}
			if err := interrupt(); err != nil {
				return nil, nil, err
			}
		}
	}
}
