package collective

import (
	"fmt"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// This file has the waits of a group that are reported if they last long (health.Reports).

// reportCollective reports a wait in collective seq of g.
func (g *Group) reportCollective(s *health.Slowness, what string, seq uint64, moving bool, worker int, still func() bool) {
	w := health.Wait{What: g.Members().Of(fmt.Sprintf("%s, number %d", what, seq)), How: "has not come", Nobody: "all members have come to it, and none of those that could be asked is stalled",
		Since: s.Since, ID: health.WaitID("collective", g.Key, seq), Past: true, Key: g.Key, Seq: seq, Moving: moving, Still: still}
	switch {
	case moving && worker >= 0 && worker != g.Rank:
		w.Ranks, w.Moving = []int{g.Ranks[worker]}, false
		w.How, w.Seq = "has not done its part of the transfer", 0
	case moving:
		w.Ranks = slices.Clone(g.Ranks)
	default:
		missing, known := g.Arrival.Missing()
		if w.Ranks = g.Members().World(missing); !known {
			w.Ranks = g.Inquiry.notHere(seq)
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
		o.Report(&health.Wait{What: g.Members().Of(what), How: "is awaited", Since: since, ID: health.WaitID("window", g.Key, uint64(rank)), Key: g.Key, Ranks: []int{rank}, Still: still})
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

// reportIfSlow reports c if a caller has waited for it for long, or for a collective behind it.
func (c *collective) reportIfSlow(now time.Time) {
	e := c.g.Env
	if c.g.Silent || !c.slow.MayBeDue(&e.Reports, now) {
		return
	}
	var since time.Time
	if c.handle != nil {
		if since = c.g.turns.awaited(c); since.IsZero() {
			return
		}
	}
	if !c.slow.Due(&e.Reports, now, since) {
		return
	}
	worker := -1
	if c.chunks.op != nil || c.handle == nil {
		worker = c.worker()
	}
	mark := c.trace
	c.g.reportCollective(&c.slow, health.Describe(c.sig), c.args.Seq, c.stage != announced, worker, func() bool { return e.Recorder.UnderWay(mark) })
}

// stuck is a collective that is inside MPI, and what the watcher knows of the members.
type stuck struct {
	seq      uint64
	slow     health.Slowness
	mourning world.Mourning
}

// Stuck returns the collective in which a thread of this process waits inside a blocking MPI call that cannot end,
// because members have died. It returns nil if there is none.
func (g *Group) Stuck(now time.Time) *health.Stuck {
	s, seq := &g.stuck, g.blocking.Load()
	if s.seq != seq {
		*s = stuck{seq: seq}
	}
	if seq == 0 {
		return nil
	}
	if s.slow.Due(&g.Env.Reports, now, time.Time{}) {
		g.reportCollective(&s.slow, recordedAs(g, seq), seq, true, -1, func() bool { return g.blocking.Load() == seq })
	}
	if dead := s.mourning.Over(g.Members(), now); dead != nil {
		return &health.Stuck{Seq: seq, Ranks: g.Ranks, Dead: g.Members().World(dead)}
	}
	return nil
}

// recordedAs describes collective seq of g, which is under way, as this rank has recorded it.
func recordedAs(g *Group, seq uint64) string {
	if s, ok := g.Env.Recorder.Signature(g.ID, seq); ok {
		return health.Describe(arrive.Signature(s))
	}
	return "a collective"
}
