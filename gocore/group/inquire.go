package group

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Members of one node see in shared memory which members have announced a collective, and which
// have left. Across nodes a rank that has waited for a while asks the other members by message, one
// after the other: have you announced this collective, or will you never? It asks again, because a
// member that has announced a collective may give it up later. A member that fails answers all the
// others before they ask (Group.tellOthers). A rank that leaves says so in the place of its next collective
// (Wire.Leave). It stays until all ranks have left, and answers questions until then (Env.depart). So a job
// that ends in order needs no messages.

const (
	// askAfter is how long a rank waits for a collective or a message before it asks.
	askAfter = time.Second
	// askEvery is the time between two questions that a rank sends, to the same rank or to two ranks.
	askEvery = 10 * time.Millisecond
	// askAgain is the time between two questions to the same rank.
	askAgain = time.Second
	// askWait is the time that a member waits for answers after its deadline.
	askWait = 500 * time.Millisecond
)

// processKey is the key of questions whether a rank has left the job.
const processKey = ^uint64(0)

// The answer of a rank is a sum of these. 0: it has not announced the collective so far.
const (
	answerHere  uint64 = 1 << iota // it has announced the collective
	answerNever                    // it takes no part in it, or none any more; the reason follows, and which member was the first
)

// inquiry is what a group that spans nodes has asked about its current collective.
type inquiry struct {
	mu         sync.Mutex
	seq        uint64
	since      time.Time // when this rank first looked at the collective
	last       time.Time // when the last question was sent
	lastMember int       // the member that was asked last
	asked      asked
	here       map[int]bool // members that have announced the collective
}

// asked holds the last question to each member or rank, and whether it was answered.
type asked map[int]struct {
	at       time.Time
	answered bool
}

// mayAsk tells whether member may be asked now.
func (a asked) mayAsk(member int, now time.Time) bool {
	last, ok := a[member]
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

// begin starts over if seq is another collective. The caller holds mu.
func (q *inquiry) begin(seq uint64, now time.Time) {
	if q.seq != seq {
		q.seq, q.since, q.asked, q.here = seq, now, asked{}, map[int]bool{}
	}
}

// inquire asks one member where it is in the current collective, if that has taken long.
// The answer that a member will never come changes the arrival's Closers.
func (g *Group) inquire(now time.Time) {
	if g.wire == nil {
		return
	}
	q := &g.inquiry
	q.mu.Lock()
	defer q.mu.Unlock()
	q.begin(g.turn, now)
	if now.Sub(q.since) < askAfter || now.Sub(q.last) < askEvery {
		return
	}
	for range g.Size {
		q.lastMember = (q.lastMember + 1) % g.Size
		if q.lastMember != g.Rank && q.asked.mayAsk(q.lastMember, now) {
			q.last = now
			g.question(q.lastMember, now)
			return
		}
	}
}

// question asks a member about the current collective. The caller holds mu of the inquiry.
func (g *Group) question(member int, now time.Time) {
	g.inquiry.asked.ask(member, now)
	g.env.mail.send(g.Ranks[member], mailAsk, g.key, binary.LittleEndian.AppendUint64(nil, g.inquiry.seq))
}

// ask asks all members about the current collective. It returns those that have not answered within
// askWait that they have announced it. A member answers if it waits in the core, for this
// collective or anything else.
func (g *Group) ask() (missing []int) {
	q := &g.inquiry
	q.mu.Lock()
	now := time.Now()
	q.begin(g.turn, now)
	for _, i := range q.elsewhere(g) {
		g.question(i, now)
	}
	q.mu.Unlock()
	_ = g.env.Engine.Wait(func() bool {
		g.env.mail.pump()
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.elsewhere(g)) == 0
	}, time.Now().Add(askWait), nil)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.elsewhere(g)
}

