package world

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Mourning notes which members an operation of MPI saw dead first, and when. The zero value has seen none.
type Mourning struct {
	since time.Time
	dead  []int
}

// Over returns the members that are dead, once that has been known for health.DeathGrace.
func (m *Mourning) Over(of *Members, now time.Time) []int {
	if m.since.IsZero() && of.AnyDied() {
		m.since, m.dead = now, of.Dead()
	}
	if m.since.IsZero() || now.Sub(m.since) <= health.DeathGrace {
		return nil
	}
	return m.dead
}

// News is an error with which MPI tells of a death.
type News struct {
	Err   error // nil: there are no such news
	since time.Time
}

// Waits tells whether err should not be told yet, because it tells of a death of which this rank does not know more. It
// keeps such an error.
func (n *News) Waits(of *Members, err error) bool {
	if err == nil || status.CodeOf(err) != status.ProcFailed {
		return false
	}
	if n.Err == nil {
		n.Err, n.since = err, time.Now()
	}
	return len(of.Dead()) == 0 && time.Since(n.since) < of.Env.Roster.NameLimit()
}
