package registry

import (
	"slices"
	"sync"
)

// Closers hold what has to end before MPI is finalized or the process ends. It ends in the opposite
// order of its beginning. A room that starts something (a world, a child process, a server) adds a
// function that ends it.
type Closers struct {
	mu   sync.Mutex
	list []*func(finalizing bool)
}

// Add adds a function, which Run calls once: with true if MPI is finalized next, with false if the
// process ends without that. remove takes the function back, because what it ends has ended before.
func (c *Closers) Add(end func(finalizing bool)) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, &end)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.list = slices.DeleteFunc(c.list, func(other *func(bool)) bool { return other == &end })
	}
}

// Run calls all functions, the latest first, also those that are added meanwhile.
func (c *Closers) Run(finalizing bool) {
	for end := c.last(); end != nil; end = c.last() {
		(*end)(finalizing)
	}
}

// last takes the latest function off the list; nil if there is none.
func (c *Closers) last() *func(bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.list)
	if n == 0 {
		return nil
	}
	end := c.list[n-1]
	c.list = c.list[:n-1]
	return end
}
