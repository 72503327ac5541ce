package gocore

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/diagnose"
	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/netif"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// methods are the methods of pmpi_control. Requests and replies are JSON objects. Control is for
// what happens a few times in a job, never for operations.
var methods = withServers(map[string]method.Func{
	"init":              controlInit,
	"destroy":           func([]byte, work.Interrupt) (any, error) { return struct{}{}, Destroy() },
	"new_group":         controlNewGroup,
	"cartesian":         controlCartesian,
	"halo":              controlHalo,
	"halo_boxes":        controlHaloBoxes,
	"graph":             controlGraph,
	"destroy_group":     controlDestroyGroup,
	"group_info":        controlGroupInfo,
	"set_timeout":       controlSetTimeout,
	"spawn":             controlSpawn,
	"get_parent":        controlParent,
	"accept":            controlAccept,
	"connect":           controlConnect,
	"disconnect":        controlDisconnect,
	"monitored_barrier": controlMonitoredBarrier,
	"info":              controlInfo,
	"cuda":              controlCUDA,
	"cuda_trial":        controlCUDATrial,
	"doctor_cuda":       controlDoctorCUDA,
	"launcher":          controlLauncher,
	"addresses":         controlAddresses,
	"abort":             controlAbort,
	"heap_has":          controlHeapHas,
	"heap_adopt":        controlHeapAdopt,
	"heap_disown":       controlHeapDisown,
	"file_open":         controlFileOpen,
	"file_write":        controlFileWrite,
	"file_read":         controlFileRead,
	"file_sync":         controlFileSync,
	"file_close":        controlFileClose,
	"trace_dump":        controlTraceDump,
	"window_info":       controlWindowInfo,
	"window_in_use":     controlWindowInUse,
	"window_map":        controlWindowMap,
	"window_unmap":      controlWindowUnmap,
})

// withServers adds the methods of tables and parameter servers.
func withServers(all map[string]method.Func) map[string]method.Func {
	maps.Copy(all, servers.Methods())
	return all
}

// Control calls a method and returns its reply.
func Control(name string, request []byte, interrupt work.Interrupt) ([]byte, error) {
	f, ok := methods[name]
	if !ok {
		return nil, status.New(status.Argument, "control: there is no method %q", name)
	}
	if len(request) == 0 {
		request = []byte("{}")
	}
	reply, err := f(request, interrupt)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(reply)
	if err != nil {
		return nil, status.New(status.Panic, "control %s: %v", name, err)
	}
	return b, nil
}

func controlInit(request []byte, interrupt work.Interrupt) (any, error) {
	var r struct {
		MPI       *string  `json:"mpi"`
		Comm      *uint64  `json:"comm"`
		Timeout   *float64 `json:"timeout"`
		SysPrefix string   `json:"sys_prefix"`
		Trial     []string `json:"trial"`
		EndFile   *string  `json:"end_file"`
		Abort     *bool    `json:"abort_on_death"`
		Job       *Job     `json:"world"`
	}
	if err := method.Parse("init", request, &r); err != nil {
		return nil, err
	}
	o := InitOptions{Comm: r.Comm, Job: r.Job, Timeout: method.Seconds(r.Timeout), SysPrefix: r.SysPrefix, Trial: r.Trial, Interrupt: interrupt}
	if v, _ := dl.Getenv("PADDLEMPI_ABORT_ON_DEATH"); v == "0" {
		o.Survives = true
	}
	if r.Abort != nil {
		o.Survives = !*r.Abort
	}
	if r.MPI != nil {
		o.MPI = *r.MPI
	}
	if r.EndFile != nil {
		o.EndFile = *r.EndFile
	}
	if err := Init(o); err != nil {
		return nil, err
	}
	w := initial.Load()
	t := w.env.Topo
	_, why := w.env.Node.Heaps()
	return map[string]any{"group": w.all.Load().ID, "rank": t.Rank, "size": t.Size, "local_rank": t.LocalRank, "local_size": t.LocalSize,
		"no_heaps": why, "transport": w.transport()}, nil
}

