package comm

import (
	"fmt"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// Members are those of a group, who make communicators that carry nothing else.
type Members struct{ *world.Members }

// Alone makes one for a join, also in a group of one rank. It is collective, and the members call it in the same order as
// new_group.
func (g Members) Alone(what string, timeout time.Duration) (transport.Comm, error) {
	if g.Size == 1 {
		defer g.Use()()
		if err := g.EndingError(what); err != nil {
			return nil, err
		}
		return g.Env.Base.Create(g.Ranks, 0)
	}
	return g.Separate(what, timeout, func(func([]int64) ([][]int64, error)) error { return nil })
}

// Separate makes one for another room of the core that moves bytes between the members by itself (ps/link). It is collective, and the
// members call it in the same order as new_group. meanwhile is called on each of them, and may exchange
// words: tell gives this member's, of the same number on all, and returns those of all, by rank. All
// members call tell equally often. In a group of one rank the communicator is nil.
func (g Members) Separate(what string, timeout time.Duration, meanwhile func(tell func(words []int64) ([][]int64, error)) error) (transport.Comm, error) {
	e := g.Env
	defer g.Use()()
	if err := g.EndingError(what); err != nil {
		return nil, err
	}
	if g.Size == 1 {
		return nil, meanwhile(func(words []int64) ([][]int64, error) { return [][]int64{slices.Clone(words)}, nil })
	}
	c, err := Meet(e, what, fmt.Sprintf("called %s; every member must call it, in the same order as new_group", what), g.Ranks, timeout)
	if err != nil {
		return nil, err
	}
	c.Common = true
	var made transport.Comm
	err = c.Run(func(comm transport.Comm) error {
		made = comm
		return meanwhile(func(words []int64) ([][]int64, error) { return comm.Gather(words, nil) })
	}, func(error) {})
	if err != nil {
		return nil, err
	}
	return made, nil
}
