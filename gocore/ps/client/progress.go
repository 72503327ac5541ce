package client

import (
	"slices"
	"sync"
)

// progress is how far this trainer has come at the servers.
type progress struct {
	mu    sync.Mutex
	here  []atServer
	epoch int64 // how often rows were removed
	// The sum of the pushes' staleness, and how many answers of servers it is of.
	stale, updates int64
}

// atServer is how far this trainer has come at a server.
type atServer struct {
	steps       int64 // pushes that were applied
	version     int64 // of the last pull's rows; -1: nothing was pulled
	stepsAtPull int64
	unsure      bool // the effect of a push is unknown: the server may have made a step of it
}

// seen returns which version of each server the last pull has seen, with the updates of this trainer
// since then; -1: nothing was pulled.
func (p *progress) seen() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := make([]int64, len(p.here))
	for s, h := range p.here {
		seen[s] = h.version
		if h.version >= 0 {
			seen[s] += h.steps - h.stepsAtPull // this trainer's own updates do not make its rows stale
		}
	}
	return seen
}

// stepped notes what has become of a step on each server. One that was not applied leaves all as it
// was, also that an earlier one is unknown.
func (p *progress) stepped(results []result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s, r := range results {
		here := &p.here[s]
		switch r.effect {
		case Applied:
			here.steps, here.unsure = r.answer.Steps, false
			p.stale += r.answer.Staleness
			p.updates++
		case Unknown:
			here.unsure = true
		}
	}
}

// pulled notes which versions of the servers a pull has seen.
func (p *progress) pulled(results []result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s, r := range results {
		if r.effect == Applied {
			p.here[s].version, p.here[s].stepsAtPull = r.answer.Version, p.here[s].steps
		}
	}
}

// made notes that the servers have the rows of a call.
func (p *progress) made(t *travel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range t.tables {
		t.tables[i].madeAt = p.epoch
	}
}

// has tells whether the servers are known to have the rows of a call, of the tables with a limit.
func (p *progress) has(t *travel) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.ContainsFunc(t.tables, func(r onTheWay) bool {
		return r.table.Limit && r.madeAt != p.epoch && len(r.plan.Unique) > 0
	})
}
