package link

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// way says how bytes travel between a trainer and a server.
type way int

const (
	local  way = iota // they are one process
	shared            // the server maps the trainer's heap
	remote            // by MPI
	ways
)

// lookEvery is the time between two looks at a peer's life during a wait.
const lookEvery = 200 * time.Millisecond

// outlet is the trainer's side of a pair: this rank and a server.
type outlet struct {
	l      *Links
	member int    // rank of the server in the group
	what   string // for errors
	way    way
	by     carrier

	waiting atomic.Int32 // threads in await
	posting sync.Mutex   // requests are posted in the order of their numbers
	seq     uint64       // of the newest; posting guards it

	mu     sync.Mutex
	under  [Credits]*Pending // by credit
	broken *status.Error     // why no request can be made any more
}

// carrier is what differs between the ways.
type carrier interface {
	// post hands a request to the server. The caller holds posting. After an error nobody uses the
	// regions.
	post(p *Pending, r *Request) error
	// await returns when done returns true, or with the reason why the wait has ended.
	await(done func() bool, deadline time.Time, interrupt work.Interrupt) error
	// harvest settles the requests whose answers have come. The caller holds mu.
	harvest()
	// verdict returns why the server takes no more requests; nil while it does.
	verdict() *status.Error
	// died says that the server is dead. The caller holds mu.
	died(err error)
	// wake ends the sleep of all waits. Links.closed is set.
	wake()
	// close tells the server that no more requests come.
	close()
	// reclaim gives back what the way has made, and tells whether nobody uses it any more. It waits
	// for that up to the deadline.
	reclaim(deadline time.Time) bool
	// quiet tells whether the server sends nothing any more. It is called after reclaim.
	quiet() bool
}

// Request is what a trainer asks.
type Request struct {
	Header []byte // at most MaxHeader bytes
	IDs    Region // of int64
	Values Region
	Answer Region // where the server writes

	// Start may have to wait for a credit. As in Wait, the wait ends by these, if they are set.
	Deadline  time.Time
	Interrupt work.Interrupt
}

func (r *Request) regions() [regions]Region { return [regions]Region{r.IDs, r.Values, r.Answer} }

// regionNames are for errors.
var regionNames = [regions]string{regionIDs: "IDs", regionValues: "Values", regionAnswer: "Answer"}

// check says what is wrong with a request that a caller gives.
func (r *Request) check(l *Links) error {
	if len(r.Header) > MaxHeader {
		return status.New(status.Argument, "Header of a request to a server: %d bytes are more than %d", len(r.Header), MaxHeader)
	}
	for i, region := range r.regions() {
		align := int64(1)
		if i == regionIDs {
			align = 8
		}
		if err := region.check(l, regionNames[i], align); err != nil {
			return err
		}
	}
	return nil
}

// take counts all regions as in use, or none.
func (r *Request) take() error {
	list := r.regions()
	for i, region := range list {
		if err := region.take(regionNames[i]); err != nil {
			for _, taken := range list[:i] {
				taken.give(false)
			}
			return err
		}
	}
	return nil
}

// Pending is a request under way.
type Pending struct {
	o       *outlet
	r       *Request // until it is posted
	credit  int
	seq     uint64
	regions [regions]Region
	bytes   uint64 // of the request

	// The outlet's mu guards these.
	posted   bool // the server can see the request
	over     bool // the server has let go of it
	answered bool // it has answered, with a header or an error
	givenUp  bool // the caller has stopped waiting
	header   []byte
	err      error
	returned bool // Wait has returned
}

// Start sends a request to a server, by its index in the servers of Open. It waits while all
// credits are in use. The regions stay the request's until Wait has returned.
func (l *Links) Start(server int, r *Request) (*Pending, error) {
	p, err := l.Claim(server, r)
	if err != nil {
		return nil, err
	}
	if err := p.Post(); err != nil {
		return nil, err
	}
	return p, nil
}

