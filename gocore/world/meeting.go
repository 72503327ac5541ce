package world

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/mailbox"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// errLeft is the error of a meeting to which some ranks will not come, because they have left the job.
var errLeft = errors.New("group: some ranks have left")

// decisionGrace is the time that a member waits for the first member's decision after its own
// deadline, if the first member has asked it.
const decisionGrace = 2 * time.Second

// readyLimit is how long after its own deadline a member answers the first member's questions. Each
// answer makes it wait for longer, and a first member that is damaged may ask without end.
const readyLimit = 10 * time.Second

// Meet returns when all members have come to make group key, or to another meeting with that key, for the call that
// what names. Its error names those that did not come within the timeout, have died, or have left the job; need says
// what they had to do.
func (e *Env) Meet(what, need string, key uint64, ranks []int, timeout time.Duration) error {
	missing, err := e.meet(what, key, ranks, timeout)
	return e.meetError(what, need, err, ranks, missing, timeout)
}

// meet is Meet with an error that names no rank: work.ErrDeadline, errLeft, or one of the wait.
// The first member decides; the others send it a hello.
//
// A member may have given up its attempt by the time the first member reads the hello. Therefore
// every hello has a number. Once all hellos are there, the first member asks all members whether
// they are still at the attempt of that number, and tells them to go when all have said yes. It
// also asks each member when its hello arrives. A member that was never asked therefore knows that
// its hello was not read, and need not wait past its deadline.
func (e *Env) meet(what string, key uint64, ranks []int, timeout time.Duration) (missing []int, err error) {
	m := meeting{e: e, what: what, key: key, ranks: ranks, began: time.Now()}
	defer m.over.Store(true)
	deadline := m.began.Add(timeout)
	if e.Topo.Rank == ranks[0] {
		return m.collect(ranks[1:], deadline)
	}
	return m.attend(deadline)
}

// meeting is a call of meet.
type meeting struct {
	e     *Env
	what  string // for which call the ranks meet
	key   uint64
	ranks []int
	began time.Time
	slow  health.Slowness
	looks int
	over  atomic.Bool
}

// reportIfSlow reports a wait for members that have not come. came says that they have: the first member decides then, and
// reports who is missing, and they are named only if they are stalled. It looks at the clock at every 32nd call.
func (m *meeting) reportIfSlow(missing []int, came bool) {
	if m.looks++; m.looks&31 != 0 || !m.slow.Due(&m.e.Reports, time.Now(), time.Time{}) {
		return
	}
	kind := "meeting"
	if came {
		kind = "decision"
	}
	m.e.Reports.Report(&health.Wait{What: fmt.Sprintf("%s(ranks=%s)", m.what, status.Brief(m.ranks)), How: "has not called it", Since: m.slow.Since,
		ID: health.WaitID(kind, m.key), Key: m.key, Ranks: slices.Clone(missing), Moving: came, Still: func() bool { return !m.over.Load() }})
}

// left returns those of ranks that have left the job, as far as this rank knows. It asks those of other nodes after a
// while.
func (m *meeting) left(ranks []int) []int {
	waited := time.Since(m.began)
	return slices.DeleteFunc(slices.Clone(ranks), func(r int) bool { return r == m.e.Topo.Rank || !m.e.Roster.Left(r, waited) })
}

// attempt is what the first member knows of another member's attempt.
type attempt struct {
	number []byte // number of its hello
	round  uint64 // the last round in which the member was asked
	asked  []byte // body of that question, until the member has answered with the same
}

// collect is meet on the first member.
func (m *meeting) collect(others []int, deadline time.Time) (missing []int, err error) {
	e, key := m.e, m.key
	came := map[int]*attempt{}
	var failed error
	ask := func(r int, round uint64) {
		a := came[r]
		a.round = round
		a.asked = binary.LittleEndian.AppendUint64(bytes.Clone(a.number), round)
		e.Mail.Send(r, mailbox.Ready, key, a.asked)
	}
	round := uint64(0) // round 0 asks one member whose hello has arrived; every later round asks all
	err = e.wait(e.Engine.Wait, func() bool {
		e.Mail.Pump()
		if e.Roster.AnyDied(others) {
			missing, failed = e.Roster.Dead(others), work.ErrDeadline
			return true
		}
		missing = missing[:0]
		for _, r := range others {
			number, ok := e.Mail.Peek(mailbox.Hello, r, key)
			switch {
			case !ok:
				delete(came, r)
				missing = append(missing, r)
			case came[r] == nil || !bytes.Equal(came[r].number, number):
				came[r] = &attempt{number: number}
				ask(r, 0)
			}
		}
		if left := m.left(missing); len(left) > 0 {
			missing, failed = left, errLeft
			return true
		}
		if len(missing) > 0 {
			m.reportIfSlow(missing, false)
			return false
		}
		if slices.ContainsFunc(others, func(r int) bool { return came[r].round == 0 }) { // it is new: the others' answers may be old
			round++
			for _, r := range others {
				ask(r, round)
			}
		}
		for _, r := range others {
			a := came[r]
			if body, ok := e.Mail.Take(mailbox.Still, r, key); ok && bytes.Equal(body, a.asked) {
				a.asked = nil
			}
			if a.asked != nil {
				missing = append(missing, r)
			}
		}
		m.reportIfSlow(missing, true)
		return len(missing) == 0
	}, e.Ending, deadline)
	err = cmp.Or(err, failed)
	m.decide(others, missing, err)
	return missing, err
}

