package link

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// sharedOutlet is the trainer's side of a pair on one node.
type sharedOutlet struct {
	words
	heap *heap.Heap
	door *door
	ring *ring            // nil before the first request; posting guards it
	seen [Credits]*uint32 // the slots' words of answers, once the ring is there; mu guards it and last
	last [Credits]uint32  // the number that the server has stored there last
	gone bool             // door and ring were given back; mu and posting guard it
}

// newSharedOutlet makes the door of a server.
func newSharedOutlet(h *heap.Heap) (*sharedOutlet, error) {
	p, err := h.Alloc(doorBytes)
	if err != nil {
		return nil, err
	}
	s := &sharedOutlet{heap: h, door: (*door)(p)}
	*s.door = door{}
	s.answers = &s.door.answers
	return s, nil
}

// place returns where the door is.
func (s *sharedOutlet) place() place {
	at, _ := s.heap.Find(unsafe.Pointer(s.door), doorBytes)
	return place{at.Offset, at.Generation, doorBytes}
}

// makeRing makes the ring. The caller holds posting.
func (s *sharedOutlet) makeRing() error {
	p, err := s.heap.Alloc(ringBytes)
	if err != nil {
		return err
	}
	clear(bytesOf(p, int64(unsafe.Offsetof(ring{}.requests))))
	s.ring = (*ring)(p)
	at, _ := s.heap.Find(p, ringBytes)
	atomic.StoreInt64(&s.door.offset, at.Offset)
	atomic.StoreUint64(&s.door.generation, at.Generation)
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	for i := range s.seen {
		s.seen[i] = &s.ring.slots[i].answered
	}
	return nil
}

func (s *sharedOutlet) post(p *Pending, r *Request) error {
	if s.gone {
		return s.o.l.closedError(s.o.what)
	}
	if s.ring == nil {
		if err := s.makeRing(); err != nil {
			return err
		}
	}
	var places [regions]place
	for i, region := range p.regions {
		places[i] = region.place()
	}
	copy(s.ring.requests[p.credit][:], r.Header)
	s.ring.slots[p.credit].store(len(r.Header), places)
	s.ring.enter(p.seq, p.credit)
	atomic.AddUint32(&s.door.bell, 1)
	wake(&s.door.bell)
	return nil
}

func (s *sharedOutlet) harvest() {
	if s.gone {
		return
	}
	for i, p := range s.o.under {
		if p == nil || !p.posted {
			continue
		}
		switch number := atomic.LoadUint32(s.seen[i]); number {
		case uint32(p.seq):
			s.last[i] = number
			if header, err, rot := s.take(i); rot != nil {
				s.o.damaged(rot)
				p.settle(nil, s.o.broken)
			} else {
				p.answer(header, err)
			}
		case s.last[i]:
		default:
			s.o.damaged(rubbish("answer number %d in the slot of request %d", number, p.seq))
		}
	}
}

// take copies an answer. rot says that it cannot be one.
func (s *sharedOutlet) take(credit int) (header []byte, err, rot error) {
	from := &s.ring.slots[credit]
	n, failed := atomic.LoadUint32(&from.answer), atomic.LoadUint32(&from.failed)
	if n > MaxHeader || failed > 1 {
		return nil, nil, rubbish("a header of %d bytes, of kind %d", n, failed)
	}
	header = slices.Clone(s.ring.answers[credit][:n])
	if failed == 0 {
		return header, nil, nil
	}
	e, ok := status.Unpack(header)
	if !ok {
		return nil, nil, rubbish("%d bytes that are no error", n)
	}
	return nil, e, nil
}

func (s *sharedOutlet) verdict() *status.Error {
	if s.gone {
		return nil
	}
	switch v := atomic.LoadUint32(&s.door.verdict); v {
	case verdictNone:
		return nil
	case verdictClosed, verdictDamaged:
		return s.o.refusal(v == verdictDamaged)
	default:
		s.o.damaged(rubbish("%d as the reason why it ends", v))
		return s.o.broken
	}
}

// died settles all requests: a server that has died, or left the ring, uses their memory no more.
func (s *sharedOutlet) died(err error) {
	for _, p := range s.o.under {
		if p != nil && p.posted {
			p.settle(nil, err)
		}
	}
}

// close tells the server that no more requests come.
func (s *sharedOutlet) close() {
	atomic.StoreUint32(&s.door.closed, 1)
	atomic.AddUint32(&s.door.bell, 1)
	wake(&s.door.bell)
}

func (s *sharedOutlet) reclaim(deadline time.Time) bool {
	s.o.posting.Lock()
	defer s.o.posting.Unlock()
	for {
		dead := status.CodeOf(s.o.l.g.Trouble(s.o.what, s.o.member)) == status.PeerDied
		if s.settle(dead) {
			break
		}
		left := time.Until(deadline)
		if left <= 0 {
			return false // the server may still write there: it stays
		}
		sleepOn(&s.door.left, 0, min(left, 10*time.Millisecond))
	}
	if s.ring != nil {
		_ = s.heap.Free(unsafe.Pointer(s.ring)) // it is the heap's
	}
	s.free()
	return true
}

// settle ends the use of door and ring if the server uses them no more, and tells whether it does.
// dead says that the server has died.
func (s *sharedOutlet) settle(dead bool) bool {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	if s.o.waiting.Load() > 0 || !dead && atomic.LoadUint32(&s.door.left) == 0 {
		return false
	}
	s.harvest()
	s.died(s.o.l.closedError(s.o.what))
	s.gone = true
	return true
}

