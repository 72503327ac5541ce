package control

import (
	"fmt"
	"math"
	"os"
	"runtime"

	"github.com/paddlempi/paddlempi/gocore/diagnose"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/threads"
	"github.com/paddlempi/paddlempi/gocore/tune"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// The build sets these: tools/build/core.py.
var (
	buildInfo string // how the core was built
	buildID   string // of the sources that it was built of
)

// coreInfo is the reply of info.
type coreInfo struct {
	Build       string           `json:"build"`
	BuildID     string           `json:"build_id"` // of the sources
	Go          string           `json:"go"`
	Kernels     string           `json:"kernels"` // instruction set of the reductions
	CPUs        int              `json:"cpus"`
	PID         int              `json:"pid"`
	Initialized bool             `json:"initialized"`
	Generation  int              `json:"generation"` // how often the world was reformed before it became this one
	Transport   string           `json:"transport"`  // what carries the messages of the world: "node" or "mpi"; "" before init
	MPI         any              `json:"mpi"`        // mpi.Info; nil if none was found
	MPIError    string           `json:"mpi_error"`  // why none was found, and what to install
	Looked      []string         `json:"looked"`     // where the core looked for MPI
	Launcher    mpi.LauncherInfo `json:"launcher"`
	Rank        *int             `json:"rank"`
	Size        *int             `json:"size"`
	Node        []int            `json:"node"` // node of each rank
	LocalRank   *int             `json:"local_rank"`
	LocalSize   *int             `json:"local_size"`
	Arrive      string           `json:"arrive"`  // how the ranks of a node share memory; "" before init
	Threads     int              `json:"threads"` // of this rank that work on a long collective, the caller's included; 0 before init
	Helper      map[string]any   `json:"helper"`  // whether the progress thread may do the work of others; nil before init
	Heap        heapInfo         `json:"heap"`
	Liveness    any              `json:"liveness"`     // health.Watch; nil before init
	ReportAfter any              `json:"report_after"` // seconds of a wait that is reported, 0: none is; nil before init
	Algorithms  any              `json:"algorithms"`   // which serve the group of all ranks; nil before init, and on one node
	Tuning      any              `json:"tuning"`       // tuningInfo; nil before init, and where nothing is tuned
	CUDA        any              `json:"cuda"`         // diagnose.CUDA; nil unless the request asked for it
}

// tuningInfo says with which table of ways the world began. All but Rows is what rank 0 knows.
type tuningInfo struct {
	Format  int              `json:"format"` // of a table that this core reads
	Here    tune.Fingerprint `json:"for"`
	Name    string           `json:"name"` // of the file of a table for this world
	File    string           `json:"file"` // that was found; "": none
	Rows    int              `json:"rows"` // of the table that is taken
	Problem string           `json:"problem"`
}

type infoRequest struct {
	MPI       string `json:"mpi"`
	Named     string `json:"mpi_named"`
	SysPrefix string `json:"sys_prefix"`
	CUDA      bool   `json:"cuda"`
}

// info describes the core, the MPI and the launcher. It works before init and without MPI, and does not start MPI.
func info(r infoRequest, _ work.Interrupt) (any, error) {
	c := coreInfo{Build: buildInfo, BuildID: buildID, Go: runtime.Version(), Kernels: reduce.ISA(),
		CPUs: runtime.NumCPU(), PID: os.Getpid(), Launcher: mpi.Launcher(), Heap: describeHeap()}
	if r.CUDA {
		c.CUDA = diagnose.FindCUDA()
	}
	if w := registry.InitialOrNil(); w != nil {
		c.describeWorld(w)
	} else {
		c.describeMPI(mpi.Options{Path: r.MPI, SysPrefix: r.SysPrefix, Named: r.Named})
	}
	return c, nil
}

// describeWorld fills in what is known after init.
func (c *coreInfo) describeWorld(w *registry.World) {
	t := w.Env.Topo
	c.Initialized, c.Generation, c.Transport = true, w.Env.Generation, w.Transport()
	if w.MPI != nil {
		c.MPI = w.MPI.Info()
	} else {
		c.MPIError = "the ranks of this job are connected without MPI"
	}
	c.Arrive, c.Threads = w.Env.Node.Way(), threads.Count()
	// The CPUs on which this rank may run, the ranks of the node that may run on some of them, this one included, and whether
	// the progress thread may do the work of collectives for which no thread waits yet, while a CPU is idle.
	c.Helper = map[string]any{"cpus": t.CPUs.Allowed, "ranks": t.CPUs.Ranks, "may": t.CPUs.Spare(), "quota": nil}
	if !math.IsInf(t.CPUs.Quota, 1) {
		c.Helper["quota"] = t.CPUs.Quota // CPUs that cgroups let the ranks of this node use
	}
	c.Liveness, c.ReportAfter, c.Algorithms = w.Env.Roster.Watch(), w.Env.Reports.After.Seconds(), w.All().Served()
	if w.Env.Tunes() {
		known := w.Env.Groups.Tuning
		told := tuningInfo{tune.Format, known.Here, "", known.File, known.Table.Rows(), known.Problem}
		if t.Rank == 0 {
			told.Name = known.Here.Name()
		}
		c.Tuning = told
	}
	c.Rank, c.Size, c.LocalRank, c.LocalSize, c.Node = &t.Rank, &t.Size, &t.LocalRank, &t.LocalSize, t.Node
}

// describeMPI fills in which MPI an init would take, or why there is none.
func (c *coreInfo) describeMPI(o mpi.Options) {
	found, looked, err := mpi.Discover(o)
	c.Looked = looked
	if err == nil {
		var i mpi.Info
		if i, err = mpi.Probe(found.Path); err == nil {
			i.Why = found.Why
			c.MPI = i
			return
		}
		err = fmt.Errorf("%w; it is %s", err, found.Why)
	}
	c.MPIError = err.Error()
}
