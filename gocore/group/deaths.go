package group

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// A rank has died if its process has ended and it has not left the job (Env.Leave), or if its host
// cannot be reached. The ranks of a node see it by the lock that every process holds on its heap: the
// kernel drops the lock when the process ends, and a zombie holds none. Package liveness tells of deaths
// on all nodes. Every wait of this package looks now and then.

// killGrace is how long a death must be known before a wait ends because of it. Most launchers end the
// other ranks of the job meanwhile: then these print no errors that hide the first one.
const killGrace = 200 * time.Millisecond

// deathGrace is how long an operation of MPI that is under way may go on without its end after a
// member was seen dead. What the dead member sent before may still be on its way.
const deathGrace = leftGrace

// died tells whether a rank is dead, and has been for killGrace.
func (e *Env) died(r int) bool {
	dead, known := e.alive.Dead(r)
	if v := e.views[r]; v != nil && !dead {
		if dead, known = v.Dead(); dead && !e.leftInOrder(r) {
			e.alive.Tell(r)
		}
	}
	return dead && known >= killGrace && !e.leftInOrder(r)
}

// dead returns those of the given world ranks that are dead. It looks at once.
func (e *Env) dead(ranks []int) (list []int) {
	for _, r := range ranks {
		dead, _ := e.alive.Dead(r)
		if v := e.views[r]; (dead || v != nil && v.DeadNow()) && !e.leftInOrder(r) {
			list = append(list, r)
		}
	}
	return list
}

// anyDied tells whether one of the given world ranks is dead, as died does.
func (e *Env) anyDied(ranks []int) bool { return slices.ContainsFunc(ranks, e.died) }

// dead returns the members of g that are dead. It looks at once: another member may have seen a
// death before died shows it here.
func (g *Group) dead() (members []int) {
	for _, r := range g.env.dead(g.Ranks) {
		members = append(members, indexOf(g.Ranks, r))
	}
	return members
}

// diedError is the error of an operation, which what describes, because of dead members. after says
// what became of the operation and its group.
func (g *Group) diedError(what string, members []int, after string) error {
	return g.env.diedError(fmt.Sprintf("%s on the group of ranks %s", what, brief(g.Ranks)), g.worldRanks(members), after)
}

func (e *Env) diedError(what string, ranks []int, after string) error {
	return status.New(status.PeerDied, "%s: %s; %s", what, e.deaths(ranks), after).WithRanks(ranks...)
}

// deaths describes how ranks died, and how that is known.
func (e *Env) deaths(ranks []int) string {
	var here []int // those whose locks this rank has seen dropped
	var reasons []string
	with := map[string][]int{} // ranks of other nodes, by reason
	for _, r := range ranks {
		why := e.alive.Why(r)
		if v := e.views[r]; v != nil && v.DeadNow() || why == "" {
			here = append(here, r)
			continue
		}
		if with[why] == nil {
			reasons = append(reasons, why)
		}
		with[why] = append(with[why], r)
	}
	var text []string
	if len(here) > 0 {
		host, err := os.Hostname()
		if err != nil {
			host = "this host"
		}
		text = append(text, fmt.Sprintf("rank(s) %s died on %s: the kernel has dropped the lock(s) of their process(es), which had not left the job", brief(here), host))
	}
	for _, why := range reasons[:min(len(reasons), 4)] {
		text = append(text, fmt.Sprintf("rank(s) %s died: %s", brief(with[why]), why))
	}
	return strings.Join(text, "; ")
}

// numbered describes the collective c of g with its number.
func (c *call) numbered() string {
	return fmt.Sprintf("%s, number %d", describe(c.sig), c.args.Seq)
}

// mourning notes which members an operation of MPI saw dead first, and when.
type mourning struct {
	since time.Time
	dead  []int
}

// over returns the members of g that are dead, once that has been known for deathGrace.
func (m *mourning) over(g *Group, now time.Time) []int {
	if m.since.IsZero() && g.env.anyDied(g.Ranks) {
		m.since, m.dead = now, g.dead()
	}
	if m.since.IsZero() || now.Sub(m.since) <= deathGrace {
		return nil
	}
	return m.dead
}

// nameWait is how long an error with which MPI tells of a death waits until this rank knows who has died. MPI
// does not say, and may know a little earlier than package liveness.
const nameWait = 2 * time.Second

// news is an error with which MPI tells of a death.
type news struct {
	err   error // nil: there are no such news
	since time.Time
}

// waits tells whether err should not be told yet, because it tells of a death of which this rank does not know
// more. It keeps such an error.
func (n *news) waits(g *Group, err error) bool {
	if err == nil || status.CodeOf(err) != status.ProcFailed {
		return false
	}
	if n.err == nil {
		n.err, n.since = err, time.Now()
	}
	return len(g.dead()) == 0 && time.Since(n.since) < g.env.nameLimit()
}

// nameLimit is nameWait, or less if nothing tells of deaths on other nodes.
func (e *Env) nameLimit() time.Duration {
	if e.alive == nil {
		return killGrace
	}
	return nameWait
}

// awaitName waits, on the thread of a caller, as long as err should not be told.
func (g *Group) awaitName(err error) {
	var n news
	if n.waits(g, err) {
		_ = g.env.Engine.Wait(func() bool { return !n.waits(g, err) }, time.Time{}, nil)
	}
}

// named returns err, or the error of the operation, which what describes, if err tells of a death.
func (g *Group) named(what string, err error) error {
	if err == nil || status.CodeOf(err) != status.ProcFailed {
		return err
	}
	return g.deathError(what, g.dead(), fmt.Sprintf("the group is broken (%v)", err), err)
}

// deathError is the error of an operation, which what describes, because of err, with which MPI tells of a
// death. If dead is empty, it is not known who has died. after says what became of the operation.
func (g *Group) deathError(what string, dead []int, after string, err error) error {
	if len(dead) > 0 {
		return g.diedError(what, dead, after)
	}
	text := status.New(status.ProcFailed, "%s on the group of ranks %s: a rank has died, and MPI does not say which; %s", what, brief(g.Ranks), after)
	var e *status.Error
	if errors.As(err, &e) {
		text.MPIClass = e.MPIClass
	}
	return text
}
