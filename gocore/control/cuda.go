package control

import (
	"github.com/paddlempi/paddlempi/gocore/diagnose"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// cuda returns whether MPI takes GPU memory, and how that is known.
func cuda(r struct{ Wait, Try bool }, _ work.Interrupt) (any, error) {
	w, err := registry.Initial()
	if err != nil {
		return nil, err
	}
	if !r.Try {
		return w.Env.Device.Aware.Awareness(r.Wait), nil
	}
	if w.Env.Device.Aware.Trial == nil {
		return world.Awareness{How: "asked", Reason: "there is no Python to try it with"}, nil
	}
	works, seen := w.Env.Device.Aware.Trial()
	return world.Awareness{Aware: works, How: "tried", Reason: seen}, nil
}

type trialRequest struct {
	Device    int    `json:"device"`
	SysPrefix string `json:"sys_prefix"`
}

// cudaTrial carries out a trial; it runs in the child process.
func cudaTrial(r trialRequest, _ work.Interrupt) (any, error) {
	registry.Starting.Lock()
	defer registry.Starting.Unlock()
	if registry.MPI != nil {
		return nil, status.New(status.AlreadyInitialized, "cuda_trial: this process runs MPI already, and the trial may end it: start a new one")
	}
	moved, err := diagnose.Try(r.Device, r.SysPrefix)
	if err != nil {
		return nil, err
	}
	return map[string]string{"moved": moved}, nil
}

func doctorCUDA(name string, request []byte, _ work.Interrupt) (any, error) {
	r := diagnose.Request{Bytes: 1 << 20}
	if err := method.Parse(name, request, &r); err != nil {
		return nil, err
	}
	return diagnose.Run(&r, func() (mpi.Library, int, error) {
		w, err := registry.Initial()
		if err != nil {
			return nil, 0, err
		}
		if w.MPI == nil {
			return nil, 0, status.New(status.Unsupported, "doctor_cuda: this job runs without MPI")
		}
		return w.MPI, w.Env.Topo.Size, nil
	})
}
