package group

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// agreed tells whether a collective may run, now that all have arrived. It gives the
// same answer on every member.
func (g *Group) agreed(c *call, state arrive.State, res arrive.Result) bool {
	diff := res.Diff
	if c.args.Code == op.AllToAll && res.All&arrive.Even == 0 {
		diff &^= 1 << 1 // uneven parts: the lengths are exchanged later
	}
	return (state == arrive.Agreed || diff == 0) && res.Any&arrive.Refused == 0
}

// verdict is agreed as an error that says who refused, or who called what.
func (g *Group) verdict(c *call, state arrive.State, res arrive.Result) error {
	if g.agreed(c, state, res) {
		return nil
	}
	entries := g.arrival.Entries()
	if res.Any&arrive.Refused != 0 {
		var who []int
		for i, e := range entries {
			if e.Flags&arrive.Refused != 0 {
				who = append(who, g.Ranks[i])
			}
		}
		return status.New(status.Refused, "%s: rank(s) %s refused their part (their own error says why); nothing was sent and the group is usable",
			c.args.Code, brief(who)).WithRanks(who...)
	}
	return g.mismatch(c, entries)
}

// mismatch says who called what.
func (g *Group) mismatch(c *call, entries []arrive.Entry) error {
	type party struct {
		what  string
		ranks []int
	}
	var parties []party
	sigs := map[arrive.Signature]int{}
	for i, e := range entries {
		at, ok := sigs[e.Signature]
		if !ok {
			at = len(parties)
			sigs[e.Signature] = at
			parties = append(parties, party{what: describe(e.Signature)})
		}
		parties[at].ranks = append(parties[at].ranks, g.Ranks[i])
	}
	// The odd ones out are those that are not with the largest party.
	slices.SortStableFunc(parties, func(a, b party) int { return len(b.ranks) - len(a.ranks) })
	var odd []int
	var text []string
	for i, p := range parties {
		if i > 0 {
			odd = append(odd, p.ranks...)
		}
		if i < 8 {
			text = append(text, fmt.Sprintf("rank(s) %s: %s", brief(p.ranks), p.what))
		}
	}
	if len(parties) == 2 && len(parties[0].ranks) == len(parties[1].ranks) {
		odd = append(append([]int(nil), parties[0].ranks...), odd...)
		slices.Sort(odd)
	}
	return status.New(status.Mismatch, "%s: the ranks do not call the same thing: %s; nothing was sent and the group is usable",
		c.args.Code, strings.Join(text, "; ")).WithRanks(odd...)
}

// describe reads a signature as a person would write the call.
func describe(s arrive.Signature) string {
	code, dtype, reduce := op.Code(s[0]&0xff), op.DType(s[0]>>8&0xff), op.ReduceOp(s[0]>>16&0xff)
	text := code.String()
	if dtype == 0 {
		return text
	}
	text += fmt.Sprintf("(%s[%d]", dtype, s[1])
	detail := ""
	if s[1] == 0 && s[2] != 0 {
		text = fmt.Sprintf("%s(%s, parts %08x", code, dtype, uint32(s[2]))
	} else if s[2] != 0 {
		detail = fmt.Sprintf(", detail %08x", uint32(s[2])^uint32(s[2]>>32))
	}
	if reduce == op.PremulSum && code != op.AllReduceCoalesced && s[1] != 0 {
		text += fmt.Sprintf(", PREMUL_SUM(%v)", math.Float64frombits(s[2]))
	} else if text += detail; reduce != 0 {
		text += ", " + reduce.String()
	}
	if root := int(s[0]>>32) - 1; root >= 0 {
		text += fmt.Sprintf(", root %d of the group", root)
	}
	return text + ")"
}

// timeoutError names the operation, how long it waited and who never came.
func (g *Group) timeoutError(c *call) error {
	missing, known := g.arrival.Missing()
	if !known {
		missing = g.ask()
	}
	world := g.world(missing)
	who := "all members had come, the transfer did not end"
	if len(world) > 0 {
		who = fmt.Sprintf("rank(s) %s never came", brief(world))
	}
	return status.New(status.Timeout, "%s on the group of ranks %s timed out after %v: %s; the group is broken",
		describe(c.sig), brief(g.Ranks), c.timeout, who).WithRanks(world...)
}

