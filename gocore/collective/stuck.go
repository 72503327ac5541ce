package collective

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// stuck is a collective that is inside MPI, and what the watcher knows of the members.
type stuck struct {
	seq      uint64
	slow     health.Slowness
	mourning world.Mourning
}

// Stuck returns the collective in which a thread of this process waits inside a blocking MPI call that cannot end,
// because members have died. It returns nil if there is none.
func (g *Group) Stuck(now time.Time) *health.Stuck {
	seq := g.blocking.Load()
	if seq == 0 {
		g.stuck = stuck{}
		return nil
	}
	s := &g.stuck
	if s.seq != seq {
		*s = stuck{seq: seq}
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
