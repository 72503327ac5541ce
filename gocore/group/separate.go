package group

import (
	"fmt"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Alone makes a communicator of the members that carries nothing else, also in a group of one rank. It is collective, and
// the members call it in the same order as new_group.
func (g *Group) Alone(what string, timeout time.Duration) (transport.Comm, error) {
	if g.Size == 1 {
		defer g.Use()()
		if err := g.EndingError(what); err != nil {
			return nil, err
		}
		return g.Env.Base.Create(g.Ranks, 0)
	}
	return g.Separate(what, timeout, func(func([]int64) ([][]int64, error)) error { return nil })
}

// Attempt runs build, which calls MPI without a deadline, on a thread of its own, as new_group does. It is given up if a
// member dies, or if ends, which is asked now and then, returns why. If build returns after that, abandoned is called.
func (g *Group) Attempt(what string, ends, build func() error, abandoned func()) error {
	_, err := attempt(g.Env, what, g.Ranks, ends, build, func(error) { abandoned() })
	return err
}

// Carrier returns what carries the messages of the group's windows, and their tag: the communicator of its collectives, whose
// other messages have other tags. A window of a group so needs no communicator of its own, of which an MPI has some 1,000 only.
// It is nil in a group of one.
func (g *Group) Carrier() (on transport.Endpoint, tag int32) {
	if g.Size == 1 {
		return nil, 0
	}
	return g.collComm, coll.WindowTag
}

// Separate makes a communicator of the members that carries nothing else, for another room of the core that moves bytes
// between them by itself (ps/link). It is collective, and the
// members call it in the same order as new_group. meanwhile is called on each of them, and may exchange
// words: tell gives this member's, of the same number on all, and returns those of all, by rank. All
// members call tell equally often. In a group of one rank the communicator is nil.
func (g *Group) Separate(what string, timeout time.Duration, meanwhile func(tell func(words []int64) ([][]int64, error)) error) (transport.Comm, error) {
	e := g.Env
	defer g.Use()()
	if err := g.EndingError(what); err != nil {
		return nil, err
	}
	if g.Size == 1 {
		return nil, meanwhile(func(words []int64) ([][]int64, error) { return [][]int64{slices.Clone(words)}, nil })
	}
	key, began := e.Groups.Key(g.Ranks), time.Now()
	need := fmt.Sprintf("called %s; every member must call it, in the same order as new_group", what)
	if err := e.Meet(what, need, key, g.Ranks, timeout); err != nil {
		e.Groups.Unmake(g.Ranks)
		return nil, err
	}
	c := creating(e, what, g.Ranks, key, began, timeout)
	c.common = true
	var made transport.Comm
	err := c.run(func(comm transport.Comm) error {
		made = comm
		return meanwhile(func(words []int64) ([][]int64, error) { return comm.Gather(words, nil) })
	}, func(error) {})
	if err != nil {
		return nil, err
	}
	return made, nil
}
