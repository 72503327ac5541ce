package gocore

import (
	"github.com/paddlempi/paddlempi/gocore/diagnose"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// controlCUDA returns whether MPI takes GPU memory, and how that is known.
func controlCUDA(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Wait bool `json:"wait"`
		Try  bool `json:"try"`
	}
	if err := method.Parse("cuda", request, &r); err != nil {
		return nil, err
	}
	w, err := initialWorld()
	if err != nil {
		return nil, err
	}
	if r.Try {
		if w.env.Device.Aware.Trial == nil {
			return world.Awareness{How: "asked", Reason: "there is no Python to try it with"}, nil
		}
		works, seen := w.env.Device.Aware.Trial()
		return world.Awareness{Aware: works, How: "tried", Reason: seen}, nil
	}
	return w.env.Device.Aware.Awareness(r.Wait), nil
}

// controlCUDATrial carries out a trial; it runs in the child process.
func controlCUDATrial(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Device    int    `json:"device"`
		SysPrefix string `json:"sys_prefix"`
	}
	if err := method.Parse("cuda_trial", request, &r); err != nil {
		return nil, err
	}
	initOnce.Lock()
	defer initOnce.Unlock()
	if library != nil {
		return nil, status.New(status.AlreadyInitialized, "cuda_trial: this process runs MPI already, and the trial may end it: start a new one")
	}
	moved, err := diagnose.Try(r.Device, r.SysPrefix)
	if err != nil {
		return nil, err
	}
	return map[string]string{"moved": moved}, nil
}

func controlDoctorCUDA(request []byte, _ work.Interrupt) (any, error) {
	r := diagnose.Request{Bytes: 1 << 20}
	if err := method.Parse("doctor_cuda", request, &r); err != nil {
		return nil, err
	}
	return diagnose.Run(&r, func() (mpi.Library, int, error) {
		w, err := initialWorld()
		if err != nil {
			return nil, 0, err
		}
		if w.lib == nil {
			return nil, 0, status.New(status.Unsupported, "doctor_cuda: this job runs without MPI")
		}
		return w.lib, w.env.Topo.Size, nil
	})
}
