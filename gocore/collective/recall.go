package collective

import (
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// A short call of one tensor, in place and in host memory, is checked once: what check has found holds for every later one that
// differs only in where its tensor lies.

// checkedCalls are those of a group. The zero value is ready for use; all methods are safe for concurrent use. A call whose place
// another one takes is checked again.
type checkedCalls struct {
	kept [32]atomic.Pointer[checkedCall]
}

// checkedCall is one of them.
type checkedCall struct {
	code   op.Code
	reduce op.ReduceOp
	scale  float64
	root   int32
	tensor op.Buf // without its memory
	found  request
	at     *coll.AtArrival
	used   atomic.Bool // since another call last wanted its place
}

// callPlace returns the place of d among the calls that are kept, and its tensor; nil: it has none. ok is false for a call that is
// never kept.
func callPlace(d *op.Desc) (place int, b *op.Buf, ok bool) {
	if d.NSend != 0 || d.NRecv > 1 {
		return 0, nil, false
	}
	place = int(d.Code) * 5
	if d.NRecv == 1 {
		b = (*op.Buf)(d.Recv)
		if b.Strides != nil || b.Data == nil {
			return 0, nil, false
		}
		place += int(b.Count&0xff)*3 + int(b.DType)
	}
	return place % len(checkedCalls{}.kept), b, true
}

// find returns the call that d repeats, and the tensor of d; nil if there is none.
func (k *checkedCalls) find(d *op.Desc) (*checkedCall, *op.Buf) {
	place, b, ok := callPlace(d)
	if !ok {
		return nil, nil
	}
	t := k.kept[place].Load()
	if t == nil || t.code != d.Code || t.reduce != d.ReduceOp || t.scale != d.Scale || t.root != d.Root || len(t.found.args.Recv) != int(d.NRecv) {
		return nil, nil
	}
	if k := &t.tensor; b != nil && (b.Count != k.Count || b.DType != k.DType || b.DeviceType != k.DeviceType) {
		return nil, nil
	}
	if !t.used.Load() { // a load costs nothing, a store some 5 ns
		t.used.Store(true)
	}
	return t, b
}

// keep keeps c, a call d that was checked, if later ones may repeat it.
func (k *checkedCalls) keep(d *op.Desc, c *collective) {
	place, b, ok := callPlace(d)
	if !ok || !mayBeKept(&c.request) || c.g.Payloads == nil || c.g.Forced&^coll.Tuning != 0 || c.args.Neighbours != nil || coll.Bytes(&c.args) > c.g.Payloads.Rooms().Payload {
		return
	}
	if old := k.kept[place].Load(); old != nil && old.used.Swap(false) {
		return // two calls in turn would else take the place from each other, and be copied, each time
	}
	t := &checkedCall{code: d.Code, reduce: d.ReduceOp, scale: d.Scale, root: d.Root, found: c.request}
	t.found.one = [2]coll.Part{}
	t.found.args.Recv = t.found.one[1 : 1+d.NRecv]
	if b != nil {
		t.tensor = *b
	}
	if c.g.Node != nil {
		t.at = coll.SumAtArrival(&c.args, c.flags)
	}
	t.used.Store(true)
	k.kept[place].Store(t)
}

// repeat returns a collective with what was found, for the call d of a tensor.
func (t *checkedCall) repeat(d *op.Desc, b *op.Buf) *collective {
	c := collectives.Get().(*collective)
	c.request = t.found
	c.args.Recv = c.one[1 : 1+d.NRecv]
	if b != nil {
		c.one[1] = coll.Part{Data: b.Data, Count: b.Count}
	}
	if t.at != nil {
		c.sum = *t.at
		c.sum.Sum.To = c.one[1].Data
		c.sum.Payload.Data = c.one[1].Data
		c.atArrival = &c.sum
	}
	beginsAs(&c.request, d)
	return c
}

// beginsAs sets what each call of an operation that was checked before has of its own.
func beginsAs(r *request, d *op.Desc) {
	r.timeout, r.deadline = time.Duration(r.g.timeout.Load()), time.Time{}
	if d.TimeoutNS >= 0 {
		r.timeout = d.Timeout(r.timeout, work.Longest)
	}
	if d.Flags&op.FlagAsync != 0 {
		r.deadline = time.Now().Add(r.timeout)
	}
}

// Prepared is an operation that is submitted again and again. It remembers what the checks of a short collective have
// found, so that a call with the same memory is not checked again. Several threads may submit it at the same time: only
// spare changes after Prepare.
type Prepared struct {
	g     *Group
	known bool // found holds for calls that give sends and recvs; else every call is checked
	found request
	spare atomic.Pointer[collective] // for the next call, so that nothing is cleared between two calls; nil while a call uses it
	sends []op.Buf
	recvs []op.Buf
}

// Prepare checks the arguments of an operation that will be submitted again and again. It is local: the other members
// learn nothing of it, also if it fails.
func (g *Group) Prepare(d *op.Desc) (*Prepared, error) {
	trait, ok := op.TraitOf(d.Code)
	if !ok || d.Code == op.Panic || d.Code == op.Probe {
		return nil, status.New(status.Argument, "%s cannot be prepared", d.Code)
	}
	if err := g.Usable(d.Code); err != nil {
		return nil, err
	}
	p := &Prepared{g: g}
	if !trait.Collective {
		return p, g.Messages.Check(d)
	}
	c := &collective{request: request{g: g}}
	err := checker{&c.request}.check(d, &trait)
	if err == nil && mayBeKept(&c.request) {
		p.sends, p.recvs = append(p.sends, d.Sends()...), append(p.recvs, d.Recvs()...)
		c.scratch = g.choices.Scratch(&c.args, c.flags)
		if g.Node != nil {
			c.atArrival = coll.SumAtArrival(&c.args, c.flags)
		}
		p.known, p.found = true, c.request
		return p, nil
	}
	if c.drop(); err != nil {
		return nil, err
	}
	return p, nil
}

// mayBeKept tells whether what check has found holds for later calls, too: nothing was allocated for this one, and what
// it announces follows from its arguments alone. A long tensor outside the heap may get there later.
func mayBeKept(r *request) bool {
	if len(r.copies.staged) > 0 || r.copies.shadow != nil || r.args.DeviceArgs != nil || r.g.Wire != nil {
		return false
	}
	return r.g.Payloads == nil || r.flags&(coll.Inline|coll.Mapped) != 0 && r.offer.Lasts()
}

// Submit is Group.Submit for the prepared operation. d is as it was for Prepare, except that the buffers may lie
// elsewhere; flags, timeout, stream, cookie and state are those of this call.
func (p *Prepared) Submit(d *op.Desc, nested bool) (*work.Handle, work.Result, error) {
	return p.g.submit(d, p, nested)
}

// take returns a collective for the call d, which is known, with what check has found.
func (p *Prepared) take(d *op.Desc) *collective {
	c := p.spare.Swap(nil)
	if c == nil {
		c = &collective{owner: p}
	}
	c.request, c.progress = p.found, progress{}
	beginsAs(&c.request, d)
	return c
}

// knows tells whether d is a call that is known.
func (p *Prepared) knows(d *op.Desc) bool {
	if !p.known || !unmoved(p.sends, d.Sends()) || !unmoved(p.recvs, d.Recvs()) {
		return false
	}
	a := &p.found.args
	t := a.Trait()
	return a.Code == d.Code && (a.Reduce == d.ReduceOp || !t.Reduces) && a.Scale == d.Scale && (a.Root == int(d.Root) || !t.Rooted)
}

// unmoved tells whether buffers are those that were checked. All of these are contiguous, in host memory.
func unmoved(checked, bufs []op.Buf) bool {
	if len(checked) != len(bufs) {
		return false
	}
	for i := range bufs {
		b, k := &bufs[i], &checked[i]
		if b.Data != k.Data || b.Count != k.Count || b.DType != k.DType || b.DeviceType != k.DeviceType || b.Strides != nil {
			return false
		}
	}
	return true
}
