package collective

import (
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Prepared is an operation that is submitted again and again. It remembers what the checks of a short collective have
// found, so that a call with the same memory is not checked again. Several threads may submit it at the same time: only
// spare changes after Prepare.
type Prepared struct {
	g     *Group
	known bool                       // found holds for calls that give sends and recvs; else every call is checked
	found collective                 // as check has left it
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
	c := &p.found
	c.g = g
	err := checker{&c.request}.check(d, &trait)
	if err == nil && mayBeKept(&c.request) {
		p.known = true
		p.sends, p.recvs = append(p.sends, d.Sends()...), append(p.recvs, d.Recvs()...)
		c.scratch = g.choices.Scratch(&c.args, c.flags)
		if g.Node != nil {
			c.atArrival = coll.SumAtArrival(&c.args, c.flags)
		}
		return p, nil
	}
	c.drop()
	p.found = collective{}
	if err != nil {
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
	c.request, c.progress = p.found.request, progress{}
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
