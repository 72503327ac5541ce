package coll

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// The usual way comes first. Longer messages are tried where the parts of a call are longer than those messages that come before, and
// where the pieces of all other ranks fit into the scratch memory. What an announcement holds is tried elsewhere unless it has a root.
func TestWaysOfACall(t *testing.T) {
	withUsualLeast(t)
	before := levelBytes
	levelBytes = 16 << 20
	t.Cleanup(func() { levelBytes = before })
	const kib, short, long, longest = int64(1 << 10), ", 60 KiB x 12", ", 256 KiB x 6", ", 1024 KiB x 4"
	const levels, whole = "levels", "levels by doubling"
	two, three, rails := Sig{Size: 2, Nodes: 2}, Sig{Size: 3, Nodes: 3}, Sig{Size: 4, Nodes: 2, Rails: 2}
	nodes := Sig{Size: 6, Nodes: 3, Rails: 2}
	forced, switchedOff := two, two
	forced.Forced, _ = ParseForced("all_reduce:slices")
	switchedOff.Forced = WithoutTuning
	for _, c := range []struct {
		of    Sig
		code  op.Code
		dtype op.DType
		bytes int64
		want  []string
	}{
		{two, op.AllReduce, op.Float32, leastWays - 4, nil},
		{two, op.AllReduce, op.Float32, leastWays, []string{"inline", "doubling" + short, "slices" + short}},
		{two, op.AllReduce, op.Float32, 60 * kib, []string{"doubling" + short, "slices" + short}},
		{two, op.AllReduce, op.Float32, 60*kib + 4, []string{"doubling" + short, "doubling" + long, "slices" + short}},
		{two, op.AllReduce, op.Float32, 512 * kib, []string{"doubling" + short, "doubling" + long, "doubling" + longest, "slices" + short, "slices" + long}},
		{two, op.AllReduce, op.BFloat16, 512 * kib, []string{"doubling" + short, "doubling" + long, "doubling" + longest, "slices" + short, "slices" + long}},
		{two, op.AllGather, op.Float32, leastWays, []string{"inline", "slices" + short}},
		{two, op.AllGather, op.Float32, 128 * kib, []string{"inline", "slices" + short, "slices" + long}},
		{two, op.AllGather, op.Float32, 512 * kib, []string{"slices" + short, "slices" + long}},
		{two, op.ReduceScatter, op.Float32, 32 * kib, []string{"inline", "slices" + short}}, // of which half goes to the other rank
		{two, op.ReduceScatter, op.Float32, 128 * kib, []string{"slices" + short, "slices" + long}},
		{two, op.Broadcast, op.Float32, 256 * kib, nil},
		{two, op.Broadcast, op.Float32, 4096 * kib, []string{"slices" + short, "slices" + long, "slices" + longest}},
		{two, op.Reduce, op.Float32, 16 * kib, nil},
		{two, op.Reduce, op.Float32, 512 * kib, []string{"slices" + short, "slices" + long, "slices" + longest}},
		{three, op.Broadcast, op.Float32, 4096 * kib, nil},
		{three, op.AllReduce, op.Float32, leastWays, []string{"inline", "slices" + short}},
		{three, op.AllReduce, op.Float32, 3072 * kib, []string{"slices" + short, "slices" + long, "slices" + longest}},
		{three, op.AllReduce, op.BFloat16, 3072 * kib, []string{"slices" + short, "slices" + long}}, // its sums are twice as long
		{rails, op.AllReduce, op.Float32, 60 * kib, nil},
		{rails, op.ReduceScatter, op.Float32, 128 * kib, []string{"leaders", levels + short}},
		{rails, op.Reduce, op.Float32, 128 * kib, []string{"leaders", levels + short}},
		{rails, op.AllGather, op.Float32, 512 * kib, []string{"inline", levels + short, levels + long}},
		{rails, op.AllReduce, op.Float32, 64 * kib, []string{"leaders", levels + short, whole + short}},
		{rails, op.AllReduce, op.Float32, 1024 * kib, []string{levels + short, levels + long, whole + short, whole + long, whole + longest}},
		{rails, op.AllReduce, op.Float32, 64 << 20, []string{levels + short, levels + long, levels + longest, whole + short, whole + long, whole + longest}},
		{rails, op.ReduceScatter, op.Float32, 64 << 20, []string{levels + short, levels + long, levels + longest}},
		{nodes, op.AllReduce, op.Float32, 1024 * kib, []string{levels + short, levels + long}},
		{Sig{Size: 2, Nodes: 1}, op.AllReduce, op.Float32, 512 * kib, nil},
		{forced, op.AllReduce, op.Float32, 512 * kib, nil},
		{switchedOff, op.AllReduce, op.Float32, 512 * kib, nil},
	} {
		s := c.of
		s.Code, s.DType, s.Reduce, s.Count = c.code, c.dtype, op.Sum, c.bytes/int64(c.dtype.Size())
		if s.Trait().Shares != op.NoShares {
			s.Count /= int64(s.Size)
		}
		ways := waysOf(&s, arrive.Rooms{Payload: 16 << 10, Gathered: 128 << 10, Alone: 256 << 10, Sum: 128 << 10})
		assert.Equal(t, c.want, ways.Names, "%s of %d bytes of %s on %d ranks", c.code, c.bytes, c.dtype, s.Size)
		for i, way := range ways.List {
			assert.True(t, strings.HasPrefix(ways.Names[i], way.Name))
		}
		if c.want != nil {
			assert.Equal(t, c.dtype == op.BFloat16 && c.code != op.AllGather, ways.Class.Half)
		}
	}
}

