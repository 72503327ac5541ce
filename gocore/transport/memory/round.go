package memory

import (
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
	under []*transport.Request
	r     *transport.Request
}

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
		if err == nil {
			w.under = append(w.under, in)
			var out *transport.Request
			if out, err = c.rounds.Send(own, bytes, int32(member), tag); err == nil {
				w.under = append(w.under, out)
			}
		}
		if err != nil {
			return nil, err // only without memory; the others wait until their deadline
		}
	}
	c.o.mu.Lock()
	defer c.o.mu.Unlock()
	if !w.step() {
		c.o.rounds = append(c.o.rounds, w)
	}
	return r, nil
}

// step ends the round if all messages of it are done. The caller holds the office's mu.
func (w *round) step() bool {
	for len(w.under) > 0 {
		last := w.under[len(w.under)-1]
		if !last.Done() {
			return false
		}
		if last.Code != 0 {
			w.r.Code = last.Code
		}
		mem.Free(unsafe.Pointer(last))
		w.under = w.under[:len(w.under)-1]
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

// Gather implements transport.Exchange.
func (c *Comm) Gather(words []int64, wait transport.Wait) ([][]int64, error) {
	n := len(words)
	all, err := c.words(transport.Gather, words, n*len(c.members), wait)
	if err != nil {
		return nil, err
	}
	rows := make([][]int64, len(c.members))
	for r := range rows {
		rows[r] = all[r*n : (r+1)*n : (r+1)*n]
	}
	return rows, nil
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
	block, err := mem.Alloc(int64(max(1, n) * 8))
	if err != nil {
		return nil, err
	}
	mine, err := mem.Alloc(int64(max(1, len(words)) * 8))
	if err != nil {
		mem.Free(block)
		return nil, err
	}
	copy(unsafe.Slice((*int64)(mine), len(words)), words)
	r, err := c.Start(what, mine, block, len(words))
	mem.Free(mine) // the round has a copy
	if err != nil {
		mem.Free(block)
		return nil, err
	}
	if err := c.until(func() bool { return transport.Over(c, r) }, wait); err != nil {
		return nil, err // the round may still write to the block
	}
	defer mem.Free(block)
	if err := c.Err(r); err != nil {
		return nil, status.New(status.CodeOf(err), "%v", err)
	}
	c.Release(r)
	return append([]int64(nil), unsafe.Slice((*int64)(block), n)...), nil
}
