package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Point says how far a server has come. The package comment says what for.
type Point struct {
	Steps   int64   `json:"steps"`   // how many steps of all trainers have ended
	Updates []int64 `json:"updates"` // of each trainer, the last one that waited for nobody
}

// Join returns the point that is as far as both.
func (p Point) Join(o Point) (Point, error) {
	if len(p.Updates) != len(o.Updates) {
		return p, status.New(status.Argument, "two servers say how far %d and %d trainers have come", len(p.Updates), len(o.Updates))
	}
	joined := Point{max(p.Steps, o.Steps), slices.Clone(p.Updates)}
	for i, n := range o.Updates {
		joined.Updates[i] = max(n, joined.Updates[i])
	}
	return joined, nil
}

// hold is that updates wait. The Server's mu guards it.
type hold struct {
	by       int         // rank of the trainer that asked for it
	turn     int         // how often it was asked for
	to       *Point      // up to which updates are carried out; nil: none is
	over     bool        // all are carried out, and then it ends
	queue    []*update   // what waits, in the order in which it came
	draining bool        // somebody carries out what waits
	lease    *time.Timer // ends the hold of a trainer that does not come back
	moved    chan struct{}
}

// lets tells whether a hold lets an update through, before which its trainer has none that waits.
func (h *hold) lets(u *update, trainers []int) bool {
	if h.over || u.op.Reads() {
		return true
	}
	return h.to != nil && u.number <= h.to.Updates[slices.Index(trainers, u.from)]
}

// letsStep tells whether a step of all trainers may be applied after so many. h may be nil.
func (h *hold) letsStep(steps int64) bool {
	return h == nil || h.over || h.to != nil && steps < h.to.Steps
}

// waitsLocked tells whether an update of a trainer waits.
func (h *hold) waitsLocked(from int) bool {
	return slices.ContainsFunc(h.queue, func(u *update) bool { return u.from == from })
}

// carryOutLocked carries out what waits for no other trainer, and replies: now, or when the hold
// lets it. The caller holds mu, and carryOutLocked gives it back.
func (s *Server) carryOutLocked(u *update) {
	if s.hold != nil {
		s.hold.queue = append(s.hold.queue, u)
		s.mu.Unlock()
		s.drain()
		return
	}
	s.running++
	s.mu.Unlock()
	u.done(s.now(u))
}

// now carries an update out. The caller has counted it as running.
func (s *Server) now(u *update) (answer request.Answer, err error) {
	var version int64
	switch {
	case u.mistake != nil:
		err = u.mistake
	case !u.op.IsStep():
		answer, err = s.access(u)
	default:
		if err = s.Tables.updateAlone(u, s.rule.Load()); err == nil {
			version = s.Version.Add(1)
		}
	}
	s.mu.Lock()
	t := s.trainers[u.from]
	if version > 0 {
		t.steps++
		answer = request.Answer{Version: version, Steps: t.steps}
	}
	if u.op.Updates() {
		t.number = max(t.number, u.number)
	}
	s.endedLocked()
	closer := s.closerLocked()
	s.mu.Unlock()
	s.pullAll(closer)
	if version > 0 {
		answer.Staleness = t.staleness.note(version-1, u.seen)
	}
	return answer, err
}

// endedLocked notes that something has been carried out.
func (s *Server) endedLocked() {
	s.running--
	s.hold.wake()
}

// wake wakes those who wait for how far the server has come. h may be nil.
func (h *hold) wake() {
	if h != nil {
		close(h.moved)
		h.moved = make(chan struct{})
	}
}

// drain carries out what waits and the hold lets through: that of each trainer in the order in
// which it came.
func (s *Server) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hold
	if h == nil || h.draining {
		return
	}
	h.draining = true
	for {
		blocked := map[int]bool{}
		next := slices.IndexFunc(h.queue, func(u *update) bool {
			if !blocked[u.from] && h.lets(u, s.Trainers) {
				return true
			}
			blocked[u.from] = true
			return false
		})
		if next < 0 {
			break
		}
		u := h.queue[next]
		h.queue = slices.Delete(h.queue, next, next+1)
		s.running++
		s.mu.Unlock()
		u.done(s.now(u))
		s.mu.Lock()
	}
	h.draining = false
	if h.over {
		s.hold = nil
	}
}

