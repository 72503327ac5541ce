package group

import (
	"sync"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/mpi"
)

// Awareness is whether MPI takes the addresses of device memory on this rank, and how
// that is known.
type Awareness struct {
	Aware  bool   `json:"aware"`
	How    string `json:"how"`    // "set" by the user, "asked" of MPI, "tried" in a child, "being tried"
	Reason string `json:"reason"` // what was set, said or seen
}

// Trial tries in a process of its own whether MPI moves device memory, for a crash must
// not be this one's, and tells what it saw.
type Trial func() (works bool, seen string)

// aware finds out about MPI once. Ranks may come to different answers, and at different
// times: a collective goes by the flags of its arrival, which all of them see.
type aware struct {
	known  atomic.Pointer[Awareness] // nil until asked
	asking sync.Mutex
	tried  chan struct{} // closed when the trial is over
}

// CUDAAware tells whether MPI may be given the addresses of this rank's tensors in device
// memory, as far as is known by now. Where MPI says that it takes them the first question
// starts the trial, which goes on in the background: no rank waits for it, and the others
// not for this one. Only where no other path may be taken instead it waits.
func (e *Env) CUDAAware() bool {
	if known := e.aware.known.Load(); known != nil {
		return known.Aware
	}
	return e.Awareness(!e.device.staged).Aware
}

// Awareness is CUDAAware with the reason; wait is whether to wait for a trial.
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

// ask returns what is known without a trial, nil where it takes one.
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