// Claim is the part of Start that waits. Post or Drop is called after it.
func (l *Links) Claim(server int, r *Request) (*Pending, error) {
	if server < 0 || server >= len(l.outlets) {
		return nil, status.New(status.Argument, "a request to server %d: there are %d", server, len(l.outlets))
	}
	if err := r.check(l); err != nil {
		return nil, err
	}
	defer l.g.Use()()
	o := l.outlets[server]
	p := &Pending{o: o, r: r, regions: r.regions(), credit: -1}
	for _, region := range p.regions[:regionAnswer] {
		p.bytes += uint64(region.Bytes)
	}
	p.bytes += uint64(len(r.Header))
	o.mu.Lock()
	o.by.harvest() // it may free what this request needs
	o.mu.Unlock()
	if err := r.take(); err != nil {
		return nil, err
	}
	err := o.trouble()
	if err == nil {
		err = o.await("a free one of its credits", func() bool { return o.credit(p) }, r.Deadline, r.Interrupt)
	}
	if err != nil {
		p.Drop()
		return nil, err
	}
	return p, nil
}

// Post sends a request that was claimed. It does not wait. After an error the request is dropped.
func (p *Pending) Post() error {
	defer p.o.l.g.Use()()
	err := p.o.post(p, p.r)
	p.r = nil
	if err != nil {
		p.Drop()
	}
	return err
}

// Drop lets go of a request that was claimed and not sent.
func (p *Pending) Drop() {
	o := p.o
	o.mu.Lock()
	if p.credit >= 0 {
		o.under[p.credit] = nil
	}
	o.mu.Unlock()
	for _, region := range p.regions {
		region.give(false)
	}
}

// post gives a request its number and posts it.
func (o *outlet) post(p *Pending, r *Request) error {
	o.posting.Lock()
	defer o.posting.Unlock()
	p.seq = o.seq + 1
	err := o.by.post(p, r)
	if err != nil {
		return err
	}
	o.seq++
	o.mu.Lock()
	p.posted = true
	o.mu.Unlock()
	return nil
}

// credit gives p a free credit, and tells whether there is one.
func (o *outlet) credit(p *Pending) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.by.harvest()
	for i, other := range o.under {
		if other == nil {
			o.under[i], p.credit = p, i
			return true
		}
	}
	return false
}

// answer settles a request with what the server has answered. The caller holds mu.
func (p *Pending) answer(header []byte, err error) {
	p.answered = true
	p.settle(header, err)
}

// settle notes that the server has let go of a request. The caller holds mu.
func (p *Pending) settle(header []byte, err error) {
	o := p.o
	p.over, p.header, p.err = true, header, err
	o.under[p.credit] = nil
	moved := p.bytes + uint64(len(header))
	if err == nil {
		moved += uint64(p.regions[regionAnswer].Bytes)
	}
	o.l.moved[o.way].Add(moved)
	for _, region := range p.regions {
		region.give(p.givenUp)
	}
}

// Wait returns the header of the answer, or the error with which the server has replied. Other
// errors say that the wait has ended: by the deadline (zero: none), by interrupt (nil: none),
// because the server died or left, or because a process is damaged. Wait is called once, and frees
// the request. An answer that comes after an error is thrown away; until then Start refuses the
// memory of its regions, which may be freed.
func (p *Pending) Wait(deadline time.Time, interrupt work.Interrupt) (header []byte, err error) {
	o := p.o
	defer o.l.g.Use()()
	why := o.await("its answer", p.isOver, deadline, interrupt)
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.returned {
		return nil, status.New(status.Argument, "%s: Wait was called before", o.what)
	}
	p.returned = true
	if p.over {
		return p.header, p.err
	}
	p.givenUp = true
	for _, region := range p.regions {
		region.linger()
	}
	return nil, why
}

// Trouble returns why a wait for the answer has to end, as Wait would; nil while it may go on, and if the answer is there.
func (p *Pending) Trouble() error {
	defer p.o.l.g.Use()()
	if p.isOver() {
		return nil
	}
	return p.o.trouble()
}