// Hold makes all updates wait, and returns how far the server has come. It waits for those that are
// carried out already. The hold ends with Release, after the deadline of ctx unless Reach has come
// before it, and with the trainer. That of another trainer takes its place.
func (s *Server) Hold(ctx context.Context, from int) (Point, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.trainerLocked(from); err != nil {
		return Point{}, err
	}
	if s.hold == nil {
		s.hold = &hold{moved: make(chan struct{})}
	}
	h := s.hold
	h.stopLease()
	h.by, h.to, h.over = from, nil, false
	h.turn++
	turn := h.turn
	s.hold.wake()
	if deadline, has := ctx.Deadline(); has {
		h.lease = time.AfterFunc(time.Until(deadline), func() { s.release(func() bool { return s.hold == h && h.turn == turn }) })
	}
	if err := s.awaitLocked(ctx, turn, func() bool { return s.running == 0 }); err != nil {
		return Point{}, err
	}
	p := Point{Steps: s.steps, Updates: make([]int64, len(s.Trainers))}
	for i, rank := range s.Trainers {
		p.Updates[i] = s.trainers[rank].number
	}
	return p, nil
}

// Reach lets updates through up to a point to which another server has come, and waits for them:
// they are on their way here, unless their trainer has died. The hold is that of the same trainer,
// and goes on.
func (s *Server) Reach(ctx context.Context, from int, to Point) error {
	s.mu.Lock()
	h := s.hold
	if h == nil || h.over || h.to != nil || h.by != from || len(to.Updates) != len(s.Trainers) {
		err := s.failed
		s.mu.Unlock()
		if err == nil {
			err = status.New(status.Timeout, "server %d no longer holds its updates for the cut of rank %d: it took too long, or another trainer makes one", s.Index, from).WithRanks(from)
		}
		return err
	}
	h.stopLease()
	h.to = &to
	turn := h.turn
	ready := s.readyLocked()
	s.mu.Unlock()
	s.apply(ready)
	s.drain()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.awaitLocked(ctx, turn, func() bool {
		if s.running > 0 || s.steps < to.Steps {
			return false
		}
		for i, rank := range s.Trainers {
			if t := s.trainers[rank]; t.number < to.Updates[i] && t.state == active {
				return false
			}
		}
		return true
	})
}

// awaitLocked waits until the server has come somewhere. The caller holds mu.
func (s *Server) awaitLocked(ctx context.Context, turn int, come func() bool) error {
	for {
		h := s.hold
		switch {
		case s.failed != nil:
			return s.failed
		case h == nil || h.over || h.turn != turn:
			return status.New(status.Interrupted, "server %d: the hold of its updates was ended", s.Index)
		case come():
			return nil
		}
		moved := h.moved
		s.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
		}
		s.mu.Lock()
		switch err := ctx.Err(); {
		case errors.Is(err, context.DeadlineExceeded):
			return status.New(status.Timeout, "server %d: updates that another server has have not come here by the deadline", s.Index)
		case err != nil:
			return status.New(status.Interrupted, "server %d: the trainer that makes a cut has given up", s.Index)
		}
	}
}

// Release ends the hold of a trainer, if there is one.
func (s *Server) Release(from int) {
	s.release(func() bool { return s.hold.by == from })
}

// release ends the hold if it is the one that is meant.
func (s *Server) release(meant func() bool) {
	s.mu.Lock()
	if s.hold == nil || s.hold.over || !meant() {
		s.mu.Unlock()
		return
	}
	s.hold.over = true
	s.hold.stopLease()
	s.hold.wake()
	ready := s.readyLocked()
	s.mu.Unlock()
	s.drain()
	s.apply(ready)
}

func (h *hold) stopLease() {
	if h.lease != nil {
		h.lease.Stop()
		h.lease = nil
	}
}

// failLocked returns what waits, which the caller answers with an error.
func (h *hold) failLocked() []*update {
	all := h.queue
	h.queue, h.over = nil, true
	h.stopLease()
	return all
}
