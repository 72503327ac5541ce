package control

import (
	"cmp"

	"github.com/paddlempi/paddlempi/gocore/dl"
	"github.com/paddlempi/paddlempi/gocore/lifecycle"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/work"
)

type initRequest struct {
	lifecycle.Options
	Timeout *float64 `json:"timeout"`
	Within  *float64 `json:"within"` // of the beginning; nil: timeout
	Abort   *bool    `json:"abort_on_death"`
}

func initialise(r initRequest, interrupt work.Interrupt) (any, error) {
	return start(r, interrupt, lifecycle.Init)
}

// reform begins a world as init does, in the place of one that was revoked.
func reform(r initRequest, interrupt work.Interrupt) (any, error) {
	return start(r, interrupt, lifecycle.Reform)
}

func revoke(r struct{ Why string }, _ work.Interrupt) (any, error) {
	return done, lifecycle.Revoke(r.Why)
}

func start(r initRequest, interrupt work.Interrupt, begin func(lifecycle.Options) error) (any, error) {
	o := r.Options
	o.Timeout, o.Interrupt = method.Seconds(r.Timeout), interrupt
	o.Within = method.Seconds(cmp.Or(r.Within, r.Timeout))
	v, _ := dl.Getenv("PADDLEMPI_ABORT_ON_DEATH")
	o.Survives = v == "0"
	if r.Abort != nil {
		o.Survives = !*r.Abort
	}
	if err := begin(o); err != nil {
		return nil, err
	}
	w := registry.InitialOrNil()
	t := w.Env.Topo
	_, why := w.Env.Node.Heaps()
	return map[string]any{"group": w.All().ID, "rank": t.Rank, "size": t.Size, "local_rank": t.LocalRank,
		"local_size": t.LocalSize, "no_heaps": why, "transport": w.Transport(), "generation": w.Env.Generation, "tuning_problem": w.Env.Groups.Tuning.Problem}, nil
}

func destroy(string, []byte, work.Interrupt) (any, error) { return done, lifecycle.Destroy() }

func abort(r struct{ Status int }, _ work.Interrupt) (any, error) {
	lifecycle.Abort(r.Status)
	return done, nil
}