// Answered tells, after Wait, whether the server has answered: an error is then the server's own.
func (p *Pending) Answered() bool {
	p.o.mu.Lock()
	defer p.o.mu.Unlock()
	return p.answered && !p.givenUp
}

func (p *Pending) isOver() bool {
	p.o.mu.Lock()
	defer p.o.mu.Unlock()
	if !p.over {
		p.o.by.harvest()
	}
	return p.over
}

// await waits until done returns true. what says for what, in the error.
func (o *outlet) await(what string, done func() bool, deadline time.Time, interrupt work.Interrupt) error {
	o.waiting.Add(1)
	defer o.waiting.Add(-1)
	if o.l.closed.Load() {
		return o.l.closedError(o.what)
	}
	err := o.by.await(done, deadline, interrupt)
	if err == work.ErrDeadline {
		rank := o.l.g.WorldRank(o.member)
		return status.New(status.Timeout, "%s: %s has not come by the deadline", o.what, what).WithRanks(rank)
	}
	return err
}

// trouble returns why a wait for the server has to end; nil while it may go on.
func (o *outlet) trouble() error {
	if o.l.closed.Load() {
		return o.l.closedError(o.what)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken != nil {
		return o.broken
	}
	if err := o.by.verdict(); err != nil {
		o.broken = err
		return err
	}
	err := o.l.g.Trouble(o.what, o.member)
	if status.CodeOf(err) == status.PeerDied {
		o.by.died(err)
	}
	return err
}

// damaged notes that the server, or somebody in its name, has written what a server never writes.
// The caller holds mu.
func (o *outlet) damaged(why error) {
	if o.broken == nil {
		rank := o.l.g.WorldRank(o.member)
		o.broken = rubbish("%s: its answer cannot be: %v; the process of that rank is damaged, or another one of this node writes into its memory; no more requests go there",
			o.what, why).WithRanks(rank)
	}
}

// refusal is the error that the server has ended the pair.
func (o *outlet) refusal(damaged bool) *status.Error {
	rank := o.l.g.WorldRank(o.member)
	if damaged {
		me, _ := o.l.g.Me()
		return rubbish("%s: it has found requests of this rank that cannot be, and takes no more: the process of this rank, %d, is damaged, or another one of this node writes into its memory",
			o.what, o.l.g.WorldRank(me)).WithRanks(o.l.g.WorldRank(me))
	}
	return status.New(status.PeerLeft, "%s: that rank has closed its links and takes no more requests", o.what).WithRanks(rank)
}

// words is the part of local and shared in which threads sleep on a futex.
type words struct {
	o       *outlet
	answers *uint32 // counts answers
}

func (w *words) await(done func() bool, deadline time.Time, interrupt work.Interrupt) error {
	asked := time.Now()
	for {
		seen := atomic.LoadUint32(w.answers)
		if done() {
			return nil
		}
		if err := w.o.trouble(); err != nil {
			return err
		}
		now, d := time.Now(), lookEvery
		if interrupt != nil {
			if d = work.InterruptEvery; now.Sub(asked) >= work.InterruptEvery {
				if err := interrupt(); err != nil {
					return err
				}
				asked = time.Now()
			}
		}
		if !deadline.IsZero() {
			if d = min(d, deadline.Sub(now)); d <= 0 {
				return work.ErrDeadline
			}
		}
		sleepOn(w.answers, seen, d)
	}
}

func (w *words) quiet() bool { return true }

func (w *words) wake() {
	atomic.AddUint32(w.answers, 1)
	wake(w.answers)
}

// describeServer and describeTrainer name a rank in errors.
func describeServer(world int) string {
	return fmt.Sprintf("a request to the server on rank %d", world)
}
func describeTrainer(world int) string {
	return fmt.Sprintf("a request of the trainer on rank %d", world)
}
