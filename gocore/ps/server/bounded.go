package server

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/ps/request"
)

// This file bounds the staleness of rows (stale synchronous parallel, SSP): Q. Ho et al., "More
// Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013. Pushes are
// applied at once, as in asynchronous mode. A trainer that has pushed c steps may pull when every
// active trainer has pushed c - Slack steps at least. So what it pulls has all updates of steps
// before that, of all trainers, and no trainer is ever more than Slack + 1 steps ahead of another.
// A lookup does not wait: no training comes of it, and the others may wait for who evaluates.

// keepsAhead keeps a pull of a trainer that is too many steps ahead of another one, and tells
// whether it has. It is carried out when the others have come closer, or have left.
func (s *Server) keepsAhead(u *update) bool {
	if !s.rule.Load().Bounded || u.op != request.Pull {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil || !s.trainers.isAhead(u.from, s.rule.Load().Slack) {
		return false
	}
	s.ahead = append(s.ahead, u)
	return true
}

// isAhead tells whether a trainer is more than slack steps ahead of one that is active.
func (ts trainers) isAhead(rank int, slack int64) bool {
	mine := ts[rank].steps - ts[rank].base
	for _, t := range ts {
		if t.state == active && mine-(t.steps-t.base) > slack {
			return true
		}
	}
	return false
}

// closerLocked returns the pulls that are kept no longer. The caller holds mu, and carries them out
// with pullAll after it has given mu back.
func (s *Server) closerLocked() (free []*update) {
	slack := s.rule.Load().Slack
	s.ahead = slices.DeleteFunc(s.ahead, func(u *update) bool {
		if s.trainers.isAhead(u.from, slack) {
			return false
		}
		free = append(free, u)
		return true
	})
	return free
}

// pullAll carries pulls out.
func (s *Server) pullAll(pulls []*update) {
	for _, u := range pulls {
		u.done(s.access(u))
	}
}