// A tensor travels with the announcement only where that is the way.
func TestWhatAWayAnnounces(t *testing.T) {
	all := Even | Inline | arrive.Summed
	assert.Equal(t, Even|Inline, Way{Algorithm: &inline}.Announces(all))
	assert.Equal(t, Even|arrive.Summed, Way{Algorithm: &leaders}.Announces(all))
	assert.Equal(t, Even, Way{Algorithm: &allReduceSlices}.Announces(all))
}

// Leaders sum up what fits into their memory, of the sums: those of 16-bit floats are twice as long as the tensors.
func TestWhatIsForLeaders(t *testing.T) {
	const sums = 128 << 10
	slices, err := ParseForced("all_reduce:slices")
	assert.NoError(t, err)
	own, err := ParseForced("all_reduce:leaders")
	assert.NoError(t, err)
	usual := Sig{Code: op.AllReduce, DType: op.Float32, Reduce: op.Sum, Count: sums / 4, Size: 4, Nodes: 2, Rails: 2}
	for what, c := range map[string]struct {
		change func(s *Sig)
		want   bool
	}{
		"what fits":         {func(*Sig) {}, true},
		"one more":          {func(s *Sig) { s.Count++ }, false},
		"16 bits":           {func(s *Sig) { s.DType = op.BFloat16 }, true},
		"one more of those": {func(s *Sig) { s.DType = op.BFloat16; s.Count++ }, false},
		"nothing":           {func(s *Sig) { s.Count = 0 }, false},
		"several tensors":   {func(s *Sig) { s.Code = op.AllReduceCoalesced }, true},
		"of one rank":       {func(s *Sig) { s.Code = op.Reduce }, true},
		"shares":            {func(s *Sig) { s.Code, s.Count = op.ReduceScatter, s.Count/2 }, true}, // half of them cross the wire
		"one share more":    {func(s *Sig) { s.Code, s.Count = op.ReduceScatter, s.Count/2+1 }, false},
		"uneven nodes":      {func(s *Sig) { s.Code, s.Count, s.Size, s.Rails = op.ReduceScatter, s.Count/3+1, 3, 1 }, false},
		"of three nodes":    {func(s *Sig) { s.Nodes, s.Size, s.Code = 3, 6, op.Reduce }, false},
		"for all of three":  {func(s *Sig) { s.Nodes, s.Size = 3, 6 }, true},
		"another operation": {func(s *Sig) { s.Code = op.Broadcast }, false},
		"no rails":          {func(s *Sig) { s.Rails = 0 }, false},
		"switched off":      {func(s *Sig) { s.Forced = WithoutLevels }, false},
		"another is forced": {func(s *Sig) { s.Forced = slices }, false},
		"it is forced":      {func(s *Sig) { s.Forced = own }, true},
	} {
		s := usual
		c.change(&s)
		assert.Equal(t, c.want, s.byLeaders(arrive.Rooms{Sum: sums, Alone: 2 * sums}), what)
	}
}
