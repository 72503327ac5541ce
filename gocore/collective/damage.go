package collective

import (
	"errors"
	"fmt"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// What the members of a group read in each other's memory may be wrong: the process of a member may be
// damaged, and every member can write to the memory that they share. This file has the errors that
// follow (docs/security.md says what is checked where).

// damaged is the error that a member has written what no rank writes. The text says so of its rank, which comes before more.
func (f failure) damaged(member int, text string, more ...any) error {
	rank := f.g.Ranks[member]
	told := fmt.Sprintf(text, append([]any{rank}, more...)...)
	return status.New(status.GroupBroken, "%s: %s", f.g.Members().Of(f.numbered()), told).WithRanks(rank)
}

// rubbishError is the error that an arrival has found rubbish in the slot of a member.
func (f failure) rubbishError() error { return f.rubbishIn(f.g.Node.Slots.Rubbish()) }

func (f failure) rubbishIn(member int) error {
	return f.damaged(member, "the arrival slot of rank %d holds what no rank writes there: the process of that rank is damaged, or another one of this node writes into its memory; the group is broken")
}

// contradiction is the error that the signatures of all members agree, and so the lengths of their shares, but
// not the flags that say whether these are all the same (coll.Even). The process of a member is damaged then.
func (f failure) contradiction() error {
	g := f.g
	if g.Node != nil && f.args.Seq == g.turns.turn {
		for i, e := range g.Arrival.Entries() {
			if i != g.Rank && (e.Flags^f.flags)&coll.Even != 0 {
				return f.rubbishIn(i)
			}
		}
	}
	return status.New(status.GroupBroken, "%s: what the ranks have announced of their shares cannot be: the process of one of them is damaged; the group is broken",
		g.Members().Of(f.numbered()))
}

// blamed returns the error of rubbishIn if one of the members that gave f up says that it has found
// rubbish; nil if none does.
func (f failure) blamed(closers []int) error {
	for _, i := range closers {
		if f.g.Node == nil {
			break
		}
		if member, ok := f.g.Node.Slots.Blamed(i); ok {
			return f.rubbishIn(member)
		}
	}
	return nil
}

// damagedChunks is the error that the words with which the members share out the work hold rubbish.
// All members write to all of them, so it cannot be said which one did.
func (f failure) damagedChunks() error {
	return status.New(status.GroupBroken, "%s: the words of its chunks, in memory that all these ranks map, hold what no rank writes there: the process of one of them is damaged; its result is lost, and the group is broken",
		f.g.Members().Of(f.numbered()))
}

// readable returns an error that names a member as the error of a broken group that names the rank, and any
// other err as it is.
func (f failure) readable(err error) error {
	if err == nil { // return before what errors.As takes the address of is allocated
		return nil
	}
	var (
		sent   *arrive.Damaged
		block  *coll.DamagedBlock
		tensor *coll.UnreadableTensor
		told   *coll.NotAsAgreed
	)
	switch {
	case errors.As(err, &sent):
		return f.damaged(sent.Member, "the arrival of rank %d cannot be: %s; that process is damaged, and the group is broken", sent.Why)
	case errors.As(err, &block):
		return f.damaged(block.Member, "the memory through which rank %d sends its tensors holds what no rank writes there: the process of that rank is damaged, or another one of this node writes into its memory; the result is lost, and the group is broken")
	case errors.As(err, &tensor):
		return f.damaged(tensor.Member, "this rank could read the memory of rank %d before, and cannot read its tensor there now (process_vm_readv: %v): does that process limit who reads it, or has it freed the tensor? PADDLEMPI_ALGO=%s:bounce does without; the result is lost, and the group is broken",
			tensor.Cause, f.args.Code)
	case !errors.As(err, &told):
		return err
	case f.phase.Where == coll.NoPhase:
		return f.damaged(told.Member, "rank %d has announced one thing and told another: its process is damaged; nothing was done on this rank, and the group is broken")
	}
	return status.New(status.GroupBroken, "%s%s: that rank has sent a message of another length than was agreed on: its process is damaged; the result is lost, and the group is broken",
		f.g.Members().Of(f.numbered()), f.inPhase()).WithRanks(f.g.Ranks[told.Member])
}
