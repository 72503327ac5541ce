package collective

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Who waits for data that comes over a network may sleep for a moment. The ranks of a node ring when they have done something, if
// they work in memory; else who waits for them may not sleep. The phases on a node are parts of a collective over nodes.
func TestHowOftenAWaitLooks(t *testing.T) {
	pace := func(g *Group, s stage) work.Pace {
		return (&collective{request: request{g: g}, progress: progress{stage: s}}).Requests(&work.Batch{})
	}
	for name, g := range map[string]*Group{"a node": {}, "nodes": {Wire: &arrive.Wire{}}, "a phase": {Silent: true}} {
		t.Run(name, func(t *testing.T) {
			for _, s := range []stage{checked, announced, lingering} {
				if name == "a node" && s < running {
					assert.Equal(t, work.Rung, pace(g, s))
				} else {
					assert.Equal(t, work.Seldom, pace(g, s))
				}
			}
			if name != "a node" {
				assert.Equal(t, work.Often, pace(g, running))
				return
			}
			for form, want := range map[coll.Form]work.Pace{coll.InChunks: work.Rung, coll.InRounds: work.Rung, coll.Polled: work.Always} {
				c := &collective{request: request{g: g}, progress: progress{stage: running}}
				c.form = form
				assert.Equal(t, want, c.Requests(&work.Batch{}))
				c.flags = coll.Device
				assert.Equal(t, work.Always, c.Requests(&work.Batch{}))
			}
		})
	}
}
