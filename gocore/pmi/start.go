// Package pmi starts an MPI without its launcher, over several nodes. Every process starts MPI itself and
// answers what MPI asks of its launcher: PMI-1, version 1 of the process management interface, in
// which MPICH, Intel MPI and MVAPICH speak to mpirun.
//
// MPI puts its addresses as pairs of key and value. At a barrier the pairs of all ranks are exchanged by a
// function of the caller. So the job needs no server of its own: what has brought the ranks together,
// for instance torchrun's store, is used for a moment more.
//
// The server is a goroutine. MPI_Finalize runs after the interpreter has ended, and it asks too.
package pmi

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Job is the job of this process.
type Job struct {
	Rank int
	Node []int // the node of each rank, by any number
	// Interrupt is asked from time to time while MPI starts, and ends that by an error. It may be nil.
	Interrupt func() error
}

// local returns this rank's number among the ranks of its node, and how many they are.
func (j Job) local() (rank, size int) {
	for r, n := range j.Node {
		if n == j.Node[j.Rank] {
			size++
			if r < j.Rank {
				rank++
			}
		}
	}
	return rank, size
}

// Open is mpi.Open for a rank of a job that no launcher of an MPI has started. It is collective over
// the job: an MPI that this process has started before must have been started on all ranks. All ranks
// must have the same MPI. If a rank cannot start MPI, Open returns an error on all ranks, within o.Timeout
// after the last rank has come.
//
// Only Open calls gather and j.Interrupt, and on the thread that has called it.
func Open(o mpi.Options, j Job, gather Gather) (mpi.Library, error) {
	a := &attempt{job: j, gather: gather, timeout: o.Timeout}
	localRank, localSize := j.local()
	o.SelfStart = &mpi.SelfStart{Rank: j.Rank, Size: len(j.Node), LocalRank: localRank, LocalSize: localSize, Init: a.init}
	lib, err := mpi.Open(o)
	if a.asked {
		return lib, err
	}
	mine := standing{Runs: true}
	if err != nil {
		mine = standing{Error: err.Error()}
	} else {
		mine.MPI = lib.Info().Version
	}
	if _, others := a.agree(mine); err == nil && others != nil {
		return nil, others
	}
	return lib, err
}

// attempt is one call of Open.
type attempt struct {
	job     Job
	gather  Gather
	timeout time.Duration
	asked   bool // the ranks have told each other how they stand
}

// init calls start, which is MPI_Init, while a server answers MPI.
func (a *attempt) init(lib mpi.Info, start func() error) error {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return status.New(status.Unsupported, "rank %d: no random number for the name of the job: %v", a.job.Rank, err)
	}
	first, err := a.agree(standing{MPI: lib.Version, Name: "paddlempi_" + hex.EncodeToString(random[:])})
	if err != nil {
		return err
	}
	barriers := make(chan barrier)
	s, err := serve(a.job, first.Name, func(mine []byte) ([][]byte, error) {
		b := barrier{mine, make(chan [][]byte)}
		barriers <- b // this waits for good if the start has failed, and so does the next line
		return <-b.all, nil
	})
	if err != nil {
		return err
	}
	takeBack := tell(s, a.job)
	defer takeBack()
	if err := a.await(lib, start, barriers, s.failed); err != nil {
		removeSegments()
		return err
	}
	s.started.Store(true)
	return nil
}

// barrier is a call of gather that the server's goroutine leaves to the thread that called Open.
type barrier struct {
	mine []byte
	all  chan [][]byte
}

// await calls MPI_Init in a thread of its own, so that an error of a barrier, Ctrl-C and the timeout end the wait for it.
func (a *attempt) await(lib mpi.Info, start func() error, barriers <-chan barrier, failed <-chan error) error {
	done := make(chan error, 1)
	go func() { done <- start() }()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	began := time.Now()
	for {
		select {
		case err := <-done:
			return err
		case err := <-failed:
			return err
		case b := <-barriers:
			all, err := a.gather(b.mine)
			if err != nil {
				return err
			}
			b.all <- all
			continue
		case <-look.C:
		}
		if a.job.Interrupt != nil {
			if err := a.job.Interrupt(); err != nil {
				return err
			}
		}
		if a.timeout > 0 && time.Since(began) > a.timeout {
			return status.New(status.Timeout, "rank %d: MPI_Init of %s has not returned within %v: a rank may have ended meanwhile, "+
				"or its host cannot be reached by the network that MPI has chosen", a.job.Rank, lib.Path, a.timeout)
		}
	}
}

// lookEvery is how often the wait for MPI_Init looks for an interrupt and the time.
const lookEvery = 50 * time.Millisecond

// standing is what the ranks tell each other before they start MPI.
type standing struct {
	MPI   string // the version of the library
	Runs  bool   // MPI runs in this process already
	Error string // why this rank cannot start MPI
	Name  string // of the space of keys, if this is rank 0
}

// agree returns what rank 0 tells, or an error if not all ranks can start the same MPI now.
func (a *attempt) agree(mine standing) (standing, error) {
	a.asked = true
	text, err := json.Marshal(mine)
	if err != nil {
		return standing{}, status.New(status.Argument, "rank %d: %v", a.job.Rank, err)
	}
	rows, err := a.gather(text)
	if err != nil {
		return standing{}, err
	}
	if len(rows) != len(a.job.Node) {
		return standing{}, status.New(status.Launcher, "rank %d: %d ranks of %d want to start MPI", a.job.Rank, len(rows), len(a.job.Node))
	}
	all := make([]standing, len(rows))
	for r, row := range rows {
		if err := json.Unmarshal(row, &all[r]); err != nil {
			return standing{}, status.New(status.Launcher, "rank %d has told the others no standing before MPI's start: %.80q", r, row).WithRanks(r)
		}
	}
	if err := compare(all); err != nil {
		// The store may end with rank 0's process. So no rank goes before all have read why.
		_, _ = a.gather(nil)
		return standing{}, err
	}
	return all[0], nil
}

// compare returns an error if the ranks do not all stand as rank 0 does.
func compare(all []standing) error {
	for r, s := range all {
		if s.Error != "" {
			return status.New(status.Launcher, "rank %d cannot start MPI: %s", r, s.Error).WithRanks(r)
		}
	}
	if name := all[0].Name; !all[0].Runs && (len(name) >= maxName || !oneWord(name) || strings.ContainsAny(name, "\n\x00")) {
		return status.New(status.Launcher, "rank 0 has named the job %.80q, which is no name of PMI-1", name).WithRanks(0)
	}
	var others []int
	for r, s := range all {
		if s.Runs != all[0].Runs || s.MPI != all[0].MPI {
			others = append(others, r)
		}
	}
	if others == nil {
		return nil
	}
	r := others[0]
	if all[r].Runs != all[0].Runs {
		with, without := 0, r
		if all[r].Runs {
			with, without = r, 0
		}
		return status.New(status.Launcher, "MPI runs already in the process of rank %d, and not in that of rank %d: it starts in all processes at once, "+
			"so start all processes of the job anew", with, without).WithRanks(others...)
	}
	return status.New(status.Launcher, "the ranks would start different MPIs: rank 0 has %.80q, and ranks %s have %.80q: install the same one on all nodes, "+
		"or name it with %s=/path/libmpi.so on all", all[0].MPI, status.Brief(others), all[r].MPI, mpi.EnvLibrary).WithRanks(others...)
}
