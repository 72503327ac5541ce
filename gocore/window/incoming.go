package window

import (
	"slices"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// How messages come in. In a group of few members a post has receives posted for each of them: MPI writes what comes
// straight into their memory, and a look at them is one test. In a larger group, and in a process that is about to
// end, it asks for messages of any member, and receives those that have come. The caller of all functions holds
// Windows.mu.

// arrival is a message that has come.
type arrival struct {
	*transport.Request
	block   unsafe.Pointer
	room    int64
	posted  bool // the receive was begun before there was a message
	givenUp bool // Cancel was called
	h       head // the next three are valid once there is no Request
	at      box
	rest    []byte

	// Of a call that is carried out.
	begun  bool
	a      access
	fail   error          // why it is not
	reply  unsafe.Pointer // room for the answer; nil: there are no elements in it
	looked time.Time      // at the life of the member that holds the lock of wide elements
}

func (a *arrival) free() {
	if a != nil {
		mem.Free(a.block)
		a.block = nil
	}
}

const (
	// mostPosted is for how many members receives are posted at most. postedAtOnce is how many there are for one, and
	// testedAtOnce how many of these a look tests.
	mostPosted   = 4
	postedAtOnce = 12
	testedAtOnce = 4
	// matches is how many messages one look takes, and mostComing how many bytes of messages are here at once, where
	// messages are matched.
	matches    = 32
	mostComing = 16 << 20
	// atOnce is the longest message that is received while the look lasts.
	atOnce = 16 << 10
)

// receive begins to receive what comes.
func (p *post) receive() {
	switch {
	case p.posting && p.wanted() && !p.leaving:
		for r := range p.peers {
			if r != p.ws.me {
				p.postFor(r)
			}
		}
	case p.anyPosted():
		p.giveUpPosted() // what comes later may be matched when they have ended: messages keep their order
	case !p.closed && p.wanted():
		p.match()
	}
}

// postFor posts receives for a member. Messages that wait to be carried out count too.
func (p *post) postFor(r int) {
	q := &p.peers[r]
	for len(q.queue) < postedAtOnce && q.lost == nil {
		a := &arrival{room: mostMessage, posted: true}
		var err error
		if a.block, err = mem.Alloc(a.room); err != nil {
			return // there will be memory later
		}
		if a.Request, err = p.on.Receive(a.block, a.room, int32(r), p.tag); err != nil {
			a.free()
			return // the error is told to who waits for this member
		}
		p.use()
		q.queue = append(q.queue, a)
	}
}

// anyPosted tells whether MPI has a receive that was posted.
func (p *post) anyPosted() bool {
	for r := range p.peers {
		if slices.ContainsFunc(p.peers[r].queue, func(a *arrival) bool { return a.posted && a.Request != nil }) {
			return true
		}
	}
	return false
}

// giveUpPosted cancels the receives that are posted.
func (p *post) giveUpPosted() {
	for r := range p.peers {
		for _, a := range p.peers[r].queue {
			if a.posted && a.Request != nil && !a.Done() && !a.givenUp {
				a.givenUp = true
				_ = p.on.Cancel(a.Request) // it ends, with a message or without
			}
		}
	}
}

// match begins to receive the messages that have come.
func (p *post) match() {
	for i := 0; i < matches && p.coming < mostComing; i++ {
		m, found, err := p.on.Match(transport.AnySource, p.tag)
		if err != nil || !found {
			return // an error is told to who waits for this member
		}
		a := &arrival{room: max(1, min(m.Bytes, mostMessage))}
		if a.block, err = mem.Alloc(a.room); err != nil {
			return
		}
		if a.Request, err = p.on.Take(m, a.block, a.room); err != nil {
			a.free()
			return
		}
		p.use()
		p.heard = time.Now()
		p.coming += a.room
		if from := int(m.Source); from >= 0 && from < len(p.peers) {
			p.peers[from].queue = append(p.peers[from].queue, a)
		}
		if a.room <= atOnce {
			transport.Over(p.on, a.Request)
		}
	}
}

// advance reads the messages of a member that are there, and carries its calls out.
func (p *post) advance(from int) {
	q := &p.peers[from]
	more := false // another one is expected to be there
	for taken := 1; len(q.queue) > 0; taken++ {
		a := q.queue[0]
		if a.Request != nil {
			if !a.Done() && !(more && transport.Over(p.on, a.Request)) {
				return // a test in vain would hold up the answer by a look at the network
			}
			p.arrived(from, a)
		}
		if q.lost == nil && a.block != nil && !p.take(from, a) {
			return
		}
		if !a.posted {
			p.coming -= a.room
		}
		more = a.h.more || taken >= testedAtOnce
		q.queue = q.queue[1:]
		mem.Free(a.reply) // of a call that was not carried out
		a.free()
	}
}

// arrived reads a message that is there. A receive that was given up leaves no block.
func (p *post) arrived(from int, a *arrival) {
	q := &p.peers[from]
	err, n, cancelled := p.on.Err(a.Request), min(a.Bytes, a.room), a.Cancelled != 0
	p.on.Release(a.Request)
	a.Request = nil
	if cancelled {
		a.free()
		return
	}
	p.heard = time.Now()
	if err == nil && q.lost == nil {
		a.h, a.at, a.rest, err = read(unsafe.Slice((*byte)(a.block), n))
	}
	if err != nil {
		p.lose(from, err)
	}
}
