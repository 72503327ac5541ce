package shm

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/tools/explorer"
)

func TestProtocol(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	for name, p := range map[string]protocol{
		"2 ranks, 3 collectives":                       {ranks: 2, chunks: 2, collectives: 3},
		"3 ranks, 3 collectives":                       {ranks: 3, chunks: 1, collectives: 3},
		"3 ranks, 2 chunks":                            {ranks: 3, chunks: 2, collectives: 1},
		"2 ranks, one gives up":                        {ranks: 2, chunks: 2, collectives: 3, leaves: 1, givesUp: 1},
		"2 ranks, both give up":                        {ranks: 2, chunks: 1, collectives: 2, leaves: 3, givesUp: 3},
		"2 ranks, 2 chunks, both give up work":         {ranks: 2, chunks: 2, collectives: 1, givesUp: 3},
		"3 ranks, one gives up work":                   {ranks: 3, chunks: 1, collectives: 1, givesUp: 2},
		"2 ranks, one abandons":                        {ranks: 2, chunks: 2, collectives: 1, givesUp: 1, abandons: 1},
		"2 ranks, both abandon":                        {ranks: 2, chunks: 2, collectives: 1, givesUp: 3, abandons: 3},
		"3 ranks, one abandons":                        {ranks: 3, chunks: 1, collectives: 1, givesUp: 2, abandons: 2},
		"3 ranks, two leave":                           {ranks: 3, chunks: 1, collectives: 1, leaves: 3},
		"2 ranks, both give up, and look":              {ranks: 2, chunks: 1, collectives: 2, leaves: 3, looks: 3},
		"3 ranks, one leaves, one looks":               {ranks: 3, chunks: 1, collectives: 1, leaves: 1, looks: 4},
		"ring of 3, 2 ahead, one leaves, one looks":    {ranks: 2, chunks: 1, collectives: 2, slots: 3, ahead: 2, leaves: 1, looks: 2},
		"2 ranks, one dies":                            {ranks: 2, chunks: 2, collectives: 2, dies: 2},
		"3 ranks, one dies":                            {ranks: 3, chunks: 1, collectives: 1, dies: 2},
		"3 ranks, one blind":                           {ranks: 3, chunks: 2, collectives: 2, blind: 2},
		"2 ranks, all blind":                           {ranks: 2, chunks: 2, collectives: 3, blind: 3},
		"2 ranks and a late thread":                    {ranks: 2, chunks: 2, collectives: 3, helper: true},
		"2 ranks, two threads, one abandons":           {ranks: 2, chunks: 2, collectives: 1, helper: true, givesUp: 2, abandons: 2},
		"ring of 3, 2 ranks, 2 ahead":                  {ranks: 2, chunks: 1, collectives: 4, slots: 3, ahead: 2},
		"ring of 4, 2 ranks, 3 ahead":                  {ranks: 2, chunks: 1, collectives: 4, slots: 4, ahead: 3},
		"ring of 3, one refuses late":                  {ranks: 2, chunks: 1, collectives: 3, slots: 3, ahead: 2, refuses: 1},
		"ring of 3, both refuse late":                  {ranks: 2, chunks: 1, collectives: 2, slots: 3, ahead: 2, refuses: 3},
		"ring of 3, 3 ranks, two refuse late":          {ranks: 3, chunks: 1, collectives: 2, slots: 3, ahead: 2, refuses: 3},
		"ring of 3, one refuses late, one gives up":    {ranks: 2, chunks: 1, collectives: 2, slots: 3, ahead: 2, refuses: 1, leaves: 2},
		"ring of 2, 3 ranks":                           {ranks: 3, chunks: 1, collectives: 3, slots: 2, ring: true},
		"ring of 3, 2 ranks, 2 ahead, one gives up":    {ranks: 2, chunks: 1, collectives: 3, slots: 3, ahead: 2, leaves: 1, givesUp: 1},
		"ring of 2, 2 ranks":                           {ranks: 2, chunks: 2, collectives: 4, slots: 2, ring: true},
		"ring of 3, 2 ranks, 2 ahead, and late thread": {ranks: 2, chunks: 1, collectives: 4, slots: 3, ahead: 2, helper: true},
	} {
		t.Run(name, func(t *testing.T) {
			p.order = asWritten
			start := time.Now()
			states, err := p.explore()
			require.NoError(t, err)
			t.Logf("%s: %d states in %v", name, states, time.Since(start).Round(time.Millisecond))
			assert.Greater(t, states, 50)
		})
	}
}

