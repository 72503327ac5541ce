package health

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/mailbox"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Ranks that share no memory ask each other by letter: have you announced this collective, or will you never? Have
// you left the job? A rank that leaves stays until all ranks have left, and answers until then (world.Departure). So a job
// that ends in order needs no letters. A rank that gives a collective up answers before it is asked, because it may not call
// the core for long, or its process may end.

const (
	// AskAfter is how long a rank waits for a collective or a message before it asks.
	AskAfter = time.Second
	// AskEvery is the time between two questions that a rank sends, to the same rank or to two ranks.
	AskEvery = 10 * time.Millisecond
	// askAgain is the time between two questions to the same rank.
	askAgain = time.Second
)

// The answer of a rank is a sum of these. 0: it has not announced the collective so far.
const (
	answerHere  uint64 = 1 << iota // it has announced the collective
	answerNever                    // it takes no part in it, or none any more; the reason follows, and which member was the first
)

// Asked holds the last question to each rank, and whether it was answered. Its user locks it.
type Asked map[int]question

// question is the last question to a rank.
type question struct {
	at       time.Time
	answered bool
}

// May tells whether a rank may be asked now.
func (a Asked) May(who int, now time.Time) bool {
	last, ok := a[who]
	return !ok || last.answered && now.Sub(last.at) >= askAgain
}

// Ask notes a question.
func (a Asked) Ask(who int, now time.Time) {
	a[who] = question{at: now}
}

// Answered notes an answer.
func (a Asked) Answered(who int) {
	if last, ok := a[who]; ok {
		last.answered = true
		a[who] = last
	}
}

// Respondent is a group that spans nodes: its members ask each other.
type Respondent interface {
	// Standing tells how far this member has come.
	Standing() arrive.Standing
	// Learn takes in the answer of world rank from to the question for its standing.
	Learn(from int, seq uint64, here bool, gaveUp *arrive.Withdrawal)
}

// Questions are those of a rank to others, and its answers to theirs. Its methods are safe for concurrent use.
//
// Members ask each other also about a group that one of them has freed. So a rank remembers how far it came in those that it
// has freed last. An answer about a group that a rank has not finished to make is dropped: it asks once it waits in that group.
type Questions struct {
	mail     *mailbox.Mailbox
	departed atomic.Bool // this rank has left: it begins nothing more

	mu     sync.Mutex
	groups map[uint64]respondent // those that span nodes, by key
	freed  []uint64              // the keys of those of them that were freed, the last mostFreed
	last   time.Time             // when a rank was asked whether it has left
	asked  Asked                 // the ranks that were asked so
	gone   map[int]bool          // those that have
}

type respondent struct {
	Respondent
	member int // which member of the group this rank is
}

// mostFreed is how many groups that were freed are remembered. A member that asks about an earlier one gets the answer for a
// group that this rank has not made yet, and waits until its deadline.
const mostFreed = 1024

// freed is how far a rank came in a group that it has freed.
type freed arrive.Standing

func (f freed) Standing() arrive.Standing { return arrive.Standing(f) }

func (freed) Learn(int, uint64, bool, *arrive.Withdrawal) {}

// NewQuestions makes the questions and answers of a rank.
func NewQuestions(mail *mailbox.Mailbox) *Questions {
	q := &Questions{mail: mail, groups: map[uint64]respondent{}, asked: Asked{}, gone: map[int]bool{}}
	mail.Handle(mailbox.Ask, func(from int, key uint64, body []byte) { q.Answer(from, key, binary.LittleEndian.Uint64(body)) })
	mail.Handle(mailbox.Answer, q.onAnswer)
	return q
}

// Join says that the group with key is made, which spans nodes, and of which this rank is a member.
func (q *Questions) Join(key uint64, member int, g Respondent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.groups[key] = respondent{g, member}
}

// Forget says that a group is freed. Only of those that span nodes there is something to forget.
func (q *Questions) Forget(key uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	g, ok := q.groups[key]
	if _, was := g.Respondent.(freed); was || !ok {
		return
	}
	q.groups[key] = respondent{freed(g.Standing()), g.member}
	if q.freed = append(q.freed, key); len(q.freed) > mostFreed {
		delete(q.groups, q.freed[0])
		q.freed = q.freed[1:]
	}
}

// Leave says that this rank begins nothing more.
func (q *Questions) Leave() { q.departed.Store(true) }

// Departed tells whether this rank begins nothing more.
func (q *Questions) Departed() bool { return q.departed.Load() }

// Ask asks a rank about collective seq of the group with key. Its answer comes to the group's Learn.
func (q *Questions) Ask(rank int, key, seq uint64) {
	q.mail.Send(rank, mailbox.Ask, key, binary.LittleEndian.AppendUint64(nil, seq))
}

// Answer tells a rank whether this one has announced collective seq of the group with key, or whether it has left.
func (q *Questions) Answer(to int, key, seq uint64) {
	var says uint64
	var because arrive.Withdrawal
	if key == mailbox.OfProcess {
		if q.Departed() {
			says, because.Reason = answerNever, status.PeerLeft
		}
	} else if g, ok := q.respondent(key); ok {
		says, because = standing(g.Standing(), g.member, seq, q.Departed())
	}
	reply, _ := binary.Append(nil, binary.LittleEndian, []uint64{seq, says, uint64(because.Reason), uint64(because.By)})
	q.mail.Send(to, mailbox.Answer, key, reply)
}

// respondent returns the group that spans nodes and has a key, also if it was freed. ok is false if this rank knows none.
func (q *Questions) respondent(key uint64) (g respondent, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	g, ok = q.groups[key]
	return g, ok
}

// standing is the answer about collective seq of a group of which this rank is a member. gone says that this rank has left.
func standing(s arrive.Standing, member int, seq uint64, gone bool) (says uint64, because arrive.Withdrawal) {
	announced, gaveUp := s.At(seq)
	if announced {
		says = answerHere
	} else if gone && gaveUp == nil {
		gaveUp = &arrive.Withdrawal{By: member, Reason: status.PeerLeft}
	}
	if gaveUp != nil {
		says, because = says|answerNever, *gaveUp
	}
	return says, because
}

// onAnswer takes in the answer of another rank.
func (q *Questions) onAnswer(from int, key uint64, body []byte) {
	var words [4]uint64
	_, _ = binary.Decode(body, binary.LittleEndian, &words) // a letter of this kind has as many bytes
	seq, says, reason, by := words[0], words[1], status.Code(words[2]), words[3]
	never := says&answerNever != 0
	if key == mailbox.OfProcess {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.asked.Answered(from)
		q.gone[from] = q.gone[from] || never
		return
	}
	g, ok := q.respondent(key)
	if !ok {
		return
	}
	var gaveUp *arrive.Withdrawal
	if never {
		gaveUp = &arrive.Withdrawal{Seq: seq, By: int(min(by, 1<<31)), Reason: reason}
	}
	g.Learn(from, seq, says&answerHere != 0, gaveUp)
}

// left tells whether rank r has said that it has left. It asks r if the caller has waited long enough.
func (q *Questions) left(r int, waited time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if waited > AskAfter && !q.gone[r] && now.Sub(q.last) >= AskEvery && q.asked.May(r, now) {
		q.last = now
		q.asked.Ask(r, now)
		q.Ask(r, mailbox.OfProcess, 0)
	}
	return q.gone[r]
}
