package world

import (
	"sync"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
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

// Aware holds what is known of MPI. It is found out once. Ranks may get different answers, at
// different times, so a collective uses the flags of its arrival, which are the same on all
// members. Its methods are safe for concurrent use.
type Aware struct {
	// Trial tries whether MPI moves device memory; nil if it cannot be tried.
	Trial Trial

	base   transport.Comm
	staged bool                      // the settings allow a path through host memory
	known  atomic.Pointer[Awareness] // nil until the answer is known
	asked  sync.Once
	tried  chan struct{} // closed when it is; asked makes it
}

// CUDAAware tells whether MPI may be given the addresses of this rank's tensors in device memory,
// according to what is known now. If MPI says that it takes them, the first question starts a trial
// in the background. CUDAAware waits for the trial only if the settings allow no path through host
// memory; otherwise it returns false until the trial is over.
func (a *Aware) CUDAAware() bool {
	if known := a.known.Load(); known != nil {
		return known.Aware
	}
	return a.Awareness(!a.staged).Aware
}

// Awareness is CUDAAware with the reason. If wait is set it waits for a trial that is under way.
func (a *Aware) Awareness(wait bool) Awareness {
	a.asked.Do(func() {
		a.tried = make(chan struct{})
		if known := a.ask(); known != nil {
			a.answer(known)
		} else {
			go func() {
				works, seen := a.Trial()
				a.answer(&Awareness{Aware: works, How: "tried", Reason: seen})
			}()
		}
	})
	if wait {
		<-a.tried
	}
	if known := a.known.Load(); known != nil {
		return *known
	}
	return Awareness{How: "being tried", Reason: "MPI says that it takes GPU memory; a child process tries it"}
}

// ask returns what is known without a trial, nil if a trial is needed.
func (a *Aware) ask() *Awareness {
	claim := a.claim()
	switch {
	case claim.How == "set" || !claim.Aware:
	case a.Trial == nil:
		claim.Aware = false
		claim.Reason += "; but there is no Python to try it with: set " + envCUDAAware + "=1 if it does"
	default:
		return nil
	}
	return &claim
}

// claim returns what the user says, or else the transport, whose yes has to be tried.
func (a *Aware) claim() Awareness {
	if !a.base.HostMemoryOnly() {
		if forced, set, err := cudaForced(); err != nil {
			return Awareness{How: "set", Reason: err.Error()}
		} else if set {
			return Awareness{Aware: forced, How: "set", Reason: envCUDAAware + " says so"}
		}
	}
	says, text := a.base.TakesDeviceMemory()
	return Awareness{Aware: says, How: "asked", Reason: text}
}

func (a *Aware) answer(known *Awareness) {
	a.known.Store(known)
	close(a.tried)
}

// envCUDAAware is the variable in which the user says whether MPI takes the addresses of device
// memory: 1 or 0.
const envCUDAAware = "PADDLEMPI_CUDA_AWARE"

// cudaForced returns what envCUDAAware says, if it is set.
func cudaForced() (aware, set bool, err error) {
	switch v, _ := dl.Getenv(envCUDAAware); v {
	case "":
		return false, false, nil
	case "0", "1":
		return v == "1", true, nil
	default:
		return false, false, status.New(status.Argument, "%s=%q: it takes 1 (MPI is given the addresses of tensors in GPU memory, without a trial), "+
			"0 (it never is), or is left unset (MPI is asked, and tried)", envCUDAAware, v)
	}
}