func controlNewGroup(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Ranks   []int    `json:"ranks"`
		Timeout *float64 `json:"timeout"`
		Group   int64    `json:"group"` // of the world of the ranks
	}
	if err := method.Parse("new_group", request, &r); err != nil {
		return nil, err
	}
	w, err := worldOf(r.Group)
	if err != nil {
		return nil, err
	}
	t := w.env.Topo
	seen := make([]bool, t.Size)
	for i, rank := range r.Ranks {
		if rank < 0 || rank >= t.Size {
			return nil, status.New(status.Argument, "new_group: ranks[%d] is %d; the world has ranks 0 to %d", i, rank, t.Size-1)
		}
		if seen[rank] {
			return nil, status.New(status.Argument, "new_group: rank %d is in ranks twice", rank)
		}
		seen[rank] = true
	}
	if len(r.Ranks) == 0 {
		return nil, status.New(status.Argument, "new_group: ranks is empty; name at least one rank")
	}
	me := slices.Index(r.Ranks, t.Rank)
	if me < 0 {
		return map[string]any{"group": nil, "rank": -1}, nil
	}
	timeout := w.all.Load().Timeout()
	if r.Timeout != nil {
		timeout = method.Seconds(r.Timeout)
	}
	g, err := w.add(func(id int64) (*group.Group, error) { return group.New(w.env, id, r.Ranks, timeout) })
	if err != nil {
		return nil, err
	}
	return map[string]any{"group": g.ID, "rank": me}, nil
}

func namedGroup(what string, request []byte, r any, id *int64) (*group.Group, error) {
	if err := method.Parse(what, request, r); err != nil {
		return nil, err
	}
	return groupOf(*id)
}

func controlDestroyGroup(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Group int64 `json:"group"`
	}
	g, err := namedGroup("destroy_group", request, &r, &r.Group)
	if err != nil {
		return nil, err
	}
	return struct{}{}, remove(g)
}

func controlGroupInfo(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Group int64 `json:"group"`
	}
	g, err := namedGroup("group_info", request, &r, &r.Group)
	if err != nil {
		return nil, err
	}
	broken := ""
	if err := g.Broken(); err != nil {
		broken = err.Error()
	}
	return map[string]any{"group": g.ID, "rank": g.Rank, "size": g.Size, "ranks": g.Ranks,
		"timeout": g.Timeout().Seconds(), "one_node": g.Local(), "algorithm": g.Algorithm(), "broken": broken}, nil
}

func controlSetTimeout(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Group   int64    `json:"group"`
		Timeout *float64 `json:"timeout"`
	}
	g, err := namedGroup("set_timeout", request, &r, &r.Group)
	if err != nil {
		return nil, err
	}
	if r.Timeout == nil || *r.Timeout < 0 {
		return nil, status.New(status.Argument, "set_timeout: timeout must be a number of seconds, 0 or more")
	}
	g.SetTimeout(method.Seconds(r.Timeout))
	return struct{}{}, nil
}

func controlMonitoredBarrier(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Group   int64    `json:"group"`
		Timeout *float64 `json:"timeout"`
	}
	g, err := namedGroup("monitored_barrier", request, &r, &r.Group)
	if err != nil {
		return nil, err
	}
	timeout := g.Timeout()
	if r.Timeout != nil {
		timeout = method.Seconds(r.Timeout)
	}
	return struct{}{}, g.MonitoredBarrier(timeout)
}

// controlLauncher returns the launcher of this process. It neither looks for a library nor loads
// one.
func controlLauncher(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Hidden bool `json:"hidden"`
	}
	if err := method.Parse("launcher", request, &r); err != nil {
		return nil, err
	}
	if r.Hidden {
		return mpi.HiddenLauncher(), nil
	}
	return mpi.Launcher(), nil
}

// controlAddresses returns the addresses by which other hosts reach this one.
func controlAddresses(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		OneHost  bool   `json:"one_host"`
		Variable string `json:"variable"`
	}
	if err := method.Parse("addresses", request, &r); err != nil {
		return nil, err
	}
	return netif.Find(netif.Options{OneHost: r.OneHost, Other: r.Variable})
}

func controlAbort(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Status int `json:"status"`
	}
	if err := method.Parse("abort", request, &r); err != nil {
		return nil, err
	}
	Abort(r.Status)
	return struct{}{}, nil
}

