package health

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/paddlempi/paddlempi/gocore/liveness"
	"github.com/paddlempi/paddlempi/gocore/mailbox"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// A rank has died if its process has ended and it has not left the job (NodeView.Leave), or if its host
// cannot be reached. The ranks of a node see it by the lock that every process holds on its heap: the
// kernel drops the lock when the process ends, and a zombie holds none. Package liveness tells of deaths
// on all nodes. Every wait for another rank looks now and then.

const (
	// killGrace is how long a death must be known before a wait ends because of it. Most launchers end the
	// other ranks of the job meanwhile: then these print no errors that hide the first one.
	killGrace = 200 * time.Millisecond
	// LeftGrace is how long a message from a rank that has left may still be on its way.
	LeftGrace = 500 * time.Millisecond
	// DeathGrace is how long an operation of MPI that is under way may go on without its end after a
	// member was seen dead. What the dead member sent before may still be on its way.
	DeathGrace = LeftGrace
	// nameWait is how long an error with which MPI tells of a death waits until this rank knows who has died. MPI
	// does not say, and may know a little earlier than package liveness.
	nameWait = 2 * time.Second
)

// Roster knows which ranks of the world have left, and which have died. Ranks are world ranks. Its methods are
// safe for concurrent use.
type Roster struct {
	Questions *Questions

	topo      *topo.Topology
	here      *NodeView
	recorder  *Recorder
	alive     *liveness.Liveness // sees deaths on all nodes; the zero one in a job of one node, and if it is off
	unwatched string             // why alive is the zero one, "" if it is not
	deadAfter time.Duration      // how long a host may be silent; 0: alive is off
}

// Died tells whether a rank is dead, and has been for killGrace.
func (o *Roster) Died(r int) bool {
	dead, known := o.alive.Dead(r)
	if !dead {
		if dead, known = o.here.ended(r); dead && !o.LeftInOrder(r) {
			o.alive.Tell(r)
		}
	}
	return dead && known >= killGrace && !o.LeftInOrder(r)
}

// isDead tells whether a rank is dead, as far as this rank knows at this moment.
func (o *Roster) isDead(r int) bool {
	dead, _ := o.alive.Dead(r)
	return (dead || o.here.EndedNow(r)) && !o.LeftInOrder(r)
}

// AnyDied tells whether one of the given ranks is dead, as Died does.
func (o *Roster) AnyDied(ranks []int) bool { return slices.ContainsFunc(ranks, o.Died) }

// Dead returns those of the given ranks that are dead. It looks at once: another rank may have seen a death
// before Died shows it here.
func (o *Roster) Dead(ranks []int) []int {
	return slices.DeleteFunc(slices.Clone(ranks), func(r int) bool { return !o.isDead(r) })
}

// AnyDead tells whether any rank of the job has died, as package liveness knows.
func (o *Roster) AnyDead() bool { return o.alive.AnyDead() }

// Left tells whether a rank has left the job, or died, according to what is known. waited is how long the caller
// has waited for it. If no shared memory shows whether it has left, it is asked after a while.
func (o *Roster) Left(r int, waited time.Duration) bool {
	if o.LeftInOrder(r) || o.Died(r) || o.absent(r) {
		return true
	}
	return !o.here.shows(r) && o.Questions.left(r, waited)
}

// LeftInOrder tells whether a rank has left the job, if shared memory shows it.
func (o *Roster) LeftInOrder(r int) bool { return o.here.left(r) }

// absent tells whether a rank has said that its process ends, and did not wait for the others (mailbox.Absent).
func (o *Roster) absent(r int) bool {
	_, said := o.Questions.mail.Peek(mailbox.Absent, r, mailbox.OfProcess)
	return said
}

// Unseen tells whether some rank cannot see this one end: they share no memory, and nothing tells of deaths on other nodes.
func (o *Roster) Unseen() bool {
	unseen := func(r int) bool { return r != o.topo.Rank && !o.here.shows(r) }
	return o.unwatched != "" && slices.ContainsFunc(transport.EveryRank(o.topo.Size), unseen)
}

// Leave tells the ranks of other nodes that the process of this one may end, and whether those of all ranks do.
func (o *Roster) Leave(all bool) { o.alive.Leave(all) }

// DiedError is the error of an operation, which what describes, because of dead ranks. after says what became of
// the operation and its group.
func (o *Roster) DiedError(what string, ranks []int, after string) error {
	return status.New(status.PeerDied, "%s: %s; %s", what, o.Deaths(ranks), after).WithRanks(ranks...)
}

// Deaths describes how ranks died, and how that is known.
func (o *Roster) Deaths(ranks []int) string {
	var reasons []string
	with := map[string][]int{} // by reason; "": this rank has seen their locks dropped
	for _, r := range ranks {
		why := o.why(r, "the")
		if o.here.failed(r) == 0 && o.here.EndedNow(r) {
			why = ""
		}
		if why != "" && with[why] == nil {
			reasons = append(reasons, why)
		}
		with[why] = append(with[why], r)
	}
	var text []string
	if here := with[""]; len(here) > 0 {
		host, err := os.Hostname()
		if err != nil {
			host = "this host"
		}
		text = append(text, fmt.Sprintf("rank(s) %s died on %s: the kernel has dropped the lock(s) of their process(es), which had not left the job", status.Brief(here), host))
	}
	for _, why := range reasons[:min(len(reasons), 4)] {
		text = append(text, fmt.Sprintf("rank(s) %s died: %s", status.Brief(with[why]), why))
	}
	return strings.Join(text, "; ")
}

// why says how the death of a rank is known, "" if this rank has only seen that its lock was dropped. The text calls its
// process "the process", or what whose says.
func (o *Roster) why(r int, whose string) string {
	if exit := o.here.failed(r); exit != 0 {
		return fmt.Sprintf("%s process has ended with the status %d", whose, exit)
	}
	return o.alive.Why(r)
}

// NameLimit is nameWait, or less if nothing tells of deaths on other nodes.
func (o *Roster) NameLimit() time.Duration {
	if o.unwatched != "" {
		return killGrace
	}
	return nameWait
}

// Watch says whether deaths are seen on all nodes of the job, and which ranks are dead.
type Watch struct {
	After float64 `json:"after"` // seconds for which a host may be silent
	Off   string  `json:"off"`   // why only the deaths of this node are seen; "" if those of all are
	Dead  []Death `json:"dead"`  // the ranks that are known to be dead
}

// Death is a rank that is dead.
type Death struct {
	Rank int    `json:"rank"`
	Why  string `json:"why"` // how that is known
}

// Watch returns what is known now.
func (o *Roster) Watch() Watch {
	w := Watch{After: o.deadAfter.Seconds(), Off: o.unwatched, Dead: []Death{}}
	for _, r := range o.Dead(transport.EveryRank(o.topo.Size)) {
		why := cmp.Or(o.why(r, "its"), "the kernel has dropped the lock of its process, which had not left the job")
		w.Dead = append(w.Dead, Death{r, why})
	}
	return w
}

// Cut ends the connections to other nodes, as the kernel does when a process ends: for tests of deaths.
func (o *Roster) Cut() { o.alive.Close() }