// free gives the door back.
func (s *sharedOutlet) free() { _ = s.heap.Free(unsafe.Pointer(s.door)) } // it is the heap's

// sharedInlet is the server's side of such a pair.
type sharedInlet struct {
	view    *heap.View
	doorRef heap.Ref
	door    *door

	next uint64 // the number of the next request; the thread alone uses it

	mu      sync.Mutex
	uses    int // of ring: the thread, and the requests that are not answered
	ringRef heap.Ref
	ring    *ring // nil before the first request
	busy    [Credits]bool
}

// openDoor makes the server's side of a pair whose door is at p.
func openDoor(v *heap.View, p place) (*sharedInlet, error) {
	if p.bytes != doorBytes {
		return nil, rubbish("a door of %d bytes", p.bytes)
	}
	ref, err := acquire(v, p, lineBytes)
	if err != nil {
		return nil, err
	}
	return &sharedInlet{view: v, doorRef: ref, door: (*door)(ref.Data()), next: 1, uses: 1}, nil
}

// take takes the next request; nil if there is none. An error says that the trainer has written
// what it never writes.
func (s *sharedInlet) take(i *inlet) (*Incoming, error) {
	if s.ring == nil {
		if ok, err := s.openRing(); !ok {
			return nil, err
		}
	}
	credit, ok, err := s.ring.entered(s.next)
	if !ok {
		return nil, err
	}
	from := &s.ring.slots[credit]
	n, places, err := from.load()
	if err != nil {
		return nil, err
	}
	in := &Incoming{From: i.member, Header: slices.Clone(s.ring.requests[credit][:n]), inlet: i, credit: credit, seq: s.next}
	for k, p := range places {
		align := uintptr(1)
		if k == regionIDs {
			align = 8
		}
		if in.refs[k], err = acquire(s.view, p, align); err != nil {
			in.release()
			return nil, rubbish("%s: %v", regionNames[k], err)
		}
	}
	in.IDs = idsOf(in.refs[regionIDs].Data(), places[regionIDs].bytes)
	in.Values = bytesOf(in.refs[regionValues].Data(), places[regionValues].bytes)
	in.Answer = bytesOf(in.refs[regionAnswer].Data(), places[regionAnswer].bytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[credit] {
		in.release()
		return nil, rubbish("request %d in slot %d, where one is under way", s.next, credit)
	}
	s.busy[credit] = true
	s.uses++
	s.next++
	return in, nil
}

// openRing maps the ring. ok is false if the trainer has not made it yet.
func (s *sharedInlet) openRing() (ok bool, err error) {
	generation := atomic.LoadUint64(&s.door.generation)
	if generation == 0 {
		return false, nil
	}
	ref, err := acquire(s.view, place{atomic.LoadInt64(&s.door.offset), generation, ringBytes}, lineBytes)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ringRef, s.ring = ref, (*ring)(ref.Data())
	return true, nil
}

func (s *sharedInlet) reply(in *Incoming, header []byte, err error) {
	b, failed := packed(header, err)
	to := &s.ring.slots[in.credit]
	copy(s.ring.answers[in.credit][:], b)
	atomic.StoreUint32(&to.answer, uint32(len(b)))
	atomic.StoreUint32(&to.failed, 0)
	if failed {
		atomic.StoreUint32(&to.failed, 1)
	}
	in.release()
	s.mu.Lock()
	s.busy[in.credit] = false // before the trainer sees that the slot is free
	s.mu.Unlock()
	atomic.StoreUint32(&to.answered, uint32(in.seq))
	s.rouse()
	s.unuse()
}

// rouse wakes the trainer's threads.
func (s *sharedInlet) rouse() {
	atomic.AddUint32(&s.door.answers, 1)
	wake(&s.door.answers)
}

// unuse lets go of door and ring after the thread and all requests have.
func (s *sharedInlet) unuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uses--; s.uses == 0 {
		atomic.StoreUint32(&s.door.left, 1)
		wake(&s.door.left)
		s.ringRef.Release()
		s.doorRef.Release()
	}
}

// serve hands requests to the handler until the pair ends.
func (s *sharedInlet) serve(i *inlet) {
	defer i.l.g.Use()()
	defer s.unuse()
	verdict := verdictClosed
	defer func() {
		atomic.StoreUint32(&s.door.verdict, verdict)
		s.rouse()
	}()
	for {
		seen := atomic.LoadUint32(&s.door.bell)
		if i.l.closed.Load() {
			return
		}
		closed := atomic.LoadUint32(&s.door.closed) != 0 // before the look at the requests
		in, err := s.take(i)
		switch {
		case err != nil:
			verdict = verdictDamaged
			i.damaged(err)
			return
		case in != nil:
			i.handle(in)
			continue
		case closed:
			i.end(i.gone())
			return
		}
		if err := i.l.g.Trouble(i.what, i.member); err != nil {
			i.end(err)
			return
		}
		sleepOn(&s.door.bell, seen, 2*lookEvery)
	}
}

// wake wakes the thread, if door and ring are still in use: else the trainer has other things
// there.
func (s *sharedInlet) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uses > 0 {
		atomic.AddUint32(&s.door.bell, 1)
		wake(&s.door.bell)
	}
}
