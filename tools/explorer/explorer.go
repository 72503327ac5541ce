// Package explorer runs a small concurrent program through every execution that release and acquire
// allow. Tests use it to show that a protocol in shared memory is right, and that it is wrong if an
// order is weakened.
//
// The memory is that of C11 with the orders relaxed, acquire and release, without fences and without
// sequential consistency. It is described by views, as in the promising semantics without promises
// (Kang et al., POPL 2017): a location holds messages in their modification order, and a thread's
// view has the oldest message of every location that the thread may still read. A store may take any
// place after that message, so a thread can see another one's stores late, or in another order. A
// release store attaches the thread's view to its message, and an acquire load takes it over. A
// read-modify-write keeps the message that it read directly before its own. Executions in which a
// load returns the value of a store that comes later in its own thread's order are not covered;
// compilers and processors produce them only for relaxed operations.
//
// Plain locations are ordinary memory. Two accesses of which one is a write, and neither happens
// before the other, are a data race, and the explorer reports it. So plain accesses need no
// interleaving of their own: they are carried out together with the atomic operation before them.
//
// A thread is a Go function. The explorer runs it again from its last Mark for every step, with the
// results that its operations had, until it comes to an operation that is new. So the function must
// depend on nothing but these results.
package explorer

import (
	"fmt"
	"strings"
)

// Order is the memory order of an operation.
type Order uint8

const (
	Relaxed Order = 0
	Acquire Order = 1
	Release Order = 2
	AcqRel  Order = Acquire | Release
)

// Program is what is explored. All locations are 0 at first. Atomic locations are numbered from 0
// on, and so are plain ones.
type Program struct {
	Atomics, Plains int
	Threads         []func(c *Thread)
	// Check, if set, looks at the end of an execution, in which no thread can go on. notes are what
	// the threads have noted, and blocked are the threads that wait for ever.
	Check func(notes [][]int, blocked []int) error
	// Name returns the name of an atomic location, for the report of a failure.
	Name func(atomic int) string
	// Everything switches the reduction of Await off.
	Everything bool
	// Most bounds the number of states; 0 stands for ten millions.
	Most int
}

// Explore runs the program through all its executions. It returns the number of states, and the
// first failure with the steps that lead to it.
func Explore(p *Program) (states int, err error) {
	if p.Atomics+p.Plains > locations || len(p.Threads) > threads {
		return 0, fmt.Errorf("the program has more than %d locations or %d threads", locations, threads)
	}
	e := &explorer{p: p, seen: map[[2]uint64]struct{}{}, most: p.Most}
	if e.most == 0 {
		e.most = 10_000_000
	}
	s := newState(p)
	for t := range p.Threads {
		if err := s.run(p, t); err != nil {
			return 0, err
		}
	}
	if err := e.from(s); err != nil {
		return len(e.seen), fmt.Errorf("%w\n%s", err, strings.Join(e.described(), "\n"))
	}
	return len(e.seen), nil
}

type explorer struct {
	p    *Program
	seen map[[2]uint64]struct{}
	most int
	path []step
}

// step is what a thread did, for the report.
type step struct {
	thread int
	op     operation
	choice choice
	got    []int32
}

// from explores everything that can follow s.
func (e *explorer) from(s *state) error {
	key := s.key()
	if _, ok := e.seen[key]; ok {
		return nil
	}
	e.seen[key] = struct{}{}
	if len(e.seen) > e.most {
		return fmt.Errorf("there are more than %d states", e.most)
	}
	if !e.p.Everything {
		// Nothing that other threads do changes what an Await reads, and it changes nothing for them.
		for t := range s.threads {
			if th := &s.threads[t]; th.alive && th.next.kind == await && !th.next.orElse {
				if choices := s.choices(t); len(choices) > 0 {
					return e.steps(s, t, choices)
				}
			}
		}
	}
	stuck := true
	for t := range s.threads {
		choices := s.choices(t)
		stuck = stuck && len(choices) == 0
		if err := e.steps(s, t, choices); err != nil {
			return err
		}
	}
	if stuck && e.p.Check != nil {
		return e.p.Check(s.ended())
	}
	return nil
}

func (e *explorer) steps(s *state, t int, choices []choice) error {
	for _, c := range choices {
		after := s.clone()
		op := after.threads[t].next
		before := len(after.threads[t].history)
		after.apply(t, c)
		e.path = append(e.path, step{t, op, c, after.threads[t].history[before:]})
		err := after.run(e.p, t)
		if err == nil {
			after.collect()
			err = e.from(after)
		}
		if err != nil {
			return err
		}
		e.path = e.path[:len(e.path)-1]
	}
	return nil
}

func (e *explorer) described() []string {
	var lines []string
	for _, s := range e.path {
		at := ""
		if s.op.kind != choose {
			if at = fmt.Sprint(s.op.loc); e.p.Name != nil {
				at = e.p.Name(s.op.loc)
			}
		}
		lines = append(lines, fmt.Sprintf("  thread %d: %s", s.thread, s.op.describe(at, s.choice, s.got)))
	}
	return lines
}
