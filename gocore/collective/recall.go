package collective

import (
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/op"
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
	if !ok || !mayBeKept(&c.request) || c.g.Payloads == nil || c.g.Forced&^coll.Tuning != 0 || c.args.Neighbours != nil || coll.Bytes(&c.args) > c.g.Payloads.Room() {
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