// coreInfo is the reply of info.
type coreInfo struct {
	Build       string           `json:"build"`
	BuildID     string           `json:"build_id"` // of the sources
	Go          string           `json:"go"`
	Kernels     string           `json:"kernels"` // instruction set of the reductions
	CPUs        int              `json:"cpus"`
	PID         int              `json:"pid"`
	Initialized bool             `json:"initialized"`
	Transport   string           `json:"transport"` // what carries the messages of the world: "node" or "mpi"; "" before init
	MPI         *mpi.Info        `json:"mpi"`       // nil if none was found
	MPIError    string           `json:"mpi_error"` // why none was found, and what to install
	Looked      []string         `json:"looked"`    // where the core looked for MPI
	Launcher    mpi.LauncherInfo `json:"launcher"`
	Rank        *int             `json:"rank"`
	Size        *int             `json:"size"`
	Node        []int            `json:"node"` // node of each rank
	LocalRank   *int             `json:"local_rank"`
	LocalSize   *int             `json:"local_size"`
	Arrive      string           `json:"arrive"` // how the ranks of a node share memory; "" before init
	Helper      *helperInfo      `json:"helper"` // nil before init
	Heap        heapInfo         `json:"heap"`
	Liveness    *health.Watch    `json:"liveness"`     // nil before init
	ReportAfter *float64         `json:"report_after"` // seconds of a wait that is reported, 0: none is; nil before init
	Algorithms  any              `json:"algorithms"`   // which serve the group of all ranks; nil before init, and on one node
	CUDA        *diagnose.CUDA   `json:"cuda"`         // nil unless the request asked for it
}

// helperInfo says whether the progress thread may do the work of collectives for which no thread
// waits yet.
type helperInfo struct {
	CPUs  int      `json:"cpus"`  // CPUs on which this rank may run
	Ranks int      `json:"ranks"` // ranks of the node that may run on some of them, this one included
	Quota *float64 `json:"quota"` // CPUs that cgroups let the ranks of this node use; nil without a quota
	May   bool     `json:"may"`   // whether it may while a CPU is idle
}

func describeHelper(c *topo.CPUs) *helperInfo {
	info := &helperInfo{CPUs: c.Allowed, Ranks: c.Ranks, May: c.Spare()}
	if !math.IsInf(c.Quota, 1) {
		info.Quota = &c.Quota
	}
	return info
}

// controlInfo describes the core, the MPI and the launcher. It works before init and without MPI,
// and does not start MPI.
func controlInfo(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		MPI       *string `json:"mpi"`
		Named     string  `json:"mpi_named"`
		SysPrefix string  `json:"sys_prefix"`
		CUDA      bool    `json:"cuda"`
	}
	if err := method.Parse("info", request, &r); err != nil {
		return nil, err
	}
	info := coreInfo{Build: buildInfo, BuildID: buildID, Go: runtime.Version(), Kernels: reduce.ISA(), CPUs: runtime.NumCPU(), PID: os.Getpid(), Launcher: mpi.Launcher(), Heap: describeHeap()}
	if r.CUDA {
		found := diagnose.FindCUDA()
		info.CUDA = &found
	}
	if w := initial.Load(); w != nil {
		t := w.env.Topo
		info.Initialized, info.Transport = true, w.transport()
		if w.lib != nil {
			i := w.lib.Info()
			info.MPI = &i
		} else {
			info.MPIError = "the ranks of this job are connected without MPI"
		}
		info.Arrive, info.Helper = w.env.Node.Way(), describeHelper(&t.CPUs)
		watch := w.env.Roster.Watch()
		after := w.env.Reports.After.Seconds()
		info.Liveness, info.ReportAfter = &watch, &after
		if g := w.all.Load(); g != nil {
			if served := g.Served(); served != nil {
				info.Algorithms = served
			}
		}
		info.Rank, info.Size, info.LocalRank, info.LocalSize, info.Node = &t.Rank, &t.Size, &t.LocalRank, &t.LocalSize, t.Node
		return info, nil
	}
	o := mpi.Options{SysPrefix: r.SysPrefix, Named: r.Named}
	if r.MPI != nil {
		o.Path = *r.MPI
	}
	found, looked, err := mpi.Discover(o)
	info.Looked = looked
	if err == nil {
		var i mpi.Info
		if i, err = mpi.Probe(found.Path); err == nil {
			i.Why = found.Why
			info.MPI = &i
		} else {
			err = fmt.Errorf("%w; it is %s", err, found.Why)
		}
	}
	if err != nil {
		info.MPIError = err.Error()
	}
	return info, nil
}
