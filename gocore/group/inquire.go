package group

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Members of one node see in shared memory who is where. Across nodes a rank that has waited for
// a while asks the others, one after the other, by message: have you come to this collective, or
// will you never? A rank that leaves sends nothing; it stays until all others leave as well, and
// answers those that ask (Env.depart). So a job that ends in order costs no message.

const (
	// askAfter is how long a rank waits before it asks.
	askAfter = time.Second
	// askEvery is the pause between two questions of a rank, each to another member.
	askEvery = 10 * time.Millisecond
	// askAgain is the pause between two questions to the same member.
	askAgain = time.Second
	// askWait is how long a member whose deadline ran out waits for answers.
	askWait = 500 * time.Millisecond
)

// processKey is the key of the question whether a rank has left the job.
const processKey = ^uint64(0)

// What a rank answers.
const (
	answerNotYet uint64 = iota // it has not announced the collective
	answerHere                 // it has
	answerNever                // it takes no part: the reason follows
)

// inquiry is what a group that spans nodes has asked about its current collective.
type inquiry struct {
	mu    sync.Mutex
	seq   uint64
	since time.Time // when it was first looked at this collective
	last  time.Time // when the last question was sent
	next  int       // the member to ask next
	asked asked
	here  map[int]bool // members that have announced it
}

// asked keeps who was asked when, and has not answered yet or not long ago.
type asked map[int]struct {
	at       time.Time
	answered bool
}

// may tells whether to ask somebody now.
func (a asked) may(who int, now time.Time) bool {
	last, ok := a[who]
	return !ok || last.answered && now.Sub(last.at) >= askAgain
}

func (a asked) ask(who int, now time.Time) {
	last := a[who]
	last.at, last.answered = now, false
	a[who] = last
}

func (a asked) answer(who int) {
	if last, ok := a[who]; ok {
		last.answered = true
		a[who] = last
	}
}

// begin starts over for another collective. mu is held.
func (q *inquiry) begin(seq uint64, now time.Time) {
	if q.seq != seq {
		q.seq, q.since, q.asked, q.here = seq, now, asked{}, map[int]bool{}
	}
}

// inquire asks one member where it is, if the current collective has taken long. What comes
// of it shows in the arrival's Closers.
func (g *Group) inquire(now time.Time) {
	if g.wire == nil {
		return
	}
	q := &g.inquiry
	q.mu.Lock()
	defer q.mu.Unlock()
	q.begin(g.seq, now)
	if now.Sub(q.since) < askAfter || now.Sub(q.last) < askEvery {
		return
	}
	for range g.Size {
		q.next = (q.next + 1) % g.Size
		if q.next != g.Rank && !q.here[q.next] && q.asked.may(q.next, now) {
			q.last = now
			g.question(q.next, now)
			return
		}
	}
}

// question asks a member about the current collective. mu of the inquiry is held.
func (g *Group) question(member int, now time.Time) {
	g.inquiry.asked.ask(member, now)
	g.env.mail.send(g.Ranks[member], mailAsk, g.key, binary.LittleEndian.AppendUint64(nil, g.inquiry.seq))
}

// ask returns the members that do not answer, within a while, that they have announced the current
// collective. Those that wait there, or come to another wait of the library, answer.
func (g *Group) ask() (missing []int) {
	q := &g.inquiry
	q.mu.Lock()
	now := time.Now()
	q.begin(g.seq, now)
	for i := range g.Ranks {
		if i != g.Rank && !q.here[i] {
			g.question(i, now)
		}
	}
	q.mu.Unlock()
	_ = g.env.Engine.Wait(func() bool {
		g.env.mail.pump()
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.here) == g.Size-1
	}, time.Now().Add(askWait), nil)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range g.Ranks {
		if i != g.Rank && !q.here[i] {
			missing = append(missing, i)
		}
	}
	return missing
}

// answer replies to a rank that asks where this one is in a group, or whether it has left.
func (e *Env) answer(from int, key uint64, body []byte) {
	if len(body) != 8 {
		return
	}
	seq := binary.LittleEndian.Uint64(body)
	says, reason := answerNotYet, status.OK
	e.mu.Lock()
	g := e.byKey[key]
	e.mu.Unlock()
	switch {
	case key == processKey:
		if e.departed.Load() {
			says, reason = answerNever, status.PeerLeft
		}
	case g == nil || g.wire == nil:
	default:
		var announced bool
		switch announced, reason = g.wire.Standing(seq); {
		case reason != status.OK:
			says = answerNever
		case announced:
			says = answerHere
		case e.departed.Load():
			says, reason = answerNever, status.PeerLeft
		}
	}
	reply := append([]byte(nil), body...)
	reply = binary.LittleEndian.AppendUint64(reply, says)
	e.mail.send(from, mailAnswer, key, binary.LittleEndian.AppendUint64(reply, uint64(reason)))
}

