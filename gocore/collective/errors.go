package collective

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
)

// failure finds out why a collective cannot go on, and makes the errors that say so.
type failure struct {
	*request
	phase coll.Phase // in which it is
}

// failure returns what tells why c cannot go on.
func (c *collective) failure() *failure { return &failure{&c.request, c.phase} }

// of describes the collective and its group.
func (f *failure) of() string { return f.g.Members().Of(health.Describe(f.sig)) }

// numbered describes the collective with its number.
func (f *failure) numbered() string {
	return fmt.Sprintf("%s, number %d", health.Describe(f.sig), f.args.Seq)
}

// inPhase says in which phase it is, or has failed, as the end of a description; "" if it has none.
func (f *failure) inPhase() string {
	if f.phase.Where == coll.NoPhase {
		return ""
	}
	text := fmt.Sprintf(", %s, on rail %d", trace.Phases[f.phase.Where-1], f.phase.Rail)
	if f.phase.Partner >= 0 {
		text += fmt.Sprintf(", with rank %d", f.g.Ranks[f.phase.Partner])
	}
	return text
}

// failedInPhase returns err, or if it is of MPI, the error of the collective: it says in which phase, and names the rank
// whose message it was.
func (f *failure) failedInPhase(err error) error {
	var e *status.Error
	if f.phase.Where == coll.NoPhase || !errors.As(err, &e) || e.Code != status.MPI && e.Code != status.Truncate {
		return err
	}
	told := status.New(e.Code, "%s%s: %s; the group is broken", f.of(), f.inPhase(), e.Msg)
	told.MPIClass, told.Ranks = e.MPIClass, e.Ranks
	if f.phase.Partner >= 0 && len(e.Ranks) == 0 {
		told.Ranks = []int{f.g.Ranks[f.phase.Partner]}
	}
	return told
}

// disagreement is the error that the members do not agree. It names the members that refused, or the calls of all
// members.
func (f *failure) disagreement(res arrive.Result) error {
	entries := f.g.Arrival.Entries()
	if res.Any&arrive.Refused != 0 {
		var who []int
		for i, e := range entries {
			if e.Flags&arrive.Refused != 0 {
				who = append(who, f.g.Ranks[i])
			}
		}
		return status.New(status.Refused, "%s: rank(s) %s refused their part (their own error says why); nothing was sent and the group is usable",
			f.args.Code, status.Brief(who)).WithRanks(who...)
	}
	return f.mismatch(entries)
}

// mismatch is the error that says which ranks called what.
func (f *failure) mismatch(entries []arrive.Entry) error {
	type party struct {
		sig   arrive.Signature
		ranks []int
	}
	var parties []party
	for i, e := range entries {
		at := slices.IndexFunc(parties, func(p party) bool { return p.sig == e.Signature })
		if at < 0 {
			at = len(parties)
			parties = append(parties, party{sig: e.Signature})
		}
		parties[at].ranks = append(parties[at].ranks, f.g.Ranks[i])
	}
	// The error names the ranks outside the largest party.
	sort.SliceStable(parties, func(a, b int) bool { return len(parties[a].ranks) > len(parties[b].ranks) })
	var odd []int
	var text []string
	for i, p := range parties {
		if i > 0 {
			odd = append(odd, p.ranks...)
		}
		if i < 8 {
			text = append(text, fmt.Sprintf("rank(s) %s: %s", status.Brief(p.ranks), health.Describe(p.sig)))
		}
	}
	if len(parties) == 2 && len(parties[0].ranks) == len(parties[1].ranks) {
		odd = append(odd, parties[0].ranks...)
		slices.Sort(odd)
	}
	return status.New(status.Mismatch, "%s: the ranks do not call the same thing: %s; nothing was sent and the group is usable",
		f.args.Code, strings.Join(text, "; ")).WithRanks(odd...)
}

// harmless is an error that all members get alike, because it follows from what they have announced, and before anything
// was sent. The group stays usable.
type harmless struct{ error }

// timeoutError names the operation, its timeout and the ranks that never came. If all had come, it names those of other
// nodes that do not answer.
func (f *failure) timeoutError() error {
	g := f.g
	who, arrived := "all members had come, the transfer did not end"+f.inPhase(), g.turns.arrived == f.args.Seq
	missing, known := g.Arrival.Missing()
	if !known {
		missing = g.Inquiry.ask(arrived, func() bool { return false })
	}
	ranks := g.Members().World(missing)
	switch {
	case len(ranks) > 0 && arrived:
		who += fmt.Sprintf(", and rank(s) %s do not answer", status.Brief(ranks))
	case len(ranks) > 0:
		who = fmt.Sprintf("rank(s) %s never came", status.Brief(ranks))
	}
	return status.New(status.Timeout, "%s timed out after %v: %s; the group is broken",
		f.of(), f.timeout, who).WithRanks(ranks...)
}

// late is timeoutError of a call that waits for the part of a member: -1 if it is not known of which.
func (f *failure) late(member int) error {
	if member < 0 || member == f.g.Rank {
		return f.timeoutError()
	}
	slow := f.g.Ranks[member]
	return status.New(status.Timeout, "%s timed out after %v: all members had come, the transfer did not end: rank %d has not done its part (is it stopped?); the group is broken",
		f.of(), f.timeout, slow).WithRanks(slow)
}

// closedError says which members gave the collective up before all had arrived, and why. A member that was
// waiting for it gets the same error as the member that gave up. A member that comes late learns
// that it was given up.
func (f *failure) closedError() error { return f.closedBy(f.g.Arrival.Closers(f.args.Seq)) }

