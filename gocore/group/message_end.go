package group

import (
	"fmt"
	"time"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// This file gives messages up: at their deadline, after an interrupt, because the peer has left.

// leftGrace is how long a message from a rank that has left may still be on its way.
const leftGrace = 500 * time.Millisecond

// overdue gives the message up if its caller was interrupted, its deadline has passed, or its peer
// has left.
func (m *message) overdue() {
	if m.handle == nil || m.gaveUp != nil {
		return
	}
	if m.handle.Done() {
		_, err := m.handle.Result()
		m.giveUp(err)
		return
	}
	if m.polls++; m.polls&31 != 0 {
		return
	}
	now := time.Now()
	if m.g.ending() != nil {
		m.giveUp(m.g.endingError(m.describe()))
		return
	}
	if now.After(m.deadline) {
		m.giveUp(status.New(status.Timeout, "%s on the group of ranks %s timed out after %v", m.describe(), brief(m.g.Ranks), m.timeout).WithRanks(m.peers()...))
		return
	}
	if since := m.handle.Awaited(); !since.IsZero() && m.slow.due(m.g.env, now, since) {
		m.g.reportMessage(&m.slow, m.describe(), m.peers(), m.trace)
	}
	for i := 0; i < m.n; i++ {
		tr := &m.transfers[i]
		if !tr.over() && m.peerLeft(tr.peer, now) {
			m.giveUp(m.g.endedError(m.describe(), tr.peer))
			return
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
		if (int(peer) == i || peer < 0 && i != m.g.Rank) && !m.g.env.left(r, now.Sub(m.since)) {
			return false
		}
	}
	if m.leftAt.IsZero() {
		m.leftAt = now
	}
	return now.Sub(m.leftAt) > leftGrace
}

// endedError names the peer that has ended, or all other members if peer is negative. If some of them
// have died, it names these.
func (g *Group) endedError(what string, peer int32) error {
	var ended []int
	for i, r := range g.Ranks {
		if int(peer) == i || peer < 0 && i != g.Rank {
			ended = append(ended, r)
		}
	}
	if dead := g.env.dead(ended); len(dead) > 0 {
		return g.env.diedError(fmt.Sprintf("%s on the group of ranks %s", what, brief(g.Ranks)), dead, "no message will come")
	}
	return status.New(status.PeerLeft, "%s on the group of ranks %s: rank(s) %s have ended", what, brief(g.Ranks), brief(ended)).WithRanks(ended...)
}

// giveUp gives the message up because of err. A receive is cancelled, and the group stays usable. A
// send cannot be cancelled: the caller is told at once, the group is broken, and the task lingers
// until MPI is done with the buffer.
func (m *message) giveUp(err error) {
	m.gaveUp = err
	sending := false
	for i := 0; i < m.n; i++ {
		tr := &m.transfers[i]
		if tr.over() {
			continue
		}
		if tr.slot == nil {
			tr.dropped = true // MPI was not called for it
			m.g.unqueue(tr)
			continue
		}
		if tr.call.Fn == mpi.FnRecv {
			if m.g.env.Lib.Cancel(tr.slot) == nil {
				continue
			}
		}
		sending = true
	}
	if sending {
		m.g.env.strand(m)
		m.g.over(m.trace, err)
		m.countOff(m.handle.GiveUp(err))
		m.g.fail(err)
	}
}

// strand notes a message that was given up while MPI still sends it.
func (e *Env) strand(m *message) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stranded[m] = true
}

// arrivedAfterAll takes a message off the list of strand: MPI is done with it.
func (e *Env) arrivedAfterAll(m *message) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.stranded, m)
}
