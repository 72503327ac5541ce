package control

import (
	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/join"
	"github.com/paddlempi/paddlempi/gocore/lifecycle"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/work"
)

type initRequest struct {
	MPI       string    `json:"mpi"`
	Comm      *uint64   `json:"comm"`
	Timeout   *float64  `json:"timeout"`
	SysPrefix string    `json:"sys_prefix"`
	Trial     []string  `json:"trial"`
	EndFile   string    `json:"end_file"`
	Abort     *bool     `json:"abort_on_death"`
	Job       *join.Job `json:"world"`
}

func initialise(r initRequest, interrupt work.Interrupt) (any, error) {
	v, _ := dl.Getenv("PADDLEMPI_ABORT_ON_DEATH")
	survives := v == "0"
	if r.Abort != nil {
		survives = !*r.Abort
	}
	start := join.Options{MPI: r.MPI, Comm: r.Comm, Job: r.Job, Timeout: method.Seconds(r.Timeout),
		SysPrefix: r.SysPrefix, Interrupt: interrupt}
	o := lifecycle.Options{Options: start, Trial: r.Trial, EndFile: r.EndFile, Survives: survives}
	if err := lifecycle.Init(o); err != nil {
		return nil, err
	}
	w := registry.InitialOrNil()
	t := w.Env.Topo
	_, why := w.Env.Node.Heaps()
	return map[string]any{"group": w.All().ID, "rank": t.Rank, "size": t.Size, "local_rank": t.LocalRank,
		"local_size": t.LocalSize, "no_heaps": why, "transport": w.Transport()}, nil
}

func destroy(string, []byte, work.Interrupt) (any, error) { return done, lifecycle.Destroy() }

type abortRequest struct {
	Status int `json:"status"`
}

func abort(r abortRequest, _ work.Interrupt) (any, error) {
	lifecycle.Abort(r.Status)
	return done, nil
}
