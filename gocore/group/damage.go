package group

import (
	"errors"

	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// What the members of a group read in each other's memory may be wrong: the process of a member may be
// damaged, and every member can write to the memory that they share. This file has the errors that
// follow (docs/security.md says what is checked where).

// rubbishError is the error that an arrival has found rubbish in the slot of a member.
func (c *collective) rubbishError() error { return c.rubbishIn(c.g.node.Lines.Rubbish()) }

func (c *collective) rubbishIn(member int) error {
	rank := c.g.Ranks[member]
	return status.New(status.GroupBroken, "%s: the arrival slot of rank %d holds what no rank writes there: the process of that rank is damaged, or another one of this node writes into its memory; the group is broken",
		c.g.Of(c.numbered()), rank).WithRanks(rank)
}

// unlikely is the error that members who have announced the same lengths of shares say different things of
// them.
func (c *collective) unlikely() error {
	g := c.g
	if g.node != nil && c.args.Seq == g.turn {
		for i, e := range g.arrival.Entries() {
			if i != g.Rank && (e.Flags^c.flags)&coll.Even != 0 {
				return c.rubbishIn(i)
			}
		}
	}
	return status.New(status.GroupBroken, "%s: what the ranks have announced of their shares cannot be: the process of one of them is damaged; the group is broken",
		g.Of(c.numbered()))
}

// blamed returns the error of rubbishIn if one of the members that gave c up says that it has found
// rubbish; nil if none does.
func (c *collective) blamed(closers []int) error {
	g := c.g
	if g.node == nil {
		return nil
	}
	for _, i := range closers {
		if member, ok := g.node.Lines.Blamed(i); ok {
			return c.rubbishIn(member)
		}
	}
	return nil
}

// damagedChunks is the error that the words with which the members share out the work of c hold rubbish.
// All members write to all of them, so it cannot be said which one did.
func (c *collective) damagedChunks() error {
	return status.New(status.GroupBroken, "%s: the words of its chunks, in memory that all these ranks map, hold what no rank writes there: the process of one of them is damaged; its result is lost, and the group is broken",
		c.g.Of(c.numbered()))
}

// readable returns err in the words of a group, if it says that a member's slot holds another thing than
// the member announced.
func (c *collective) readable(err error) error {
	if err == nil { // return before bad, whose address errors.As takes, is allocated
		return nil
	}
	var bad *coll.NotAsAgreed
	if !errors.As(err, &bad) {
		return err
	}
	rank := c.g.Ranks[bad.Member]
	return status.New(status.GroupBroken, "%s: rank %d has announced one thing and told another: its process is damaged; nothing was done on this rank, and the group is broken",
		c.g.Of(c.numbered()), rank).WithRanks(rank)
}

// breaks tells whether this member alone has found err when it was to begin the work of a collective. The
// others may have begun. All members find a mismatch alike.
func breaks(err error) bool { return err != nil && status.CodeOf(err) != status.Mismatch }

// standAside gives c up, which this member cannot begin because of err. The others may have begun, and must
// not write into its tensors when its caller knows of the error. So it closes the chunks that nobody has
// claimed. If there are others, it returns the operation, which is not over.
func (c *collective) standAside(err error) *shm.Op {
	c.g.node.Lines.Explain(status.CodeOf(err))
	o, failed := c.args.Bystander()
	if failed != nil {
		return nil
	}
	if state := o.Leave(); state == shm.Closing || state == shm.Pending {
		return o
	}
	o.Free()
	return nil
}
