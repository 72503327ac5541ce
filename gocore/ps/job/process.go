// Package job is what one process has of parameter servers: its tables and KVs by number, and its
// part in a job of trainers and servers.
//
// A call of the program comes in by one of two doors. Process.Call is for rows (call.go): it finds
// the tables or the KV by number and has them carry the call out, here (package table) or by the
// client of this rank's job. Methods are for what happens a few times in a job: open.go makes this
// rank's links, server, service and client; trainer.go asks the servers' services; cuts.go leads a
// checkpoint. On the other side of those, service.go answers what trainers ask, and phases.go
// carries the phases of a checkpoint out.
package job

import (
	"sync"
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Core is what this room needs of the core that it is a part of.
type Core struct {
	// Healthy returns why the core takes no calls; nil while it does.
	Healthy func() error
	// Group returns a group by its id, and the interrupt of the program's world.
	Group func(id int64) (*group.Group, work.Interrupt, error)
	// AtEnd has a function called before MPI is finalized or the process ends. remove takes it
	// back.
	AtEnd func(end func(finalizing bool)) (remove func())
	// Poison notes a panic, after which the core takes no calls.
	Poison func(why string)
}

// Process has the tables and KVs of one process, and its job with parameter servers. All methods
// may be called from any goroutine.
type Process struct {
	core   Core
	tables tables

	// mu guards the rest. Nobody waits for another process while he holds it: a signal handler that
	// runs in such a wait may call a function that takes it.
	mu      sync.Mutex
	job     *job // nil before ps_init and after ps_close
	opening int  // the thread of a ps_init that is under way; 0: none is
	deaths  int  // errors of deaths that the program has got since ps_init
}

// New returns a process without tables and without a job.
func New(core Core) *Process { return &Process{core: core} }

// Methods returns the methods of pmpi_control that this room has.
func (p *Process) Methods() map[string]method.Func {
	return map[string]method.Func{
		"table_new":        p.tableNew,
		"table_info":       p.tableInfo,
		"table_stamps":     p.tableStamps,
		"table_sketch":     p.tableSketch,
		"table_free":       p.tableFree,
		"ps_init":          p.begin,
		"ps_declare":       p.declare,
		"ps_kv_declare":    p.declareKV,
		"ps_kv_next":       p.nextOfKVs,
		"ps_kv_fail":       p.failOfKV,
		"ps_serve":         p.serve,
		"ps_set_mode":      p.setMode,
		"ps_flush":         p.flush,
		"ps_last_push":     p.lastPush,
		"ps_complete":      p.complete,
		"ps_refuse":        p.refuse,
		"ps_tasks_open":    p.tasksOpen,
		"ps_tasks_next":    p.tasksNext,
		"ps_tasks_say":     p.tasksSay,
		"ps_barrier":       p.barrier,
		"ps_learning_rate": p.learningRate,
		"ps_stats":         p.stats,
		"ps_save":          p.save,
		"ps_restore":       p.restore,
		"ps_latest":        p.latest,
		"ps_close":         p.close,
		"ps_status":        p.status,
	}
}

// Told notes that the program gets an error of the core. One that has caught the error of a death
// is not told of it again at its end.
func (p *Process) Told(err error) {
	if status.CodeOf(err) == status.PeerDied {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.deaths++
	}
}

// current returns the job of this process.
func (p *Process) current(what string) (*job, error) {
	if err := p.core.Healthy(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.job == nil {
		return nil, status.New(status.NotInitialized, "%s: there are no parameter servers: call ps.init first (or it was closed)", what)
	}
	return p.job, nil
}

// trainer returns the job of a rank that is a trainer.
func (p *Process) trainer(what string) (*job, error) {
	j, err := p.current(what)
	if err == nil && j.client == nil {
		err = status.New(status.Argument, "%s: rank %d is no trainer; trainers are ranks %v", what, j.group.Rank, j.trainers)
	}
	if err == nil {
		err = j.client.Completed(what)
	}
	return j, err
}

// server returns the job of a rank that is a server.
func (p *Process) server(what string) (*job, error) {
	j, err := p.current(what)
	if err == nil && j.server == nil {
		err = status.New(status.Argument, "%s: rank %d is no server; servers are ranks %v", what, j.group.Rank, j.servers)
	}
	return j, err
}

// thread is the number of the thread that calls. A call from C, and every call that its interrupts
// make, is on one.
func thread() int { return syscall.Gettid() }
