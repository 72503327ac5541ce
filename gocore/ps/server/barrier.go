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
	says map[int]string // what those who have come say
	open chan struct{}
}

// barriers are those at which trainers wait, by their names. The Server's mu guards them.
type barriers map[string]*barrier

// Barrier returns when all active trainers have come to the name. The name can be used again then.
func (s *Server) Barrier(ctx context.Context, from int, name string) error {
	return s.Meet(ctx, from, name, "")
}

// Meet is a Barrier at which all trainers must say the same: all get an error if they do not.
func (s *Server) Meet(ctx context.Context, from int, name, says string) error {
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
		b = &barrier{came: map[int]bool{}, says: map[int]string{}, open: make(chan struct{})}
		s.barriers[name] = b
	}
	if b.came[from] {
		s.mu.Unlock()
		return status.New(status.Argument, "barrier %q: rank %d waits there already: in another thread, or interrupted by the signal handler that calls this", name, from).WithRanks(from)
	}
	b.came[from], b.says[from] = true, says
	s.barriers.openIfAll(name, s.trainers)
	s.mu.Unlock()
	select {
	case <-b.open:
		if err := s.Err(); err != nil {
			return err
		}
		return b.differ(name, from) // nobody changes it any more
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.barriers[name] != b { // it was opened meanwhile
		if s.failed != nil {
			return s.failed
		}
		return b.differ(name, from)
	}
	delete(b.came, from)
	delete(b.says, from)
	var missing []int
	for _, rank := range s.Trainers {
		if s.trainers[rank].state == active && !b.came[rank] && rank != from {
			missing = append(missing, rank)
		}
	}
	return status.New(status.Timeout, "barrier %q: trainers of ranks %v have not come%s", name, missing, s.barriers.elsewhere(missing)).WithRanks(missing...)
}

// differ returns an error if those who have met say different things. It names the ranks that do
// not say what most say, or what the first rank says.
func (b *barrier) differ(name string, me int) error {
	votes := map[string]int{}
	for _, text := range b.says {
		votes[text]++
	}
	if len(votes) < 2 {
		return nil
	}
	ranks := slices.Sorted(maps.Keys(b.says))
	usual := b.says[ranks[0]]
	for _, rank := range ranks {
		if votes[b.says[rank]] > votes[usual] {
			usual = b.says[rank]
		}
	}
	ranks = slices.DeleteFunc(ranks, func(rank int) bool { return b.says[rank] == usual })
	return status.New(status.Mismatch, "%s: rank %d asks for %s, and nothing was done, because rank %d asks for %s and others for %s: give the same on all trainers",
		name, me, b.says[me], ranks[0], b.says[ranks[0]], usual).WithRanks(ranks...)
}

// elsewhere says which of some trainers wait at other names.
func (bs barriers) elsewhere(ranks []int) (text string) {
	for _, rank := range ranks {
		if name := bs.waitsAt(rank); name != "" {
			text += fmt.Sprintf("; rank %d waits at %q", rank, name)
		}
	}
	return text
}

// waitsAt returns the name at which a trainer waits; "" if it waits at none.
func (bs barriers) waitsAt(rank int) string {
	for _, name := range slices.Sorted(maps.Keys(bs)) {
		if bs[name].came[rank] {
			return name
		}
	}
	return ""
}

// openIfAll lets those who wait at a name go on if all active trainers have come.
func (bs barriers) openIfAll(name string, of trainers) {
	b := bs[name]
	for rank, t := range of {
		if t.state == active && !b.came[rank] {
			return
		}
	}
	close(b.open)
	delete(bs, name)
}
