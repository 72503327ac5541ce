package memory

import (
	"slices"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// A round is a message of every rank to every other one. A world on one node is small, and its
// rounds are few: at its beginning and its end.

// round is one that is under way.
type round struct {
	c     *Comm
	what  transport.Round
	words int
	all   unsafe.Pointer // of the caller; nil of a barrier
	block unsafe.Pointer // the words of all ranks, by rank
	under []part
	r     *transport.Request
	left  bool // nobody waits for it any more: it gives r and all back at its end
}

// part is one of the messages of a round.
type part struct {
	*transport.Request
	from int // the member that it comes from; sent: it goes to one
}

const sent = -1

// Start implements transport.Comm.
func (c *Comm) Start(what transport.Round, mine, all unsafe.Pointer, words int) (*transport.Request, error) {
	if what == transport.Barrier {
		words = 0
	}
	r, err := newRequest()
	if err != nil {
		return nil, err
	}
	bytes := int64(8 * words)
	w := &round{c: c, what: what, words: words, all: all, r: r}
	if w.block, err = allocate(max(8, bytes*int64(len(c.members)))); err != nil {
		mem.Free(unsafe.Pointer(r))
		return nil, err
	}
	tag := int32(c.begun.Add(1) % maxTag)
	own := unsafe.Add(w.block, bytes*int64(c.rank))
	copy(unsafe.Slice((*byte)(own), bytes), unsafe.Slice((*byte)(mine), bytes))
	for member := range c.members {
		if member == c.rank {
			continue
		}
		in, err := c.rounds.Receive(unsafe.Add(w.block, bytes*int64(member)), bytes, int32(member), tag)
		if err != nil {
			return nil, err // only without memory; the others wait until their deadline
		}
		out, err := c.rounds.Send(own, bytes, int32(member), tag)
		if err != nil {
			return nil, err
		}
		w.under = append(w.under, part{in, member}, part{out, sent})
	}
	c.o.mu.Lock()
	defer c.o.mu.Unlock()
	if !w.step() {
		c.o.rounds = append(c.o.rounds, w)
	}
	return r, nil
}

// step ends the round if all messages of it are done. The caller holds the endpoint's mu.
func (w *round) step() bool {
	for len(w.under) > 0 {
		last := w.under[len(w.under)-1]
		if !last.Done() {
			return false
		}
		if last.Code != 0 {
			w.r.Code = last.Code
		}
		mem.Free(unsafe.Pointer(last.Request))
		w.under = w.under[:len(w.under)-1]
	}
	if w.left {
		for _, block := range []unsafe.Pointer{w.block, w.all, unsafe.Pointer(w.r)} {
			mem.Free(block)
		}
		return true
	}
	rows := unsafe.Slice((*int64)(w.block), w.words*len(w.c.members))
	switch w.what {
	case transport.Gather:
		copy(unsafe.Slice((*int64)(w.all), len(rows)), rows)
	case transport.Min:
		least := unsafe.Slice((*int64)(w.all), w.words)
		copy(least, rows)
		for i, x := range rows {
			least[i%w.words] = min(least[i%w.words], x)
		}
	}
	mem.Free(w.block)
	w.c.o.end(w.r, w.r.Code)
	return true
}

// leave gives up the round that ends with r, unless it has ended. What it has sent may still be on its way.
func (c *Comm) leave(r *transport.Request) (left bool) {
	o := c.o
	o.mu.Lock()
	defer o.mu.Unlock()
	c.missing = nil
	for i, w := range o.rounds {
		if w.r != r {
			continue
		}
		c.missing = w.missing()
		in := o.context(c.rounds.context)
		for _, p := range w.under {
			if p.from != sent && !p.Done() {
				o.giveUp(in, p.Request)
			}
		}
		if w.left = true; w.step() {
			o.rounds = slices.Delete(o.rounds, i, i+1)
		}
		return true
	}
	return false
}

// missing returns the members whose words have not come.
func (w *round) missing() (members []int) {
	for _, p := range w.under {
		if p.from != sent && !p.Done() {
			members = append(members, p.from)
		}
	}
	return members
}

// Missing implements transport.Limited.
func (c *Comm) Missing() []int {
	o := c.o
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.rounds {
		if w.c == c && !w.left {
			return w.missing()
		}
	}
	return c.missing
}

// Gather implements transport.Exchange.
func (c *Comm) Gather(words []int64, wait transport.Wait) ([][]int64, error) {
	n := len(words)
	all, err := c.words(transport.Gather, words, n*len(c.members), wait)
	if err != nil {
		return nil, err
	}
	return slices.Collect(slices.Chunk(all, max(1, n))), nil
}

// Min implements transport.Exchange.
func (c *Comm) Min(words []int64) error {
	least, err := c.words(transport.Min, words, len(words), nil)
	if err == nil {
		copy(words, least)
	}
	return err
}

// words carries out a round whose result has n words.
func (c *Comm) words(what transport.Round, words []int64, n int, wait transport.Wait) ([]int64, error) {
	block, err := mem.Alloc(int64(8 * (n + len(words))))
	if err != nil {
		return nil, err
	}
	mine := unsafe.Add(block, 8*n)
	copy(unsafe.Slice((*int64)(mine), len(words)), words)
	r, err := c.Start(what, mine, block, len(words))
	if err != nil {
		mem.Free(block)
		return nil, err
	}
	if wait == nil {
		wait = c.wait
	}
	waited := until(func() bool { return transport.Over(c, r) }, wait)
	if waited != nil && c.leave(r) {
		return nil, waited
	}
	defer mem.Free(block)
	defer c.Release(r)
	if waited != nil {
		return nil, waited
	}
	if err := c.Err(r); err != nil {
		return nil, status.New(status.CodeOf(err), "%v", err)
	}
	return slices.Clone(unsafe.Slice((*int64)(block), n)), nil
}
