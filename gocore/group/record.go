package group

import "github.com/paddlempi/paddlempi/gocore/trace"

// record enters c in the flight recorder. c gets its number later unless it has one.
func (g *Group) record(c *call, flags trace.Flags) {
	if c.async {
		flags |= trace.Async
	}
	c.trace = g.Env.Recorder.Begin(g.ID, c.args.Seq, (*[3]uint64)(&c.sig), flags)
}
