package link

import (
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// inlet is the server's side of a pair: a trainer and this rank.
type inlet struct {
	l      *Links
	member int    // rank of the trainer in the group
	what   string // for errors
	by     replier
	queue  chan *Incoming // requests that have come; nil on the shared way, where the ring is the queue
	lost   atomic.Pointer[status.Error]
}

// replier is what differs between the ways.
type replier interface {
	// reply gives an answer to the trainer, and lets go of the request's memory.
	reply(in *Incoming, header []byte, err error)
	// wake ends the sleep of the thread, if there is one. Links.closed is set.
	wake()
}

// Incoming is a request, as its server gets it. IDs, Values and Answer may lie in the trainer's
// memory: a trainer that is damaged may change them at any time. Reply ends their use.
type Incoming struct {
	From   int // rank of the trainer in the group
	Header []byte
	IDs    []int64
	Values []byte
	Answer []byte

	inlet   *inlet
	credit  int
	seq     uint64
	refs    [regions]heap.Ref // of the shared way
	pending *Pending          // of the local way
	message *arrival          // of MPI
	replied atomic.Bool
}

// Reply answers the request: with a header, at most MaxHeader bytes, and with what is in Answer; or
// with an error, which reaches the trainer with its code, text and ranks. It is called exactly
// once, from any goroutine. A trainer that is gone gets nothing.
func (in *Incoming) Reply(header []byte, err error) {
	if in.replied.Swap(true) {
		panic("link: a second Reply to one request")
	}
	in.inlet.by.reply(in, header, err)
}

// release lets go of the trainer's memory.
func (in *Incoming) release() {
	for i := range in.refs {
		in.refs[i].Release()
		in.refs[i] = heap.Ref{}
	}
}

// handle gives a request to the handler.
func (i *inlet) handle(in *Incoming) { i.l.handler(in) }

// drain hands the requests of the queue to the handler.
func (i *inlet) drain() {
	for {
		select {
		case in := <-i.queue:
			if in == nil { // the last one was before
				i.end(i.gone())
				return
			}
			i.handle(in)
		case <-i.l.closing:
			return
		}
	}
}

// end notes why no more requests come.
func (i *inlet) end(err error) { i.lost.CompareAndSwap(nil, status.Plain(err)) }

// gone is the error that the trainer has closed its links.
func (i *inlet) gone() error {
	rank := i.l.g.WorldRank(i.member)
	return status.New(status.PeerLeft, "%s: that rank has closed its links", i.what).WithRanks(rank)
}

// damaged notes that the trainer, or somebody in its name, has written what a trainer never writes,
// and returns the error.
func (i *inlet) damaged(why error) *status.Error {
	rank := i.l.g.WorldRank(i.member)
	e := rubbish("%s cannot be: %v; the process of that rank is damaged, or another one of its node writes into its memory; no more requests are taken from it",
		i.what, why).WithRanks(rank)
	i.end(e)
	return e
}
