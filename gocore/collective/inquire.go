package collective

import (
	"slices"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/health"
)

// Members of one node see in shared memory which members have announced a collective, and which
// have left. Across nodes a rank that has waited for a while asks the other members by message, one
// after the other: have you announced this collective, or will you never? It asks again, because a
// member that has announced a collective may give it up later. A member that fails answers all the
// others before they ask (Group.tellOthers). A rank that leaves says so in the place of its next collective
// (Wire.Leave).

// askWait is the time that a member waits for answers after its deadline.
const askWait = 500 * time.Millisecond

// inquiry is what a group that spans nodes has asked about its current collective.
type inquiry struct {
	g          *Group
	mu         sync.Mutex
	seq        uint64
	since      time.Time // when this rank first looked at the collective
	last       time.Time // when the last question was sent
	lastMember int       // the member that was asked last
	asked      health.Asked
	here       map[int]bool // members that have announced the collective
}

// begin starts over if seq is another collective. The caller holds mu.
func (q *inquiry) begin(seq uint64, now time.Time) {
	if q.seq != seq {
		q.seq, q.since, q.asked, q.here = seq, now, health.Asked{}, map[int]bool{}
	}
}

// look asks one member where it is in the current collective, if that has taken long.
// The answer that a member will never come changes the arrival's Closers.
func (q *inquiry) look(now time.Time) {
	g := q.g
	if g.Wire == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.begin(g.turns.turn, now)
	if now.Sub(q.since) < health.AskAfter || now.Sub(q.last) < health.AskEvery {
		return
	}
	for range g.Size {
		q.lastMember = (q.lastMember + 1) % g.Size
		if q.lastMember != g.Rank && q.asked.May(q.lastMember, now) {
			q.last = now
			q.question(q.lastMember, now)
			return
		}
	}
}

// question asks a member about the current collective. The caller holds mu.
func (q *inquiry) question(member int, now time.Time) {
	q.asked.Ask(member, now)
	q.g.Env.Roster.Questions.Ask(q.g.Ranks[member], q.g.Key, q.seq)
}

// ask asks all members about the current collective; with again also those that have answered before: one of them may have
// stopped since, or given it up. It waits up to askWait, or until enough is known, and returns those that have not answered
// that they have announced it. A member answers if it waits in the core, for this collective or anything else.
func (q *inquiry) ask(again bool, enough func() bool) (missing []int) {
	g := q.g
	q.mu.Lock()
	now := time.Now()
	q.begin(g.turns.turn, now)
	if again {
		clear(q.here)
	}
	for _, i := range q.elsewhere() {
		q.question(i, now)
	}
	q.mu.Unlock()
	_ = g.Env.Engine.Wait(func() bool {
		g.Env.Mail.Pump()
		if enough() {
			return true
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.elsewhere()) == 0
	}, time.Now().Add(askWait), nil)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.elsewhere()
}

// elsewhere returns the other members that have not answered that they have announced the collective. The
// caller holds mu.
func (q *inquiry) elsewhere() (members []int) {
	g := q.g
	for i := range g.Ranks {
		if i != g.Rank && !q.here[i] {
			members = append(members, i)
		}
	}
	return members
}

// notHere returns the world ranks of the members that have not answered that they have announced the
// collective.
func (q *inquiry) notHere(seq uint64) (ranks []int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.seq != seq {
		return slices.Clone(q.g.Ranks)
	}
	return q.g.Members().World(q.elsewhere())
}

// Standing tells how far this member has come. Only groups that span nodes are asked.
func (q *inquiry) Standing() arrive.Standing { return q.g.Wire.Standing() }

// Learn takes in the answer of another rank to a question about collective seq: whether it has announced it, and who
// gave it up first; nil if nobody did.
func (q *inquiry) Learn(from int, seq uint64, here bool, gaveUp *arrive.Withdrawal) {
	g, member := q.g, slices.Index(q.g.Ranks, from)
	if member < 0 {
		return
	}
	if gaveUp != nil {
		if gaveUp.By >= g.Size || gaveUp.By == g.Rank {
			gaveUp.By = member
		}
		g.Wire.Learn(*gaveUp)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.seq == seq {
		q.asked.Answered(member)
		q.here[member] = q.here[member] || here
	}
}
