package collective

import (
	"errors"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// What the members of a group read in each other's memory may be wrong: the process of a member may be
// damaged, and every member can write to the memory that they share. This file has the errors that
// follow (docs/security.md says what is checked where).

// rubbishError is the error that an arrival has found rubbish in the slot of a member.
func (c *collective) rubbishError() error { return c.rubbishIn(c.g.Node.Slots.Rubbish()) }

func (c *collective) rubbishIn(member int) error {
	rank := c.g.Ranks[member]
	return status.New(status.GroupBroken, "%s: the arrival slot of rank %d holds what no rank writes there: the process of that rank is damaged, or another one of this node writes into its memory; the group is broken",
		c.g.Members().Of(c.numbered()), rank).WithRanks(rank)
}

// contradiction is the error that the signatures of all members agree, and so the lengths of their shares, but
// not the flags that say whether these are all the same (coll.Even). The process of a member is damaged then.
func (c *collective) contradiction() error {
	g := c.g
	if g.Node != nil && c.args.Seq == g.turn {
		for i, e := range g.Arrival.Entries() {
			if i != g.Rank && (e.Flags^c.flags)&coll.Even != 0 {
				return c.rubbishIn(i)
			}
		}
	}
	return status.New(status.GroupBroken, "%s: what the ranks have announced of their shares cannot be: the process of one of them is damaged; the group is broken",
		g.Members().Of(c.numbered()))
}

// blamed returns the error of rubbishIn if one of the members that gave c up says that it has found
// rubbish; nil if none does.
func (c *collective) blamed(closers []int) error {
	g := c.g
	if g.Node == nil {
		return nil
	}
	for _, i := range closers {
		if member, ok := g.Node.Slots.Blamed(i); ok {
			return c.rubbishIn(member)
		}
	}
	return nil
}

// damagedChunks is the error that the words with which the members share out the work of c hold rubbish.
// All members write to all of them, so it cannot be said which one did.
func (c *collective) damagedChunks() error {
	return status.New(status.GroupBroken, "%s: the words of its chunks, in memory that all these ranks map, hold what no rank writes there: the process of one of them is damaged; its result is lost, and the group is broken",
		c.g.Members().Of(c.numbered()))
}

// readable returns a coll.NotAsAgreed or an arrive.Damaged as the error of a broken group that names the rank, and any
// other err as it is.
func (c *collective) readable(err error) error {
	if err == nil { // return before bad, whose address errors.As takes, is allocated
		return nil
	}
	var sent *arrive.Damaged
	if errors.As(err, &sent) {
		rank := c.g.Ranks[sent.Member]
		return status.New(status.GroupBroken, "%s: the arrival of rank %d cannot be: %s; that process is damaged, and the group is broken",
			c.g.Members().Of(c.numbered()), rank, sent.Why).WithRanks(rank)
	}
	var block *coll.DamagedBlock
	if errors.As(err, &block) {
		rank := c.g.Ranks[block.Member]
		return status.New(status.GroupBroken, "%s: the memory through which rank %d sends its tensors holds what no rank writes there: the process of that rank is damaged, or another one of this node writes into its memory; the result is lost, and the group is broken",
			c.g.Members().Of(c.numbered()), rank).WithRanks(rank)
	}
	var tensor *coll.UnreadableTensor
	if errors.As(err, &tensor) {
		rank := c.g.Ranks[tensor.Member]
		return status.New(status.GroupBroken, "%s: this rank could read the memory of rank %d before, and cannot read its tensor there now (process_vm_readv: %v): does that process limit who reads it, or has it freed the tensor? PADDLEMPI_ALGO=%s:bounce does without; the result is lost, and the group is broken",
			c.g.Members().Of(c.numbered()), rank, tensor.Cause, c.args.Code).WithRanks(rank)
	}
	var bad *coll.NotAsAgreed
	if !errors.As(err, &bad) {
		return err
	}
	rank := c.g.Ranks[bad.Member]
	if c.phase.Where != coll.NoPhase {
		return status.New(status.GroupBroken, "%s%s: that rank has sent a message of another length than was agreed on: its process is damaged; the result is lost, and the group is broken",
			c.g.Members().Of(c.numbered()), c.inPhase()).WithRanks(rank)
	}
	return status.New(status.GroupBroken, "%s: rank %d has announced one thing and told another: its process is damaged; nothing was done on this rank, and the group is broken",
		c.g.Members().Of(c.numbered()), rank).WithRanks(rank)
}

// breaks tells whether this member may be the only one with err, which kept it from working on a collective.
// The others may then have begun. Only a mismatch is an error that all members find.
func breaks(err error) bool { return err != nil && status.CodeOf(err) != status.Mismatch }

// standAside gives c up, because err keeps this member from working on it. Other members may be at work
// already, and none may write into this member's tensors after its caller has the error. So it closes the
// chunks that no member has claimed. If some are claimed, it returns an operation that is over when they are
// done; otherwise nil.
func (c *collective) standAside(err error) *shm.Op {
	c.g.Node.Slots.Explain(status.CodeOf(err))
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
