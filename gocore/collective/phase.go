package collective

import (
	"errors"
	"fmt"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
)

// notePhase records in which phase the program of c is, if that has changed.
func (c *collective) notePhase() {
	p := c.prog.Phase()
	if p == c.phase {
		return
	}
	c.phase = p
	if p.Where != coll.NoPhase {
		c.trace.Phase(int(p.Where)-1, p.Rail, p.Partner)
	}
}

// inPhase says in which phase c is, or has failed, as the end of a description of c; "" if c has none.
func (c *collective) inPhase() string {
	if c.phase.Where == coll.NoPhase {
		return ""
	}
	text := fmt.Sprintf(", %s, on rail %d", trace.Phases[c.phase.Where-1], c.phase.Rail)
	if c.phase.Partner >= 0 {
		text += fmt.Sprintf(", with rank %d", c.g.Ranks[c.phase.Partner])
	}
	return text
}

// failedInPhase returns err, or if it is of MPI, the error of the collective: it says in which phase, and names the rank
// whose message it was.
func (c *collective) failedInPhase(err error) error {
	var e *status.Error
	if c.phase.Where == coll.NoPhase || !errors.As(err, &e) || e.Code != status.MPI && e.Code != status.Truncate {
		return err
	}
	told := status.New(e.Code, "%s%s: %s; the group is broken", c.of(), c.inPhase(), e.Msg)
	told.MPIClass, told.Ranks = e.MPIClass, e.Ranks
	if c.phase.Partner >= 0 && len(e.Ranks) == 0 {
		told.Ranks = []int{c.g.Ranks[c.phase.Partner]}
	}
	return told
}
