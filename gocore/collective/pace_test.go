package collective

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Who waits for data that comes over a network may sleep for a moment, who waits for the ranks of its node may not. The
// phases on a node are parts of a collective over nodes.
func TestHowOftenAWaitLooks(t *testing.T) {
	pace := func(g *Group, s stage) work.Pace {
		return (&collective{request: request{g: g}, progress: progress{stage: s}}).Requests(&work.Batch{})
	}
	for name, g := range map[string]*Group{"a node": {}, "nodes": {Wire: &arrive.Wire{}}, "a phase": {Silent: true}} {
		t.Run(name, func(t *testing.T) {
			for _, s := range []stage{checked, announced, lingering} {
				assert.Equal(t, work.Seldom, pace(g, s))
			}
			moving := work.Often
			if name == "a node" {
				moving = work.Always
			}
			assert.Equal(t, moving, pace(g, running))
		})
	}
}
