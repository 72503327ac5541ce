package collective

import (
	"fmt"
	"slices"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll"
	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// agree tells whether a collective at which all members have arrived may run. The answer is the
// same on every member.
func agree(a *coll.Args, state arrive.State, res arrive.Result) bool {
	diff := res.Diff
	if a.Trait().Shares == op.Pairwise && res.All&coll.Even == 0 {
		diff &^= 1 << 1 // uneven parts: the lengths are exchanged later
	}
	return (state == arrive.Agreed || state == arrive.Differ && diff == 0) && res.Any&arrive.Refused == 0
}

// disagreement is the error that the members do not agree. It names the members that refused, or the calls of all
// members.
func (f failure) disagreement(res arrive.Result) error {
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
func (f failure) mismatch(entries []arrive.Entry) error {
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
	slices.SortStableFunc(parties, func(a, b party) int { return len(b.ranks) - len(a.ranks) })
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

// choose returns the algorithm that serves what all members have agreed on, or the error that they have not.
func (c *collective) choose(state arrive.State, res arrive.Result) (*coll.Algorithm, error) {
	if !agree(&c.args, state, res) {
		return nil, harmless{c.failure().disagreement(res)}
	}
	// What this member has not announced cannot be agreed on, whatever its slot says now.
	c.args.Agreed, c.args.Any = res.All&(c.flags|(arrive.Others-1)), res.Any|c.flags
	if (c.args.Agreed^c.flags)&coll.Even != 0 && c.args.Trait().Shares != op.Pairwise {
		return nil, c.failure().contradiction()
	}
	if c.args.Any&coll.Device != 0 {
		agreeOnDevice(&c.request)
	}
	alg, err := c.g.choices.Choose(&c.args.Sig)
	if err != nil {
		return nil, harmless{err}
	}
	c.form = alg.Form(&c.args.Sig)
	c.took(alg)
	return alg, nil
}