// closedError says who gave the collective up before all had come, and why. A member
// that was waiting as well gets the same error as the one that gave up; one that comes
// late learns that it was given up.
func (g *Group) closedError(c *call) error {
	var who []int
	reason := status.GroupBroken
	for i, why := range g.arrival.Closers(g.seq) {
		who = append(who, i)
		if len(who) == 1 || why == status.Timeout {
			reason = why
		}
	}
	slices.Sort(who)
	by := g.world(who)
	missing, _ := g.arrival.Missing()
	late := slices.Contains(missing, g.Rank)
	switch {
	case reason == status.Timeout && !late:
		return status.New(status.Timeout, "%s on the group of ranks %s timed out after %v, on rank(s) %s first: rank(s) %s never came; the group is broken",
			describe(c.sig), brief(g.Ranks), c.timeout, brief(by), brief(g.world(missing))).WithRanks(g.world(missing)...)
	case reason == status.PeerLeft:
		if err := g.leftError(c); err != nil {
			return err
		}
	}
	why := map[status.Code]string{
		status.Timeout:        "gave up waiting for this rank, which comes after the deadline",
		status.Interrupted:    "was interrupted",
		status.PeerLeft:       "gave up because a member has ended",
		status.GroupDestroyed: "destroyed the group",
	}[reason]
	if why == "" {
		why = "had an operation on the group fail"
	}
	return status.New(status.GroupBroken, "%s on the group of ranks %s: rank(s) %s %s; the group is broken",
		describe(c.sig), brief(g.Ranks), brief(by), why).WithRanks(by...)
}

// leftError names members that ended normally and that c waits for.
func (g *Group) leftError(c *call) error {
	missing, known := g.arrival.Missing()
	var left []int
	for i, r := range g.Ranks {
		if i != g.Rank && g.env.Left(r) && (!known || slices.Contains(missing, i)) {
			left = append(left, r)
		}
	}
	if len(left) == 0 {
		return nil
	}
	return status.New(status.PeerLeft, "%s on the group of ranks %s: rank(s) %s have ended and will not come; the group is broken",
		describe(c.sig), brief(g.Ranks), brief(left)).WithRanks(left...)
}

func (g *Group) world(members []int) []int {
	var ranks []int
	for _, m := range members {
		ranks = append(ranks, g.Ranks[m])
	}
	return ranks
}

// askWait is how long a member whose deadline ran out waits for the others to say
// that they have arrived, where no shared memory shows it.
const askWait = 500 * time.Millisecond

// ask returns the members that do not answer that they have arrived as well. Those
// that wait here, or come to another wait of the library, answer.
func (g *Group) ask() []int {
	seq := g.announced.Load()
	waiting := map[int]bool{}
	for i, r := range g.Ranks {
		if i != g.Rank {
			waiting[i] = true
			g.env.mail.send(r, mailAsk, g.key, []byte(fmt.Sprint(seq)))
		}
	}
	end := time.Now().Add(askWait)
	for len(waiting) > 0 && time.Now().Before(end) {
		g.env.mail.pump()
		for i := range waiting {
			if _, ok := g.env.mail.take(mailHere, g.Ranks[i], g.key); ok {
				delete(waiting, i)
			}
		}
		time.Sleep(time.Millisecond)
	}
	var missing []int
	for i := range g.Ranks {
		if waiting[i] {
			missing = append(missing, i)
		}
	}
	return missing
}

// answer replies to a member that asks where this rank is in a group.
func (e *Env) answer(from int, key uint64, body []byte) {
	var seq uint64
	if _, err := fmt.Sscan(string(body), &seq); err != nil {
		return
	}
	e.mu.Lock()
	g := e.byKey[key]
	e.mu.Unlock()
	if g != nil && g.announced.Load() >= seq {
		e.mail.send(from, mailHere, key, nil)
	}
}

func (e *Env) remember(g *Group) {
	e.mu.Lock()
	e.byKey[g.key] = g
	e.mu.Unlock()
}

func (e *Env) forget(g *Group) {
	e.mu.Lock()
	if e.byKey[g.key] == g {
		delete(e.byKey, g.key)
	}
	e.mu.Unlock()
}
