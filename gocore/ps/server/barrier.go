package server

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// barrier is a name at which trainers wait for each other.
type barrier struct {
	came map[int]bool
	open chan struct{}
}

// Barrier returns when all active trainers have come to the name. The name can be used again then.
func (s *Server) Barrier(ctx context.Context, from int, name string) error {
	if name == "" || len(name) > MostName {
		return status.New(status.Argument, "barrier: the name has %d bytes; it must have 1 to %d", len(name), MostName)
	}
	s.mu.Lock()
	if _, err := s.trainerLocked(from); err != nil {
		s.mu.Unlock()
		return err
	}
	b := s.barriers[name]
	if b == nil {
		if len(s.barriers) == MostTables {
			s.mu.Unlock()
			return status.New(status.Argument, "barrier %q: trainers wait at %d names already", name, MostTables)
		}
		b = &barrier{came: map[int]bool{}, open: make(chan struct{})}
		s.barriers[name] = b
	}
	if b.came[from] {
		s.mu.Unlock()
		return status.New(status.Argument, "barrier %q: rank %d waits there already: in another thread, or interrupted by the signal handler that calls this", name, from).WithRanks(from)
	}
	b.came[from] = true
	s.openIfAll(name, b)
	s.mu.Unlock()
	select {
	case <-b.open:
		return s.Err()
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.barriers[name] != b { // it was opened meanwhile
		return s.failed
	}
	delete(b.came, from)
	var missing []int
	for _, rank := range s.Trainers {
		if s.trainers[rank].state == active && !b.came[rank] && rank != from {
			missing = append(missing, rank)
		}
	}
	return status.New(status.Timeout, "barrier %q: trainers of ranks %v have not come%s", name, missing, s.elsewhereLocked(missing)).WithRanks(missing...)
}

// elsewhereLocked says which of some trainers wait at other names. The caller holds mu.
func (s *Server) elsewhereLocked(ranks []int) (text string) {
	for _, rank := range ranks {
		if name := s.waitsAtLocked(rank); name != "" {
			text += fmt.Sprintf("; rank %d waits at %q", rank, name)
		}
	}
	return text
}

// waitsAtLocked returns the name at which a trainer waits; "" if it waits at none. The caller holds mu.
func (s *Server) waitsAtLocked(rank int) string {
	for _, name := range slices.Sorted(maps.Keys(s.barriers)) {
		if s.barriers[name].came[rank] {
			return name
		}
	}
	return ""
}

// openIfAll lets those who wait go on if all active trainers have come. The caller holds mu.
func (s *Server) openIfAll(name string, b *barrier) {
	for rank, t := range s.trainers {
		if t.state == active && !b.came[rank] {
			return
		}
	}
	close(b.open)
	delete(s.barriers, name)
}
