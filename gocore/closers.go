package gocore

import "sync"

// closers are what has to end before MPI or the process does, in the opposite order of its beginning.
// A room that starts something (a world, a child process, a server) adds how that ends.
type closers struct {
	mu   sync.Mutex
	list []*closer
}

type closer struct {
	end func(finalizing bool)
}

var closing closers

// add takes what is to be called at the end, once; with true if MPI is finalized next, with false if the
// process ends without that. remove takes it back, for what has ended before.
func (c *closers) add(end func(finalizing bool)) (remove func()) {
	this := &closer{end}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, this)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, other := range c.list {
			if other == this {
				c.list = append(c.list[:i], c.list[i+1:]...)
				return
			}
		}
	}
}

// run calls all, the latest first, those that are added meanwhile too.
func (c *closers) run(finalizing bool) {
	for {
		c.mu.Lock()
		n := len(c.list)
		if n == 0 {
			c.mu.Unlock()
			return
		}
		last := c.list[n-1]
		c.list = c.list[:n-1]
		c.mu.Unlock()
		last.end(finalizing)
	}
}
