package server

import "github.com/paddlempi/paddlempi/gocore/status"

// This file changes when pushes are applied, between two steps.

// alone tells whether a push is applied without those of other trainers.
func (r *Rule) alone(trainers []int) bool { return !r.Sync || len(trainers) == 1 }

// MayChange returns an error if a push of a trainer waits for those of others: it would never be
// applied by another rule.
func (s *Server) MayChange() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayChangeLocked()
}

func (s *Server) mayChangeLocked() error {
	if s.failed != nil {
		return s.failed
	}
	for _, rank := range s.Trainers {
		if t := s.trainers[rank]; t.waiting != nil || t.applying != nil {
			return status.New(status.Argument, "server %d: step %d of rank %d waits for other trainers: the rule changes between two steps of all of them", s.Index, t.steps, rank).WithRanks(rank)
		}
	}
	return nil
}

// SetRule changes when pushes are applied. No trainer pushes meanwhile; pulls that wait for
// trainers that are behind go on. Steps that are counted for a bound of staleness begin anew.
func (s *Server) SetRule(r Rule) error {
	s.mu.Lock()
	if err := s.mayChangeLocked(); err != nil {
		s.mu.Unlock()
		return err
	}
	s.rule.Store(&r)
	for _, t := range s.trainers {
		t.base = t.steps
	}
	closer := s.closerLocked()
	s.mu.Unlock()
	s.pullAll(closer)
	if r.Lambda == 0 {
		s.Tables.ForgetBackups()
	}
	return nil
}