// learn takes in an answer.
func (e *Env) learn(from int, key uint64, body []byte) {
	if len(body) != 24 {
		return
	}
	seq, says, reason := binary.LittleEndian.Uint64(body), binary.LittleEndian.Uint64(body[8:]), status.Code(binary.LittleEndian.Uint64(body[16:]))
	if key == processKey {
		e.peerQuestions.answered(from, says == answerNever)
		return
	}
	e.mu.Lock()
	g := e.byKey[key]
	e.mu.Unlock()
	if g == nil || g.wire == nil {
		return
	}
	member := indexOf(g.Ranks, from)
	if member < 0 {
		return
	}
	if says == answerNever {
		g.wire.Learn(member, seq, reason)
	}
	q := &g.inquiry
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.seq == seq {
		q.asked.answer(member)
		if says == answerHere {
			q.here[member] = true
		}
	}
}

// questions are those to ranks of other nodes whether they have left.
type questions struct {
	mu    sync.Mutex
	last  time.Time
	asked asked
	left  map[int]bool
}

func (q *questions) answered(rank int, left bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked.answer(rank)
	if left {
		q.left[rank] = true
	}
}

// left tells whether world rank r has left the job in order, as far as is known. waited is how
// long the caller has waited for it: where no shared memory shows it, r is asked after a while.
func (e *Env) left(r int, waited time.Duration) bool {
	if !e.apart(r) {
		return e.presence.Left(indexOf(e.peers, r))
	}
	q := &e.peerQuestions
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if waited > askAfter && !q.left[r] && now.Sub(q.last) >= askEvery && q.asked.may(r, now) {
		q.last = now
		q.asked.ask(r, now)
		e.mail.send(r, mailAsk, processKey, binary.LittleEndian.AppendUint64(nil, 0))
	}
	return q.left[r]
}

// apart tells whether no shared memory shows whether world rank r has left.
func (e *Env) apart(r int) bool {
	return e.presence == nil || e.Topo.Node[r] != e.Topo.Node[e.Topo.Rank]
}

// depart begins the barrier of those who depart, where some ranks cannot see each other leave in
// shared memory. It is on a communicator that nothing else uses for collectives. Who departs answers
// questions until all have.
func (e *Env) depart() error {
	alone := true
	for r := range e.Topo.Node {
		alone = alone && (r == e.Topo.Rank || !e.apart(r))
	}
	if alone || e.departure != nil {
		return nil
	}
	slot := e.Lib.NewSlot()
	if err := e.Lib.Start(&mpi.Call{Fn: mpi.FnBarrier, Comm: e.base}, slot); err != nil {
		e.Lib.FreeSlot(slot)
		return err
	}
	e.departure = slot
	return nil
}

// stayAway tells the others that this rank will not come to the barrier of those who depart: MPI holds
// on to what a broken group asked for. It waits a while for the messages to be out, for the process ends next.
func (e *Env) stayAway() {
	for r := range e.Topo.Node {
		if r != e.Topo.Rank && e.apart(r) {
			e.mail.send(r, mailAbsent, processKey, nil)
		}
	}
	_ = e.Engine.Wait(e.mail.sent, time.Now().Add(brokenLimit), nil)
}

// Gone tells whether all ranks have departed as well, of those that cannot see each other leave.
// Until then it answers what they ask.
func (e *Env) Gone() bool {
	if e.departure == nil {
		return true
	}
	e.mail.pump()
	poll(e.Lib, e.departure)
	if e.departure.Done == 0 {
		return false
	}
	e.Lib.FreeSlot(e.departure)
	e.departure = nil
	return true
}

// AwaitGone waits until Gone and returns true, or until it is known that some rank will not depart in
// order, and MPI cannot be finalized: it has said so, or it has not come for as long as the group had, which broke here.
// It waits with an engine of its own: that of e has stopped.
func (e *Env) AwaitGone() bool {
	var deadline time.Time
	e.mu.Lock()
	if e.broke > 0 {
		deadline = time.Now().Add(e.broke)
	}
	e.mu.Unlock()
	gone := false
	_ = work.NewEngine().Wait(func() bool {
		gone = e.Gone()
		return gone || e.mail.has(mailAbsent)
	}, deadline, nil)
	return gone
}
