package group

import "github.com/paddlempi/paddlempi/gocore/trace"

// record enters c in the flight recorder. c gets its number later unless it has one.
func (c *call) record(flags trace.Flags) {
	if c.async {
		flags |= trace.Async
	}
	c.trace = c.g.Env.Recorder.Begin(c.g.ID, c.args.Seq, (*[3]uint64)(&c.sig), flags)
}
