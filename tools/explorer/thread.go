package explorer

import "fmt"

type kind uint8

const (
	load kind = iota
	await
	store
	swap // compare and swap
	choose
)

// operation is an atomic operation, or a choice, that a thread is about to carry out.
type operation struct {
	kind             kind
	loc              int
	order, onFailure Order
	value, old       int32 // of a store; of a compare-and-swap. The number of choices is in value.
	until            func(int) bool
	orElse           bool
}

func (o *operation) describe(at string, c choice, got []int32) string {
	switch o.kind {
	case load, await:
		if c.give {
			return fmt.Sprintf("gives up waiting for %s", at)
		}
		return fmt.Sprintf("reads %s: %d", at, got[0])
	case store:
		return fmt.Sprintf("stores %d in %s", o.value, at)
	case swap:
		if got[1] != 0 {
			return fmt.Sprintf("swaps %s from %d to %d", at, o.old, o.value)
		}
		return fmt.Sprintf("fails to swap %s from %d: reads %d", at, o.old, got[0])
	}
	return fmt.Sprintf("chooses %d", c.at)
}

// Thread carries out the operations of a thread of the program.
type Thread struct {
	s  *state
	th *thread
	me int
	at int // results of the history that were used
}

// stop unwinds a thread that has come to a new atomic operation.
type stop struct{}

// failure unwinds a thread that has found something wrong.
type failure struct{ error }

// run takes thread t to its next atomic operation, or to its end.
func (s *state) run(p *Program, t int) (err error) {
	th := &s.threads[t]
	defer func() {
		switch r := recover().(type) {
		case nil:
			th.alive = false
			th.history, th.mark = nil, nil
		case stop:
		case failure:
			err = r.error
		default:
			panic(r)
		}
	}()
	p.Threads[t](&Thread{s: s, th: th, me: t})
	return nil
}

// result returns the next result of the history; ok is false if there is none left.
func (c *Thread) result() (v int32, ok bool) {
	if c.at == len(c.th.history) {
		return 0, false
	}
	c.at++
	return c.th.history[c.at-1], true
}

// perform returns the next result, or stops at the operation.
func (c *Thread) perform(o operation) int32 {
	v, ok := c.result()
	if !ok {
		c.th.next = o
		panic(stop{})
	}
	return v
}

// Load returns a value that the thread may read from an atomic location.
func (c *Thread) Load(loc int, o Order) int {
	return int(c.perform(operation{kind: load, loc: loc, order: o}))
}

// Await returns a value for which until holds. The thread waits for it. At most one such value may
// ever be in the location, beginning from the present view of the thread.
func (c *Thread) Await(loc int, o Order, until func(int) bool) int {
	return int(c.perform(operation{kind: await, loc: loc, order: o, until: until}))
}

// AwaitOr is Await for a thread that may give up at any moment: then ok is false.
func (c *Thread) AwaitOr(loc int, o Order, until func(int) bool) (v int, ok bool) {
	op := operation{kind: await, loc: loc, order: o, until: until, orElse: true}
	v, ok = int(c.perform(op)), true
	if gone := c.perform(op); gone != 0 {
		return 0, false
	}
	return v, ok
}

// Store stores into an atomic location.
func (c *Thread) Store(loc, v int, o Order) {
	c.perform(operation{kind: store, loc: loc, order: o, value: int32(v)})
}

// Swap stores v if the location holds old. It returns what it has read.
func (c *Thread) Swap(loc, old, v int, success, failure Order) (read int, ok bool) {
	op := operation{kind: swap, loc: loc, order: success, onFailure: failure, old: int32(old), value: int32(v)}
	read = int(c.perform(op))
	return read, c.perform(op) != 0
}

// Choose returns a number below n: each of them is tried.
func (c *Thread) Choose(n int) int {
	return int(c.perform(operation{kind: choose, value: int32(n)}))
}

// Read returns what a plain location holds.
func (c *Thread) Read(plain int) int {
	v, ok := c.result()
	if !ok {
		if !c.s.read(c.me, plain) {
			c.Fail("data race: thread %d reads plain location %d, which another thread writes", c.me, plain)
		}
		v = c.s.plains[plain].value
		c.th.history = append(c.th.history, v)
		c.at++
	}
	return int(v)
}

// Write writes a plain location.
func (c *Thread) Write(plain, v int) {
	if _, ok := c.result(); ok {
		return
	}
	if !c.s.write(c.me, plain, int32(v)) {
		c.Fail("data race: thread %d writes plain location %d, which another thread reads or writes", c.me, plain)
	}
	c.th.history = append(c.th.history, 0)
	c.at++
}

// Note keeps a number for Program.Check.
func (c *Thread) Note(v int) {
	if _, ok := c.result(); !ok {
		c.th.notes = append(c.th.notes, int32(v))
		c.th.history = append(c.th.history, 0)
		c.at++
	}
}

// Mark says that everything that the thread will do depends on state alone. The thread runs from its
// beginning again, where Marked returns state. States in which threads have come to a Mark on
// different ways are then one.
func (c *Thread) Mark(state ...int) {
	if c.at == 0 && c.th.mark != nil && equal(c.th.mark, state) {
		return
	}
	c.th.mark = append([]int{}, state...)
	c.th.history, c.at = nil, 0
}

// Marked returns the state of the last Mark, or first if there was none.
func (c *Thread) Marked(first ...int) []int {
	if c.th.mark == nil {
		return first
	}
	return append([]int{}, c.th.mark...)
}

// Fail ends the exploration with a failure.
func (c *Thread) Fail(format string, args ...any) {
	panic(failure{fmt.Errorf(format, args...)})
}

func equal(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
