package registry

// Closers hold what has to end before MPI is finalized or the process ends. It ends in the opposite
// order of its beginning. A room that starts something (a world, a child process, a server) adds a
// function that ends it.
type Closers struct {
	ends ByNumber[func(finalizing bool)]
}

// Add adds a function, which Run calls once: with true if MPI is finalized next, with false if the
// process ends without that. remove takes the function back, because what it ends has ended before.
func (c *Closers) Add(end func(finalizing bool)) (remove func()) {
	number := c.ends.Add(end)
	return func() { c.ends.Forget(number) }
}

// Run calls all functions, the latest first, also those that are added meanwhile.
func (c *Closers) Run(finalizing bool) {
	for end, ok := c.ends.takeLast(); ok; end, ok = c.ends.takeLast() {
		end(finalizing)
	}
}