// The reasons in a mailbox.Fail.
const (
	failLate uint32 = iota // the ranks have not come
	failLeft               // the ranks have left the job
)

// decide tells the others that all have come, or why the meeting fails and which members are missing.
func (m *meeting) decide(others, missing []int, err error) {
	kind, list := mailbox.Go, []byte(nil)
	if err != nil {
		kind = mailbox.Fail
		why := failLate
		if err == errLeft {
			why = failLeft
		}
		list = binary.LittleEndian.AppendUint32(list, why)
		for _, r := range missing {
			list = binary.LittleEndian.AppendUint32(list, uint32(r))
		}
	}
	for _, r := range others {
		if number, ok := m.e.Mail.Take(mailbox.Hello, r, m.key); ok {
			m.e.Mail.Send(r, kind, m.key, append(number, list...))
		}
	}
	_ = m.e.Engine.Wait(m.e.Mail.Sent, time.Now().Add(time.Second), nil)
}

// attend is meet on the members other than the first.
func (m *meeting) attend(deadline time.Time) (missing []int, err error) {
	e, key, ranks, first := m.e, m.key, m.ranks, m.ranks[0]
	asked := false // by the first member, which reports who is missing
	number := binary.LittleEndian.AppendUint64(nil, e.Groups.hellos.Add(1))
	e.Mail.Send(first, mailbox.Hello, key, number)
	var decided error // the first member has decided that the meeting fails
	var gone []int    // members that have left, as this one has seen first
	var leftAt time.Time
	until := deadline
	err = e.wait(e.Engine.Wait, func() bool {
		e.Mail.Pump()
		if body, ok := e.Mail.Take(mailbox.Ready, first, key); ok && bytes.HasPrefix(body, number) && time.Now().Before(deadline.Add(readyLimit)) {
			until, asked = time.Now().Add(decisionGrace), true
			if latest := deadline.Add(decisionGrace); until.Before(latest) {
				until = latest
			}
			e.Mail.Send(first, mailbox.Still, key, body)
		}
		body, ok := e.Mail.Take(mailbox.Go, first, key)
		return ok && bytes.Equal(body, number)
	}, func() error {
		if body, ok := e.Mail.Take(mailbox.Fail, first, key); ok && bytes.HasPrefix(body, number) {
			missing, decided = decodeFail(body[len(number):], ranks)
			return decided
		}
		now := time.Now()
		switch {
		case e.Roster.AnyDied(ranks):
			missing = e.Roster.Dead(ranks)
			return work.ErrDeadline
		case leftAt.IsZero():
			if gone = m.left(ranks); len(gone) > 0 {
				leftAt = now
			}
		case now.Sub(leftAt) > health.LeftGrace: // else the decision may be on its way
			missing = gone // not those that have left since, because of these
			return errLeft
		}
		if !now.Before(until) {
			return work.ErrDeadline
		}
		m.reportIfSlow(ranks[:1], asked)
		return e.Ending()
	}, time.Time{})
	if err != nil && decided == nil {
		e.Mail.Send(first, mailbox.Bye, key, nil)
	}
	if err != nil && len(missing) == 0 {
		missing = []int{first}
	}
	return missing, err
}

// decodeFail reads what the first member has sent of a meeting of ranks that failed.
func decodeFail(body []byte, ranks []int) (missing []int, err error) {
	err = work.ErrDeadline
	if binary.LittleEndian.Uint32(body) == failLeft {
		err = errLeft
	}
	for body = body[4:]; len(body) >= 4; body = body[4:] {
		if r := int(binary.LittleEndian.Uint32(body)); slices.Contains(ranks, r) && !slices.Contains(missing, r) {
			missing = append(missing, r)
		}
	}
	return missing, err
}

// meetError turns the error of a meeting into one that names the members that did not come.
func (e *Env) meetError(what, need string, err error, ranks, missing []int, timeout time.Duration) error {
	switch {
	case err == nil:
		return nil
	case e.Ending() != nil:
		return e.EndingError(what, ranks)
	case err != work.ErrDeadline && err != errLeft:
		return err
	}
	if dead := e.Roster.Dead(missing); len(dead) > 0 {
		return e.Roster.DiedError(fmt.Sprintf("%s(ranks=%v)", what, status.Brief(ranks)), dead, "they will not come")
	}
	if err == errLeft {
		return status.New(status.PeerLeft, "%s(ranks=%v): world rank(s) %v have ended and will not come", what, status.Brief(ranks), status.Brief(missing)).WithRanks(missing...)
	}
	return status.New(status.Timeout, "%s(ranks=%v): after %v world rank(s) %v had not %s", what, status.Brief(ranks), timeout, status.Brief(missing), need).WithRanks(missing...)
}
