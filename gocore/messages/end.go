package messages

import (
	"errors"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// This file gives messages up: at their deadline, after an interrupt, because the peer has left.

// overdue gives the message up if its caller was interrupted, its deadline has passed, or its peer
// has left.
func (m *message) overdue() {
	if m.handle == nil {
		return
	}
	if m.gaveUp != nil {
		m.lingers()
		return
	}
	if m.handle.Done() {
		_, err := m.handle.Result()
		m.giveUp(err)
		return
	}
	if !m.looks.Due(m.g.Env.Engine) {
		return
	}
	now := time.Now()
	if m.g.Ending() != nil {
		m.giveUp(m.g.EndingError(m.describe()))
		return
	}
	if now.After(m.deadline) {
		m.giveUp(status.New(status.Timeout, "%s timed out after %v", m.g.Of(m.describe()), m.timeout).WithRanks(m.peers()...))
		return
	}
	if since := m.handle.Awaited(); !since.IsZero() && m.slow.Due(&m.g.Env.Reports, now, since) {
		m.g.report(&m.slow, m.describe(), m.peers(), m.trace)
	}
	for i := 0; i < m.n; i++ {
		tr := &m.transfers[i]
		if tr.over() {
			continue
		}
		if tr.peer < 0 {
			m.buryAny() // it may have taken a message whose sender died before it was sent whole
		}
		if m.peerLeft(tr.peer, now) {
			if m.bury(tr) {
				return // its requests are over, so that this is not the end of the group
			}
			m.giveUp(m.g.endedError(m.describe(), tr.peer))
			return
		}
	}
}

// bury ends the requests of a transfer with a rank that has died, if the transport does not do so itself.
func (m *message) bury(tr *transfer) bool {
	b, ok := m.comm.(transport.PeerFailer)
	if !ok || tr.buried || tr.peer < 0 || tr.request == nil || len(m.g.Env.Roster.Dead(m.g.Ranks[tr.peer:tr.peer+1])) == 0 {
		return false
	}
	tr.buried = true
	b.FailPeer(int(tr.peer))
	return true
}

// buryAny does so for all members that have died. A receive from any rank that has taken no message goes on.
func (m *message) buryAny() {
	b, ok := m.comm.(transport.PeerFailer)
	if !ok {
		return
	}
	for member, r := range m.g.Ranks {
		if member != m.g.Rank && m.g.Env.Roster.Died(r) {
			b.FailPeer(member)
		}
	}
}

// peerLeft tells whether the peer left so long ago that no message from it can be on its way. A
// negative peer stands for all other members. A rank does not wait for another if it sends to
// itself.
func (m *message) peerLeft(peer int32, now time.Time) bool {
	if int(peer) == m.g.Rank || m.g.Size == 1 {
		return false
	}
	if m.since.IsZero() {
		m.since = now
	}
	for i, r := range m.g.Ranks {
		if (int(peer) == i || peer < 0 && i != m.g.Rank) && !m.g.Env.Roster.Left(r, now.Sub(m.since)) {
			return false
		}
	}
	if m.leftAt.IsZero() {
		m.leftAt = now
	}
	return now.Sub(m.leftAt) > health.LeftGrace
}

// endedError names the peer that has ended, or all other members if peer is negative. If some of them
// have died, it names these.
func (g *Messages) endedError(what string, peer int32) error {
	if err := g.EndingError(what); err != nil {
		return err // the peer has heard of that first
	}
	var ended []int
	for i, r := range g.Ranks {
		if int(peer) == i || peer < 0 && i != g.Rank {
			ended = append(ended, r)
		}
	}
	if dead := g.Env.Roster.Dead(ended); len(dead) > 0 {
		return g.Env.Roster.DiedError(g.Of(what), dead, "no message will come")
	}
	return status.New(status.PeerLeft, "%s: rank(s) %s have ended", g.Of(what), status.Brief(ended)).WithRanks(ended...)
}

// giveUp gives the message up because of err. A receive is cancelled, and the group stays usable. A
// send cannot be cancelled: the caller is told at once, the group is broken, and the task lingers
// until MPI is done with the buffer. Nor can a receive whose message has begun to come, unless the transport can do that; so
// the task lingers, and lingers tells the caller.
func (m *message) giveUp(err error) {
	m.gaveUp = err
	sending := false
	for i := 0; i < m.n; i++ {
		tr := &m.transfers[i]
		if tr.over() {
			continue
		}
		if tr.request == nil {
			tr.dropped = true // MPI was not called for it
			m.g.waiting.unqueue(tr)
			continue
		}
		if !tr.receives || m.comm.Cancel(tr.request) != nil {
			sending = true
		}
	}
	if sending {
		m.g.Env.Departure.Strand(m)
		m.tell(err)
		m.g.group.Fail(err)
	}
}

// tell tells the caller that the message was given up, if it was not told.
func (m *message) tell(err error) {
	m.g.Env.Recorder.End(m.trace, err)
	m.countOff(m.handle.GiveUp(err))
}

// lingers takes a message further that was given up: some request of it is under way, although it was cancelled.
func (m *message) lingers() {
	if !m.looks.Due(m.g.Env.Engine) {
		return
	}
	if !m.handle.Done() {
		m.tell(m.gaveUp)
	}
	m.buryAny()
}

// awaitsName tells whether the message, whose requests are over, should not end yet, because MPI has told of a
// death of which this rank does not know more.
func (m *message) awaitsName() bool {
	for i := 0; i < m.n; i++ {
		if tr := &m.transfers[i]; tr.request != nil && tr.request.Code != 0 && m.news.Waits(m.g.Members, m.comm.Err(tr.request)) {
			return true
		}
	}
	return false
}

// named returns MPI's error with a description of the message. tr is the transfer that failed.
func (m *message) named(tr *transfer, err error) error {
	e := &status.Error{Code: status.CodeOf(err)}
	errors.As(err, &e)
	what := m.describe()
	if e.Code == status.Truncate && tr.receives {
		what += ": the message is longer than that (probe tells the length before)"
	}
	if e.Code == status.ProcFailed {
		return m.deathError(err)
	}
	named := status.New(e.Code, "%s: %v", what, err)
	named.MPIClass, named.Ranks = e.MPIClass, e.Ranks
	if tr.peer >= 0 {
		named.Ranks = []int{m.g.Ranks[tr.peer]}
	}
	return named
}

// deathError is the error of the message, of whose end MPI has told by err. It names the peers that are dead,
// or else any member that is.
func (m *message) deathError(err error) error {
	dead := m.g.Dead()
	var peers []int
	for i := 0; i < m.n; i++ {
		if p := int(m.transfers[i].peer); slices.Contains(dead, p) && !slices.Contains(peers, p) {
			peers = append(peers, p)
		}
	}
	if len(peers) > 0 {
		dead = peers
	}
	return m.g.DeathError(m.describe(), dead, err.Error(), err)
}

// String describes the message and its group.
func (m *message) String() string { return m.g.Of(m.describe()) }
