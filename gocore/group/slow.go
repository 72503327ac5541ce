package group

import (
	"fmt"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// This file has the waits of a group that are reported if they last long (health.Reports).

// reportCollective reports a wait in collective seq of g.
func (g *Group) reportCollective(s *health.Slowness, what string, seq uint64, moving bool, worker int, still func() bool) {
	w := health.Wait{What: g.Of(fmt.Sprintf("%s, number %d", what, seq)), How: "has not come", Nobody: "all members have come to it, and none of those that could be asked is stalled",
		Since: s.Since, ID: health.WaitID("collective", g.key, seq), Past: true, Key: g.key, Seq: seq, Moving: moving, Still: still}
	switch {
	case moving && worker >= 0 && worker != g.Rank:
		w.Ranks, w.Moving = []int{g.Ranks[worker]}, false
		w.How, w.Seq = "has not done its part of the transfer", 0
	case moving:
		w.Ranks = slices.Clone(g.Ranks)
	default:
		missing, known := g.arrival.Missing()
		if w.Ranks = g.World(missing); !known {
			w.Ranks = g.inquiry.notHere(seq)
		}
	}
	w.Ranks = slices.DeleteFunc(w.Ranks, func(r int) bool { return r == g.Env.Topo.Rank })
	g.Env.Reports.Report(&w)
}

// ReportWait reports a wait for a member, outside the order of the collectives, if it has lasted long. It tells whether it
// has. still says whether the wait goes on.
func (g *Group) ReportWait(what string, member int, since time.Time, still func() bool) bool {
	o := &g.Env.Reports
	if o.After == 0 || time.Since(since) < o.After {
		return false
	}
	if member != g.Rank {
		rank := g.Ranks[member]
		o.Report(&health.Wait{What: g.Of(what), How: "is awaited", Since: since, ID: health.WaitID("window", g.key, uint64(rank)), Key: g.key, Ranks: []int{rank}, Still: still})
	}
	return true
}

// Record carries out a call of a window, with an entry in the flight recorder.
func (g *Group) Record(code uint8, d op.DType, count int64, member, window int, call func() error) error {
	if !d.Valid() {
		d = 0 // a call without elements, or one that will be refused
	}
	mark := g.Env.Recorder.BeginAccess(g.ID, code, d, count, member, window)
	err := call()
	g.Env.Recorder.End(mark, err)
	return err
}

// reportIfSlow reports a wait in c, in which the caller's thread is. Of a transfer, worker returns the member that is awaited, or -1.
func (c *collective) reportIfSlow(s *health.Slowness, moving bool, worker func() int) {
	if e, mark := c.g.Env, c.trace; !c.g.silent && s.Due(&e.Reports, time.Now(), time.Time{}) {
		who := -1
		if worker != nil {
			who = worker()
		}
		c.g.reportCollective(s, health.Describe(c.sig), c.args.Seq, moving, who, func() bool { return e.Recorder.UnderWay(mark) })
	}
}

// reportIfSlow reports t if a caller has waited for it for long, or for a collective behind it.
func (t *task) reportIfSlow(now time.Time) {
	e := t.g.Env
	if t.g.silent || !t.slow.MayBeDue(&e.Reports, now) {
		return
	}
	if since := t.awaited(); !since.IsZero() && t.slow.Due(&e.Reports, now, since) {
		worker := -1
		if t.shared != nil && t.stage == running {
			worker = t.shared.Worker()
		}
		mark := t.collective.trace
		t.g.reportCollective(&t.slow, health.Describe(t.collective.sig), t.collective.args.Seq, t.stage != arriving, worker, func() bool { return e.Recorder.UnderWay(mark) })
	}
}

// awaited returns since when a caller waits for t, or for a collective of the queue, whose turn comes
// after t. The zero time: none does.
func (t *task) awaited() (since time.Time) {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	for _, u := range append([]*task{t}, t.g.queue...) {
		if at := u.handle.Awaited(); !at.IsZero() && (since.IsZero() || at.Before(since)) {
			since = at
		}
	}
	return since
}
