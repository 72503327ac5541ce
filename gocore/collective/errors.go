package collective

import (
	"errors"
	"fmt"
	"slices"

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
func (c *collective) failure() failure { return failure{&c.request, c.phase} }

// of describes the collective and its group.
func (f failure) of() string { return f.g.Members().Of(health.Describe(f.sig)) }

// numbered describes the collective c of g with its number.
func (f failure) numbered() string {
	return fmt.Sprintf("%s, number %d", health.Describe(f.sig), f.args.Seq)
}

// inPhase says in which phase c is, or has failed, as the end of a description of c; "" if c has none.
func (f failure) inPhase() string {
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
func (f failure) failedInPhase(err error) error {
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

// timeoutError names the operation, its timeout and the ranks that never came. If all had come, it names those of other
// nodes that do not answer.
func (f failure) timeoutError() error {
	g := f.g
	who, arrived := "all members had come, the transfer did not end"+f.inPhase(), g.turns.arrived == f.args.Seq
	missing, known := g.Arrival.Missing()
	switch {
	case !known && arrived:
		missing = g.Inquiry.askAgain()
	case !known:
		missing = g.Inquiry.ask()
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

// closedError says which members gave c up before all had arrived, and why. A member that was
// waiting for c gets the same error as the member that gave up. A member that comes late learns
// that c was given up.
func (f failure) closedError() error { return f.closedBy(f.g.Arrival.Closers(f.args.Seq)) }

// closedBy is closedError for the given closers and their reasons.
func (f failure) closedBy(closers map[int]status.Code) error {
	g := f.g
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
	if why == "" {
		why = "had an operation on the group fail"
	}
	return status.New(status.GroupBroken, "%s: rank(s) %s %s; the group is broken",
		f.of(), status.Brief(by), why).WithRanks(by...)
}

// absentError returns an error if a member will not come to f.
func (f failure) absentError() error {
	g := f.g
	if err := f.leftError(); err != nil {
		return err
	}
	if g.Node != nil && len(g.Arrival.Closers(f.args.Seq)) > 0 {
		return f.closedError()
	}
	return nil
}

// leftError names the members that left without coming to c; nil if shared memory shows none.
func (f failure) leftError() error {
	g := f.g
	missing, known := g.Arrival.Missing()
	if !known {
		return nil // across nodes the members answer questions: see closedError
	}
	var left []int
	for _, i := range missing {
		if i != g.Rank && g.Env.Roster.Left(g.Ranks[i], 0) {
			left = append(left, i)
		}
	}
	if len(left) == 0 {
		return nil
	}
	if dead := g.Members().Dead(); len(dead) > 0 {
		return g.Members().DiedError(f.numbered(), dead, "the group is broken")
	}
	return f.leftBefore(left)
}

func (f failure) leftBefore(members []int) error {
	left := f.g.Members().World(members)
	return status.New(status.PeerLeft, "%s: rank(s) %s have ended and will not come; the group is broken",
		f.of(), status.Brief(left)).WithRanks(left...)
}