// elsewhere returns the other members of g that have not answered that they have announced the collective. The
// caller holds mu.
func (q *inquiry) elsewhere(g *Group) (members []int) {
	for i := range g.Ranks {
		if i != g.Rank && !q.here[i] {
			members = append(members, i)
		}
	}
	return members
}

// answer tells a rank whether this one has announced the collective of which body has the number, or whether
// it has left.
func (e *Env) answer(to int, key uint64, body []byte) {
	seq := binary.LittleEndian.Uint64(body)
	var says uint64
	var because arrive.Withdrawal
	e.mu.Lock()
	g := e.byKey[key]
	e.mu.Unlock()
	switch {
	case key == processKey:
		if e.departed.Load() {
			says, because.Reason = answerNever, status.PeerLeft
		}
	case g == nil || g.wire == nil:
	default:
		announced, gaveUp := g.wire.Standing(seq)
		if announced {
			says = answerHere
		} else if e.departed.Load() && gaveUp == nil {
			gaveUp = &arrive.Withdrawal{By: g.Rank, Reason: status.PeerLeft}
		}
		if gaveUp != nil {
			says, because = says|answerNever, *gaveUp
		}
	}
	reply := binary.LittleEndian.AppendUint64(nil, seq)
	for _, word := range []uint64{says, uint64(because.Reason), uint64(because.By)} {
		reply = binary.LittleEndian.AppendUint64(reply, word)
	}
	e.mail.send(to, mailAnswer, key, reply)
}

// learn takes in the answer of another rank.
func (e *Env) learn(from int, key uint64, body []byte) {
	var words [4]uint64
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(body[8*i:])
	}
	seq, says, reason, by := words[0], words[1], status.Code(words[2]), words[3]
	if key == processKey {
		e.peerQuestions.answered(from, says&answerNever != 0)
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
	if says&answerNever != 0 {
		if by >= uint64(g.Size) || by == uint64(g.Rank) {
			by = uint64(member)
		}
		g.wire.Learn(arrive.Withdrawal{Seq: seq, By: int(by), Reason: reason})
	}
	q := &g.inquiry
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.seq == seq {
		q.asked.answer(member)
		q.here[member] = q.here[member] || says&answerHere != 0
	}
}

// questions holds this rank's questions to ranks of other nodes whether they have left, and the
// answers.
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

// left tells whether world rank r has left the job, or died, according to what is known. waited is how
// long the caller has waited for r. If no shared memory shows whether r has left, r is asked after a
// while.
func (e *Env) left(r int, waited time.Duration) bool {
	if e.leftInOrder(r) || e.died(r) || e.absent(r) {
		return true
	}
	if !e.mustAsk(r) {
		return false
	}
	q := &e.peerQuestions
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if waited > askAfter && !q.left[r] && now.Sub(q.last) >= askEvery && q.asked.mayAsk(r, now) {
		q.last = now
		q.asked.ask(r, now)
		e.mail.send(r, mailAsk, processKey, binary.LittleEndian.AppendUint64(nil, 0))
	}
	return q.left[r]
}

// leftInOrder tells whether world rank r has left the job, if shared memory shows it.
func (e *Env) leftInOrder(r int) bool {
	return !e.mustAsk(r) && e.presence.Left(indexOf(e.peers, r))
}

// absent tells whether world rank r has said that its process ends, and did not wait for the others (stayAway).
func (e *Env) absent(r int) bool {
	_, said := e.mail.peek(mailAbsent, r, processKey)
	return said
}

// mustAsk tells whether world rank r has to be asked whether it has left, because no shared memory
// shows it.
func (e *Env) mustAsk(r int) bool {
	return e.presence == nil || e.Topo.Node[r] != e.Topo.Node[e.Topo.Rank]
}

// hidden returns the world ranks that cannot see this one leave, because they share no memory with it.
func (e *Env) hidden() (ranks []int) {
	for r := range e.Topo.Node {
		if r != e.Topo.Rank && e.mustAsk(r) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}
