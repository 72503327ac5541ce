package group

import (
	"sync"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// Awareness says whether MPI takes the addresses of device memory on this rank, and how that is
// known.
type Awareness struct {
	Aware  bool   `json:"aware"`
	How    string `json:"how"`    // "set" by the user, "asked" of MPI, "tried" in a child process, "being tried"
	Reason string `json:"reason"` // the setting, MPI's answer, or what the trial saw
}

// Trial tries in a child process whether MPI moves device memory, because the attempt may crash. It
// also returns what it saw.
type Trial func() (works bool, seen string)

// aware holds what is known of MPI. It is found out once. Ranks may get different answers, at
// different times, so a collective uses the flags of its arrival, which are the same on all
// members.
type aware struct {
	known  atomic.Pointer[Awareness] // nil until the answer is known
	asking sync.Mutex
	tried  chan struct{} // closed when the trial is over; nil if there is none
}

// CUDAAware tells whether MPI may be given the addresses of this rank's tensors in device memory,
// according to what is known now. If MPI says that it takes them, the first question starts a trial
// in the background. CUDAAware waits for the trial only if the settings allow no path through host
// memory; otherwise it returns false until the trial is over.
func (e *Env) CUDAAware() bool {
	if known := e.aware.known.Load(); known != nil {
		return known.Aware
	}
	return e.Awareness(!e.device.staged).Aware
}

// Awareness is CUDAAware with the reason. If wait is set it waits for a trial that is under way.
func (e *Env) Awareness(wait bool) Awareness {
	a := &e.aware
	a.asking.Lock()
	if a.known.Load() == nil && a.tried == nil {
		if known := e.ask(); known != nil {
			a.known.Store(known)
		} else {
			a.tried = make(chan struct{})
			go e.try()
		}
	}
	tried := a.tried
	a.asking.Unlock()
	if wait && tried != nil {
		<-tried
	}
	if known := a.known.Load(); known != nil {
		return *known
	}
	return Awareness{How: "being tried", Reason: "MPI says that it takes GPU memory; a child process tries it"}
}

// ask returns what is known without a trial, nil if a trial is needed.
func (e *Env) ask() *Awareness {
	if forced, set, err := mpi.CUDAForced(); err != nil {
		return &Awareness{How: "set", Reason: err.Error()}
	} else if set {
		return &Awareness{Aware: forced, How: "set", Reason: mpi.EnvCUDAAware + " says so"}
	}
	q, ok := e.Lib.(mpi.CUDAQuery)
	if !ok {
		return &Awareness{How: "asked", Reason: "this MPI cannot be asked"}
	}
	says, text := q.QueryCUDA()
	switch {
	case !says:
		return &Awareness{How: "asked", Reason: text}
	case e.Trial == nil:
		return &Awareness{How: "asked", Reason: text + "; but there is no Python to try it with: set " + mpi.EnvCUDAAware + "=1 if it does"}
	}
	return nil
}

func (e *Env) try() {
	works, seen := e.Trial()
	e.aware.known.Store(&Awareness{Aware: works, How: "tried", Reason: seen})
	close(e.aware.tried)
}
