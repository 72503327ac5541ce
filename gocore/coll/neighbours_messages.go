package coll

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// neighbourMessages: each member sends what it gives to each neighbour in a message. Bytes that leave a rank: what it
// gives.
var neighbourMessages = Algorithm{Name: "messages", Memory: hostMemory, polls: always, scratch: func(a *Args) int64 {
	return pad(a.Neighbours.OutBytes) + pad(a.Neighbours.InBytes)
}, build: func(a *Args, p *Program) error {
	n := a.Neighbours
	x := &swapMessages{a: a}
	var err error
	if x.out, err = p.Alloc(n.OutBytes); err != nil {
		return err
	}
	if x.in, err = p.Alloc(n.InBytes); err != nil {
		return err
	}
	p.Do(func() error {
		if err := fit(a); err != nil {
			return err
		}
		swapWithSelf(a)
		n.pack(a, x.out)
		return x.compare()
	})
	p.UntilOver(x.poll, x.requests, nil)
	p.Do(x.unpack)
	return nil
}}

// swapMessages is the messages of one rank with its neighbours.
type swapMessages struct {
	a          *Args
	out, in    unsafe.Pointer // what this rank gives, and what it gets, one swap after the other
	begun      bool
	gives      []swapMessage
	gets       []swapMessage
	unexpected error // of neighbours that do not fit: they are left out
	err        error
}

// swapMessage is one of them, or one that is left out.
type swapMessage struct {
	rank    int
	data    unsafe.Pointer
	bytes   int64
	request *transport.Request // nil: it has not begun, or it is over
	leftOut bool
}

// compare lists the messages. It leaves out neighbours that expect something else, as these leave out this rank, if the
// payloads have room for what they expect.
func (x *swapMessages) compare() error {
	a, n := x.a, x.a.Neighbours
	x.gives, x.gets = messagesOf(n.Out, x.out), messagesOf(n.In, x.in)
	if neighbourPayloadBytes+n.indexBytes() > a.Payloads.Rooms().Payload {
		return nil // this rank has not told its own
	}
	return eachNeighbour(a, func(r int, out, in []Swap) error {
		payload, bytes := a.Payloads.Payload(a.Seq, r)
		if bytes < neighbourPayloadBytes || (*neighbourPayload)(payload).bytes == 0 {
			return nil
		}
		b, err := blockOf(a, r)
		if err == nil {
			_, _, err = comparePair(a, &b, r, out, in)
		}
		if status.CodeOf(err) != status.Mismatch {
			return err
		}
		x.unexpected = err
		for _, list := range [][]swapMessage{x.gives, x.gets} {
			for i := range list {
				list[i].leftOut = list[i].leftOut || list[i].rank == r
			}
		}
		return nil
	})
}

// messagesOf lists the messages of some swaps, whose bytes lie one after the other.
func messagesOf(swaps []Swap, at unsafe.Pointer) []swapMessage {
	list := make([]swapMessage, len(swaps))
	for i := range swaps {
		s := &swaps[i]
		list[i] = swapMessage{rank: s.Rank, data: at, bytes: s.Bytes, leftOut: s.Bytes == 0}
		at = unsafe.Add(at, s.Bytes)
	}
	return list
}

// requests adds those that are under way to b.
func (x *swapMessages) requests(b *work.Batch) {
	poller := x.a.Wire.Poller()
	for _, list := range [][]swapMessage{x.gives, x.gets} {
		for i := range list {
			if q := list[i].request; q != nil && !q.Done() {
				b.Add(poller, q.Address())
			}
		}
	}
}

// poll takes the messages further, and tells whether they are over. After an error it gives up the receives, because the
// other ranks may send nothing more, and it is over when nothing is under way.
func (x *swapMessages) poll() (over bool, err error) {
	if !x.begun {
		x.begun = true
		x.fail(x.begin())
	}
	underWay := x.reap(x.gets, true)
	underWay = x.reap(x.gives, false) || underWay
	if underWay {
		return false, nil
	}
	return true, x.err
}

// begin starts all messages: receives before sends, because a message that finds no receive is copied.
func (x *swapMessages) begin() (err error) {
	for i := range x.gets {
		if m := &x.gets[i]; !m.leftOut {
			if m.request, err = x.a.Wire.Receive(m.data, m.bytes, int32(m.rank), pairTag); err != nil {
				return err
			}
		}
	}
	for i := range x.gives {
		if m := &x.gives[i]; !m.leftOut {
			if m.request, err = x.a.Wire.Send(m.data, m.bytes, int32(m.rank), pairTag); err != nil {
				return err
			}
		}
	}
	return nil
}

// reap releases those messages of a list that have ended, and tells whether some are under way.
func (x *swapMessages) reap(list []swapMessage, receives bool) (underWay bool) {
	by := x.a.Wire
	for i := range list {
		m := &list[i]
		switch q := m.request; {
		case q == nil:
		case !q.Done():
			underWay = true
		default:
			err := by.Err(q)
			if err == nil && receives && q.Cancelled == 0 && q.Bytes != m.bytes {
				err = status.New(status.GroupBroken, "%s: rank %d of the group has sent %d bytes, this rank expects %d: the lengths and the dtype of their tensors for each other have to be the same on both; the group is broken",
					x.a.Code, m.rank, q.Bytes, m.bytes).WithRanks(m.rank)
			}
			by.Release(q)
			m.request = nil
			x.fail(err)
		}
	}
	return underWay
}

// fail keeps the first error, and gives up the receives.
func (x *swapMessages) fail(err error) {
	if err == nil || x.err != nil {
		return
	}
	x.err = err
	for i := range x.gets {
		if q := x.gets[i].request; q != nil && !q.Done() {
			_ = x.a.Wire.Cancel(q)
		}
	}
}

// unpack copies what has come to where it goes.
func (x *swapMessages) unpack() error {
	for i := range x.gets {
		if m := &x.gets[i]; !m.leftOut {
			x.a.Neighbours.In[i].unpack(x.a, m.data)
		}
	}
	return x.unexpected
}