// The explorer finds a weaker order, and every part of the protocol that is left out. The orders for
// which it finds nothing are not needed, because another order does their work; the code keeps the
// stronger one, which costs nothing on x86.
func TestProtocolNeedsItsParts(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	const race, values, ends, waits = "data race", "rank ", "ended in different ways", "wait for ever"
	pair := protocol{ranks: 2, chunks: 1, collectives: 3}
	ring := protocol{ranks: 2, chunks: 1, collectives: 4, slots: 3, ahead: 2}
	giving := protocol{ranks: 2, chunks: 2, collectives: 1, givesUp: 1}
	for _, c := range []struct {
		name   string
		p      protocol
		weaken func(p *protocol)
		want   []string // one of them; none if nothing is wrong
	}{
		{"the announcement is relaxed", pair, func(p *protocol) { p.order.announce = explorer.Relaxed }, []string{race}},
		{"the look at the announcements is relaxed", pair, func(p *protocol) { p.order.poll = explorer.Relaxed }, []string{race}},
		{"done is relaxed", pair, func(p *protocol) { p.order.done = explorer.Relaxed }, []string{race}},
		{"the look at the chunks is relaxed", pair, func(p *protocol) { p.order.look = explorer.Relaxed }, []string{race}},
		{"one slot without a ring", pair, func(p *protocol) { p.slots = 1 }, []string{race, values, waits}},
		{"the claim is relaxed", pair, func(p *protocol) { p.order.claim, p.order.claimed = explorer.Relaxed, explorer.Relaxed }, nil},
		{"closing a slot is relaxed", protocol{ranks: 2, chunks: 1, collectives: 2, leaves: 1}, func(p *protocol) { p.order.closing = explorer.Relaxed }, nil},

		{"finished is relaxed", ring, func(p *protocol) { p.order.finish = explorer.Relaxed }, []string{race}},
		{"the look at finished is relaxed", ring, func(p *protocol) { p.order.passing = explorer.Relaxed }, []string{race}},
		{"nobody looks at finished", ring, func(p *protocol) { p.noFinished = true }, []string{race, values, waits}},

		{"no sequence in the words, a late thread", pair, func(p *protocol) { p.unsequenced, p.helper = true, true }, []string{race, values}},
		{"who gives up does not wait", giving, func(p *protocol) { p.hasty = true }, []string{race}},
		{"the owner of a chunk overrules who has left it", protocol{ranks: 2, chunks: 2, collectives: 1, givesUp: 1, abandons: 1},
			func(p *protocol) { p.overrules = true }, []string{ends}},
		{"who gives up closes the next slot in any case", protocol{ranks: 2, chunks: 1, collectives: 2, leaves: 3},
			func(p *protocol) { p.closesTooMuch = true }, []string{ends}},
		{"who gives up closes the next slot of the ring in any case", protocol{ranks: 2, chunks: 1, collectives: 3, slots: 2, ahead: 1, ring: true, leaves: 3},
			func(p *protocol) { p.closesTooMuch = true }, []string{race, values, ends}},
		{"who gives up says so before it has closed anything", protocol{ranks: 2, chunks: 1, collectives: 1, leaves: 1, looks: 2},
			func(p *protocol) { p.saysEarly = true }, []string{"is closed (false), by ranks [0]"}},
		{"who gives up says nothing before it has closed something", protocol{ranks: 2, chunks: 1, collectives: 1, leaves: 1, looks: 2},
			func(p *protocol) { p.saysLate = true }, []string{"is closed (true), by ranks []"}},
		{"who refuses late marks no slot", protocol{ranks: 2, chunks: 1, collectives: 2, slots: 3, ahead: 2, refuses: 1},
			func(p *protocol) { p.refusesAlone = true }, []string{race, values, ends}},
		{"a living rank is buried", pair, func(p *protocol) { p.buriesLiving = true }, []string{race, values, ends}},
		{"a rank works that has counted itself as blind", protocol{ranks: 2, chunks: 1, collectives: 1, blind: 3},
			func(p *protocol) { p.blindWorks = true }, []string{race, values}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.p.order = asWritten
			_, err := c.p.explore()
			require.NoError(t, err, "as written")
			c.weaken(&c.p)
			_, err = c.p.explore()
			if c.want == nil {
				assert.NoError(t, err)
				return
			}
			require.Error(t, err)
			assert.True(t, slices.ContainsFunc(c.want, func(w string) bool { return strings.Contains(err.Error(), w) }), "%v", err)
			assert.NotContains(t, err.Error(), "states", "the exploration was too long")
			t.Log(strings.SplitN(err.Error(), "\n", 2)[0])
		})
	}
}

// The reduction of the explorer leaves nothing out: without it there are more states, and the same
// verdicts.
func TestProtocolWithoutReduction(t *testing.T) {
	for _, p := range []protocol{
		{ranks: 2, chunks: 1, collectives: 2},
		{ranks: 2, chunks: 1, collectives: 1, leaves: 1, givesUp: 1},
		{ranks: 2, chunks: 1, collectives: 2, unsequenced: true, slots: 1, helper: true, ring: true},
		{ranks: 2, chunks: 1, collectives: 4, slots: 3, ahead: 2, noFinished: true},
	} {
		p.order = asWritten
		fewer, err := p.explore()
		p.everything = true
		more, everyErr := p.explore()
		assert.Equal(t, err == nil, everyErr == nil, "%v, %v", err, everyErr)
		if err == nil {
			assert.Greater(t, more, fewer)
		}
	}
}
