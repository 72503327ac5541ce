package memory

import (
	"slices"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// fewWaiting is among how many receives one is looked for that wants a long message.
const fewWaiting = 16

// context is what belongs to one Comm.
type context struct {
	o       *endpoint
	number  uint64
	waiting []*receiving
	came    []*message
	members []int // rank of the endpoint, by member
	places  map[int]int32
	busy    *uint32 // see changed; nil: nobody wants to know
}

// context returns that of a number, which it makes if there is none.
func (o *endpoint) context(number uint64) *context {
	c := o.contexts[number]
	if c == nil {
		c = &context{o: o, number: number}
		o.contexts[number] = c
	}
	return c
}

// forget ends what belongs to a Comm that is freed. Nobody looks at the requests of its receives any more.
func (o *endpoint) forget(number uint64) {
	c := o.contexts[number]
	if c == nil {
		return
	}
	for _, m := range c.came {
		o.drop(m)
	}
	for len(c.waiting) > 0 {
		c.waitNoMore(0)
	}
	for n, m := range o.matched {
		if m.context == number {
			o.drop(m)
			delete(o.matched, n)
		}
	}
	delete(o.contexts, number)
	o.freed.add(number)
}

// mostFreed is how many Comms that were freed are remembered.
const mostFreed = 4096

// freed has the numbers of the Comms that were freed last. What was sent to them before may come later.
type freed struct {
	numbers map[uint64]bool
	order   []uint64
}

func (f *freed) add(number uint64) {
	if f.numbers == nil {
		f.numbers = map[uint64]bool{}
	}
	if !f.numbers[number] {
		f.numbers[number] = true
		f.order = append(f.order, number)
	}
	if len(f.order) > mostFreed {
		delete(f.numbers, f.order[0])
		f.order = f.order[1:]
	}
}

// match removes the receive that takes a message; nil: none does.
func (c *context) match(m *message) *receiving {
	for i, r := range c.waiting {
		if m.isFor(r.from, r.tag) {
			c.waitNoMore(i)
			return r
		}
	}
	return nil
}

// isFor tells whether a receive or a probe from a rank with a tag finds the message.
func (m *message) isFor(from, tag int32) bool {
	return (from == transport.AnySource || from == m.Source) && (tag == transport.AnyTag || tag == m.Tag)
}

// wait lets a receive wait for its message.
func (c *context) wait(r *receiving) {
	c.waiting = append(c.waiting, r)
	c.waits(r.from, 1)
	c.changed()
}

// waitNoMore takes a receive out of those that wait.
func (c *context) waitNoMore(at int) {
	r := c.waiting[at]
	c.waiting = without(c.waiting, at)
	c.waits(r.from, -1)
	c.changed()
}

// waits counts receives that wait for a message from a member, or from any. It shows the member which long message it need not ask
// for. A context without members is that of a Comm that was freed.
func (c *context) waits(from int32, by int) {
	if c.members == nil {
		return
	}
	if from == transport.AnySource {
		c.o.waiting += by
		return
	}
	in := &c.o.in[c.members[from]]
	in.waiting += by
	sought := uint32(0)
	for _, r := range c.waiting[:min(len(c.waiting), fewWaiting)] {
		if r.from == from && r.tag != transport.AnyTag && len(r.data) > short {
			sought = soughtBy(c, r)
			break
		}
	}
	if atomic.LoadUint32((*uint32)(in.waits)) != sought {
		atomic.StoreUint32((*uint32)(in.waits), sought)
	}
}

// changed shows to C whether receives wait, or messages that nobody has received.
func (c *context) changed() {
	if c.busy != nil {
		atomic.StoreUint32(c.busy, uint32(min(1, len(c.waiting)+len(c.came))))
	}
}

// without takes one out of a list. The first one goes most often, from a list that may be long.
func without[T any](list []*T, at int) []*T {
	if at > 0 {
		return slices.Delete(list, at, at+1)
	}
	list[0] = nil
	return list[1:]
}

// find returns the place of the first message that has come from a rank with a tag; -1: there is none.
func (c *context) find(from, tag int32) int {
	return slices.IndexFunc(c.came, func(m *message) bool { return m.isFor(from, tag) })
}

// takeOut takes a message out of those that have come.
func (c *context) takeOut(at int) *message {
	m := c.came[at]
	c.came = without(c.came, at)
	c.changed()
	return m
}