// givenUp is closedError if a member has given the collective up; else nil.
func (f *failure) givenUp() error {
	if closers := f.g.Arrival.Closers(f.args.Seq); len(closers) > 0 {
		return f.closedBy(closers)
	}
	return nil
}

// closedBy is closedError for the given closers and their reasons.
func (f *failure) closedBy(closers map[int]status.Code) error {
	g := f.g
	if err := f.revoked(); err != nil {
		return err // the closers have heard of that first
	}
	var who, ended []int
	reason := status.GroupBroken
	for i := range g.Ranks { // in the order of ranks, because closers may have different reasons
		why, ok := closers[i]
		if !ok {
			continue
		}
		who = append(who, i)
		if len(who) == 1 || why == status.PeerDied || why == status.Timeout && reason != status.PeerDied {
			reason = why
		}
		if why == status.PeerLeft {
			ended = append(ended, i)
		}
	}
	by := g.Members().World(who)
	missing, known := g.Arrival.Missing()
	late := slices.Contains(missing, g.Rank)
	switch {
	case reason == status.Timeout && known && len(missing) == 0:
		return status.New(status.Timeout, "%s timed out after %v, on rank(s) %s first: all members had come, the transfer did not end; the group is broken",
			f.of(), f.timeout, status.Brief(by)).WithRanks(by...)
	case reason == status.Timeout && known && !late:
		return status.New(status.Timeout, "%s timed out after %v, on rank(s) %s first: rank(s) %s never came; the group is broken",
			f.of(), f.timeout, status.Brief(by), status.Brief(g.Members().World(missing))).WithRanks(g.Members().World(missing)...)
	case reason == status.PeerLeft && !known:
		return f.leftBefore(ended)
	case reason == status.PeerLeft || reason == status.PeerDied:
		// The closers may know of a death for longer than this member, so it looks at once.
		if dead := g.Members().Dead(); reason == status.PeerDied && len(dead) > 0 {
			return g.Members().DiedError(f.numbered(), dead, "the group is broken")
		}
		if err := f.leftError(); err != nil {
			return err
		}
	}
	if err := f.blamed(who); err != nil {
		return err
	}
	why := map[status.Code]string{
		status.Timeout:        "gave up waiting for this rank, which comes after the deadline",
		status.Interrupted:    "was interrupted",
		status.PeerLeft:       "gave up because a member has ended",
		status.PeerDied:       "gave up because a member has died",
		status.GroupDestroyed: "destroyed the group",
	}[reason]
	if reason == status.Timeout && !known {
		why = "gave up waiting when the deadline had passed there"
	}
	return status.New(status.GroupBroken, "%s: rank(s) %s %s; the group is broken",
		f.of(), status.Brief(by), cmp.Or(why, "had an operation on the group fail")).WithRanks(by...)
}

// lost is the error that members died in the collective, or before they did their part of it.
func (f *failure) lost(members []int) error {
	return f.g.Members().DiedError(f.numbered()+f.inPhase(), members, "its result is lost, and the group is broken")
}

// leftError names the members that left without coming to it; nil if shared memory shows none.
func (f *failure) leftError() error {
	g := f.g
	missing, known := g.Arrival.Missing()
	if !known {
		return nil // across nodes the members answer questions: see closedError
	}
	left := slices.DeleteFunc(missing, func(i int) bool { return i == g.Rank || !g.Env.Roster.Left(g.Ranks[i], 0) })
	if len(left) == 0 {
		return nil
	}
	if dead := g.Members().Dead(); len(dead) > 0 {
		return g.Members().DiedError(f.numbered(), dead, "the group is broken")
	}
	return f.leftBefore(left)
}

// revoked returns the error that a member has revoked the world; nil if none has.
func (f *failure) revoked() error {
	if status.CodeOf(f.g.Members().Ending()) != status.Revoked {
		return nil
	}
	return f.g.Members().EndingError(health.Describe(f.sig))
}

func (f *failure) leftBefore(members []int) error {
	if err := f.revoked(); err != nil {
		return err
	}
	left := f.g.Members().World(members)
	return status.New(status.PeerLeft, "%s: rank(s) %s have ended and will not come; the group is broken",
		f.of(), status.Brief(left)).WithRanks(left...)
}

// What the members of a group read in each other's memory may be wrong: the process of a member may be damaged, and every
// member can write to the memory that they share. What follows has the errors of that (docs/security.md says what is checked where).

// damaged is the error that a member has written what no rank writes. The text says so of its rank, which comes before more.
func (f *failure) damaged(member int, text string, more ...any) error {
	rank := f.g.Ranks[member]
	told := fmt.Sprintf(text, append([]any{rank}, more...)...)
	return status.New(status.GroupBroken, "%s: %s", f.g.Members().Of(f.numbered()), told).WithRanks(rank)
}

// rubbishError is the error that an arrival has found rubbish in the slot of a member.
func (f *failure) rubbishError() error { return f.rubbishIn(f.g.Node.Slots.Rubbish()) }

func (f *failure) rubbishIn(member int) error {
	return f.damaged(member, "the arrival slot of rank %d holds what no rank writes there: the process of that rank is damaged, or another one of this node writes into its memory; the group is broken")
}

// contradiction is the error that the signatures of all members agree, and so the lengths of their shares, but
// not the flags that say whether these are all the same (coll.Even). The process of a member is damaged then.
func (f *failure) contradiction() error {
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
func (f *failure) blamed(closers []int) error {
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

// readable returns an error that names a member as the error of a broken group that names the rank, and any
// other err as it is.
func (f *failure) readable(err error) error {
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
