package link

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// localOutlet is the trainer's side of a pair within this process. The server gets the regions
// themselves.
type localOutlet struct {
	words
	count uint32 // of answers
	inlet *inlet
}

func (s *localOutlet) post(p *Pending, r *Request) error {
	in := &Incoming{From: s.inlet.member, Header: slices.Clone(r.Header), inlet: s.inlet, credit: p.credit, seq: p.seq, pending: p}
	in.IDs = idsOf(r.IDs.data(), r.IDs.Bytes)
	in.Values = bytesOf(r.Values.data(), r.Values.Bytes)
	in.Answer = bytesOf(r.Answer.data(), r.Answer.Bytes)
	s.inlet.queue <- in // there is room for all credits
	s.inlet.by.wake()
	return nil
}

func (s *localOutlet) harvest()               {}
func (s *localOutlet) verdict() *status.Error { return nil }
func (s *localOutlet) died(error)             {}
func (s *localOutlet) close()                 {}
func (s *localOutlet) reclaim(time.Time) bool { return true }

// localInlet is the server's side. Its goroutine sleeps in the kernel, as that of the shared way: a
// goroutine that waits for a channel is taken over by another thread of the Go runtime, which first
// sleeps for 3 us, and that is up to 10 ms with the slack of these threads (capi/slack.c).
type localInlet struct {
	from *localOutlet
	bell uint32 // counts requests
}

// serve hands the requests to the handler.
func (s *localInlet) serve(i *inlet) {
	for !i.l.closed.Load() {
		seen := atomic.LoadUint32(&s.bell)
		select {
		case in := <-i.queue:
			i.handle(in)
		default:
			sleepOn(&s.bell, seen, lookEvery)
		}
	}
}

func (s *localInlet) reply(in *Incoming, header []byte, err error) {
	b, failed := packed(header, err)
	var answer error
	if failed {
		answer, _ = status.Unpack(b)
		b = nil
	}
	s.from.o.mu.Lock()
	in.pending.answer(slices.Clone(b), answer)
	s.from.o.mu.Unlock()
	atomic.AddUint32(&s.from.count, 1)
	wake(&s.from.count)
}

func (s *localInlet) wake() {
	atomic.AddUint32(&s.bell, 1)
	wake(&s.bell)
}
