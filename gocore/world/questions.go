package world

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Ranks that share no memory ask each other by message: have you announced this collective, or will you never? Have
// you left the job? A rank that leaves stays until all ranks have left, and answers until then (Departure). So a job
// that ends in order needs no messages.

const (
	// AskAfter is how long a rank waits for a collective or a message before it asks.
	AskAfter = time.Second
	// AskEvery is the time between two questions that a rank sends, to the same rank or to two ranks.
	AskEvery = 10 * time.Millisecond
	// askAgain is the time between two questions to the same rank.
	askAgain = time.Second
)

// processKey is the key of questions whether a rank has left the job.
const processKey = ^uint64(0)

// The answer of a rank is a sum of these. 0: it has not announced the collective so far.
const (
	answerHere  uint64 = 1 << iota // it has announced the collective
	answerNever                    // it takes no part in it, or none any more; the reason follows, and which member was the first
)

// Asked holds the last question to each rank, and whether it was answered. Its user locks it.
type Asked map[int]struct {
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
	last := a[who]
	last.at, last.answered = now, false
	a[who] = last
}

// Answered notes an answer.
func (a Asked) Answered(who int) {
	if last, ok := a[who]; ok {
		last.answered = true
		a[who] = last
	}
}

// Ask asks a rank about collective seq of the group with key. Its answer comes to the group's Learn.
func (m *Mailbox) Ask(rank int, key, seq uint64) {
	m.send(rank, mailAsk, key, binary.LittleEndian.AppendUint64(nil, seq))
}

// onAsk answers a question of Ask, or of a rank that waits for this one to leave.
func (e *Env) onAsk(to int, key uint64, body []byte) {
	e.Answer(to, key, binary.LittleEndian.Uint64(body))
}

// Answer tells a rank whether this one has announced collective seq of the group with key, or whether it has left.
func (e *Env) Answer(to int, key, seq uint64) {
	var says uint64
	var because arrive.Withdrawal
	gone := e.departed.Load()
	if key == processKey {
		if gone {
			says, because.Reason = answerNever, status.PeerLeft
		}
	} else if s, member, ok := e.standingOf(key); ok {
		says, because = standing(s, member, seq, gone)
	}
	reply := binary.LittleEndian.AppendUint64(nil, seq)
	for _, word := range []uint64{says, uint64(because.Reason), uint64(because.By)} {
		reply = binary.LittleEndian.AppendUint64(reply, word)
	}
	e.Mail.send(to, mailAnswer, key, reply)
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
func (e *Env) onAnswer(from int, key uint64, body []byte) {
	var words [4]uint64
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(body[8*i:])
	}
	seq, says, reason, by := words[0], words[1], status.Code(words[2]), words[3]
	never := says&answerNever != 0
	if key == processKey {
		e.Roster.questions.answer(from, never)
		return
	}
	g := e.groupOf(key)
	if g == nil {
		return
	}
	var gaveUp *arrive.Withdrawal
	if never {
		gaveUp = &arrive.Withdrawal{Seq: seq, By: int(min(by, 1<<31)), Reason: reason}
	}
	g.Learn(from, seq, says&answerHere != 0, gaveUp)
}

// questions holds this rank's questions to ranks of other nodes whether they have left, and the answers.
type questions struct {
	mu    sync.Mutex
	last  time.Time
	asked Asked
	gone  map[int]bool
}

func (q *questions) answer(rank int, left bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked.Answered(rank)
	if left {
		q.gone[rank] = true
	}
}

// left tells whether rank r has said that it has left. It asks r if the caller has waited long enough.
func (q *questions) left(r int, waited time.Duration, mail *Mailbox) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if waited > AskAfter && !q.gone[r] && now.Sub(q.last) >= AskEvery && q.asked.May(r, now) {
		q.last = now
		q.asked.Ask(r, now)
		mail.Ask(r, processKey, 0)
	}
	return q.gone[r]
}
