package coll

import (
	"fmt"
	"math/rand"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// scattered puts data into tensors of one allocation, in a random order and some of them with gaps
// between them, so that some sides are one range and some begin in the middle of a cache line.
func (s *rankCall) scattered(rng *rand.Rand, data [][]byte) ([]Part, []*tensor) {
	if rng.Intn(4) == 0 {
		return s.lay(true, data)
	}
	if rng.Intn(3) == 0 {
		return s.lay(false, data)
	}
	order := rng.Perm(len(data))
	if rng.Intn(2) == 0 {
		for i := range order {
			order[i] = i // in a row
		}
	}
	var all []byte
	at := make([]int, len(data))
	for _, i := range order {
		if rng.Intn(3) == 0 {
			all = append(all, noise(rng, s.args.DType, rng.Intn(20))...)
		}
		at[i] = len(all)
		all = append(all, data[i]...)
	}
	x := s.tensor(all)
	parts, views := make([]Part, len(data)), make([]*tensor, len(data))
	for i := range data {
		parts[i] = s.part(x, at[i]/s.args.DType.Size(), len(data[i])/s.args.DType.Size())
		views[i] = &tensor{want: all[at[i] : at[i]+len(data[i])]}
	}
	return parts, views
}

// fill sets what the tensors of scattered must hold at the end.
func fill(tensors []*tensor, data [][]byte) {
	if tensors[0].block != nil {
		wants(tensors, data)
		return
	}
	for i, x := range tensors {
		copy(x.want, data[i])
	}
}

// lengthsOfShares returns n random lengths, some of them 0.
func lengthsOfShares(rng *rand.Rand, n, turn int) []int {
	choices := []int{0, 1, 2, 3, 5, 8, 16, 17, 31, 32, 33, 64, 100, 1000, 4095, 4096, 4097}
	list := make([]int, n)
	for i := range list {
		if list[i] = choices[rng.Intn(len(choices))]; turn%3 == 0 {
			list[i] %= 40
		}
	}
	return list
}

// listCall makes the calls of an operation on lists of tensors whose shares have random lengths. It
// returns the lengths, and whether they are all alike.
func (w *fakeWorld) listCall(rng *rand.Rand, a *Args, turn int) (make func() []*rankCall, alike bool) {
	size := len(w.libs)
	shares := lengthsOfShares(rng, size, turn)
	if t := a.Trait(); t.Shares == op.Alike || turn%5 == 0 {
		for i := range shares {
			shares[i] = shares[0]
		}
	}
	alike = true
	for _, n := range shares {
		alike = alike && n == shares[0]
	}
	a.Count = int64(shares[0])
	switch a.Code {
	case op.AllReduceCoalesced:
		shares, alike = lengthsOfShares(rng, 1+rng.Intn(7), turn), true
		a.Count = int64(sum(shares))
		return func() []*rankCall { return w.coalesced(rng, *a, shares, (*rankCall).scattered) }, true
	case op.ReduceScatter:
		if !alike {
			a.Count = 0
		}
		return func() []*rankCall { return w.scatteredReduction(rng, *a, shares) }, alike
	case op.AllToAll:
		count := func(from, to int) int { return shares[(from*3+to)%size] }
		if !alike {
			a.Count = -1
		}
		return func() []*rankCall { return w.exchange(rng, *a, count) }, alike
	}
	if !alike {
		a.Count = 0
	}
	return func() []*rankCall { return w.moveLists(rng, *a, shares) }, alike
}

// coalesced makes the calls of an all_reduce_coalesced. lay places the tensors of a rank.
func (w *fakeWorld) coalesced(rng *rand.Rand, a Args, counts []int, lay func(*rankCall, *rand.Rand, [][]byte) ([]Part, []*tensor)) []*rankCall {
	calls := w.calls(a)
	parts := contributions(rng, a.DType, len(calls), sum(counts))
	want := cut(a.DType, encode(a.DType, folded(a.Reduce, a.DType, parts, a.Scale)), counts)
	for r, s := range calls {
		var outs []*tensor
		s.args.Recv, outs = lay(s, rng, cut(a.DType, encode(a.DType, parts[r]), counts))
		if len(s.args.Recv) != len(counts) { // there are as many tensors on every rank
			s.args.Recv = s.cut(outs[0], counts)
		}
		fill(outs, want)
	}
	return calls
}

// apart places every tensor by itself.
func apart(s *rankCall, _ *rand.Rand, data [][]byte) ([]Part, []*tensor) { return s.lay(false, data) }

// cut views a tensor as consecutive parts.
func (s *rankCall) cut(x *tensor, counts []int) (parts []Part) {
	at := 0
	for _, n := range counts {
		parts = append(parts, s.part(x, at, n))
		at += n
	}
	return parts
}

func (w *fakeWorld) scatteredReduction(rng *rand.Rand, a Args, shares []int) []*rankCall {
	calls := w.calls(a)
	parts := contributions(rng, a.DType, len(calls), sum(shares))
	want := cut(a.DType, encode(a.DType, folded(a.Reduce, a.DType, parts, a.Scale)), shares)
	for r, s := range calls {
		s.args.Send = s.listed(rng, cut(a.DType, encode(a.DType, parts[r]), shares), nil)
		x := s.tensor(noise(rng, a.DType, shares[r]))
		x.want, s.args.Recv = want[r], []Part{x.Part}
	}
	return calls
}

// listed makes a side with a share for every rank. It is a list unless all shares have one length.
func (s *rankCall) listed(rng *rand.Rand, data, want [][]byte) []Part {
	parts, tensors := s.scattered(rng, data)
	if want != nil {
		fill(tensors, want)
	}
	var counts []int
	alike := true
	for _, d := range data {
		counts, alike = append(counts, len(d)/s.args.DType.Size()), alike && len(d) == len(data[0])
	}
	if len(parts) == 1 && !alike {
		return s.cut(tensors[0], counts)
	}
	return parts
}

func (w *fakeWorld) exchange(rng *rand.Rand, a Args, count func(from, to int) int) []*rankCall {
	calls := w.calls(a)
	sent := make([][][]byte, len(calls))
	for from := range calls {
		for to := range calls {
			sent[from] = append(sent[from], noise(rng, a.DType, count(from, to)))
		}
	}
	for r, s := range calls {
		var got, junk [][]byte
		for from := range calls {
			got = append(got, sent[from][r])
			junk = append(junk, noise(rng, a.DType, count(from, r)))
		}
		s.args.Send = s.listed(rng, sent[r], nil)
		s.args.Recv = s.listed(rng, junk, got)
	}
	return calls
}

func (w *fakeWorld) moveLists(rng *rand.Rand, a Args, shares []int) []*rankCall {
	calls := w.calls(a)
	data, junk := [][]byte{}, [][]byte{}
	for _, n := range shares {
		data, junk = append(data, noise(rng, a.DType, n)), append(junk, noise(rng, a.DType, n))
	}
	for r, s := range calls {
		if a.Code == op.Scatter {
			if r == a.Root {
				s.args.Send = s.listed(rng, data, nil)
			}
			x := s.tensor(junk[r])
			x.want, s.args.Recv = data[r], []Part{x.Part}
			continue
		}
		s.args.Send = []Part{s.tensor(data[r]).Part}
		if a.Code == op.AllGather || r == a.Root {
			s.args.Recv = s.listed(rng, junk, data)
		}
	}
	return calls
}

// Random calls whose tensors lie anywhere in the heaps, with shares of random lengths.
func TestListsOnANode(t *testing.T) {
	codes := []op.Code{op.AllReduceCoalesced, op.ReduceScatter, op.AllGather, op.Gather, op.Scatter, op.AllToAll}
	dtypes := []op.DType{op.Float32, op.BFloat16, op.UInt8, op.Complex128, op.Float64}
	for _, size := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newWorld(size)
			inSlots := 0
			for turn := range 600 {
				rng := rand.New(rand.NewSource(int64(size*10_000 + turn)))
				a := Args{Sig: Sig{Code: codes[turn%len(codes)], DType: dtypes[turn%len(dtypes)], Root: rng.Intn(size)}}
				if a.Trait().Reduces {
					a.Reduce = op.Sum
				}
				calls, alike := w.listCall(rng, &a, turn)
				if w.bothOnNode(t, fmt.Sprintf("turn %d, %s", turn, what(a, size, "of lists")), signature(a, size, alike), turn, calls) {
					inSlots++
				}
			}
			assert.Greater(t, inSlots, 60)
		})
	}
}

// A list that is too long for the slot lies in the heap. The memory is given back.
func TestAnIndexInTheHeap(t *testing.T) {
	const most = (payloadRoom - int(headBytes)) / int(rangeBytes)
	for _, n := range []int{most - 1, most, most + 1, 5 * most} {
		w := newWorld(2)
		rng := rand.New(rand.NewSource(int64(n)))
		counts := make([]int, n)
		for i := range counts {
			counts[i] = 20 + rng.Intn(9)
		}
		a := Args{Sig: Sig{Code: op.AllReduceCoalesced, DType: op.Float32, Reduce: op.Sum, Count: int64(sum(counts))}}
		sig := signature(a, 2, true)
		sig.Agreed |= Mapped
		_, before, _ := heapOf(0).Sizes()
		make := func() []*rankCall {
			calls := w.coalesced(rng, a, counts, apart)
			for r, s := range calls {
				places, ok := Place(&s.args, heapOf(r))
				require.True(t, ok)
				assert.Equal(t, n > most, places.index != nil, "%d tensors", n)
				assert.Equal(t, n > most, places.Payload().Bytes == indexBytes)
				places.Free()
			}
			return calls
		}
		require.True(t, w.check(t, fmt.Sprintf("%d tensors", n), &mapped, blocking, sig, make))
		_, after, _ := heapOf(0).Sizes()
		assert.Equal(t, before, after, "%d tensors", n)
	}
}

// So many ranks have so little room in a slot that a list with a tensor for each rank does not fit.
func TestListsOfManyRanks(t *testing.T) {
	const size = 60
	w := newWorld(size)
	rng := rand.New(rand.NewSource(1))
	shares := lengthsOfShares(rng, size, 0)
	for i, code := range []op.Code{op.AllGather, op.ReduceScatter, op.Scatter, op.Gather} {
		a := Args{Sig: Sig{Code: code, DType: op.Float32, Root: 7}}
		alike := a.Trait().Shares == op.Alike
		if a.Trait().Reduces {
			a.Reduce = op.Sum
		}
		if alike {
			shares = even(size, 30)
			a.Count = 30
		}
		sig := signature(a, size, alike)
		sig.Agreed |= Mapped
		make := func() []*rankCall {
			rng := rand.New(rand.NewSource(int64(i)))
			if a.Trait().Reduces {
				return w.scatteredReduction(rng, a, shares)
			}
			return w.moveLists(rng, a, shares)
		}
		require.True(t, w.check(t, code.String(), &mapped, blocking, sig, make))
	}
	// The lengths of an all_to_all must be in the slots.
	w.inHeap = true
	s := w.calls(Args{Sig: Sig{Code: op.AllToAll, DType: op.UInt8, Count: -1}})[3]
	s.args.Send, _ = s.lay(false, cut(op.UInt8, make([]byte, sum(shares)+size), append(even(size-1, 30), 30+size)))
	s.args.Recv, _ = s.lay(false, cut(op.UInt8, make([]byte, sum(shares)), shares))
	_, ok := Place(&s.args, s.heap)
	assert.False(t, ok)
	for _, x := range s.tensors {
		x.free()
	}
}

// All ranks return the same error as where the lengths go by MPI.
func TestMappedAllToAllOfLengthsThatDoNotMatch(t *testing.T) {
	lengthsThatDoNotMatch(t, &mapped, true)
}

// What the payloads of other ranks say is checked before it is used: a list that does not fit the call
// names the rank that told it, and one of memory that is not there leaves the work to the others.
func TestPlacesOfOthersAreChecked(t *testing.T) {
	type list struct {
		rangesHead
		places [4]heapRange
	}
	const bytes = headBytes + 2*rangeBytes
	for what, c := range map[string]struct {
		spoil func(l *list)
		bytes int64
		blind bool
	}{
		"as it is":                {func(l *list) {}, bytes, false},
		"a range beyond the heap": {func(l *list) { l.places[0].Offset += 1 << 40 }, bytes, true},
		"a range of no segment":   {func(l *list) { l.places[1].Generation += 1 << 40 }, bytes, true},
		"too many elements":       {func(l *list) { l.places[0].Count++ }, bytes, false},
		"fewer than none":         {func(l *list) { l.places[0].Count, l.places[1].Count = -1, 41 }, bytes, false},
		"more than any memory":    {func(l *list) { l.places[1].Count = 1 << 62 }, bytes, false},
		"a list that is shorter":  {func(l *list) { l.out = 1 }, bytes, false},
		"a list that is longer":   {func(l *list) { l.out = 4 }, headBytes + 4*rangeBytes, false},
		"less than none":          {func(l *list) { l.out = -1 }, bytes, false},
		"an input of its own":     {func(l *list) { l.in = 2 }, bytes, false},
		"nothing":                 {func(l *list) {}, 0, false},
		"half of a range":         {func(l *list) {}, bytes - 8, false},
		"an index of no segment":  {func(l *list) { l.places[0].Generation += 1 << 40 }, indexBytes, true},
		"an index of nothing":     {func(l *list) { l.in, l.out = 0, 0 }, indexBytes, false},
		"an index that was freed": {func(l *list) { l.places[1].Count = 7 }, indexBytes, true},
	} {
		w := newWorld(2)
		w.inHeap = true
		node := w.ofNode()
		node.seq++
		a := Args{Sig: Sig{Code: op.AllReduceCoalesced, DType: op.UInt8, Reduce: op.Sum, Count: 40, Agreed: Even | Mapped}}
		calls := w.calls(a)
		for r, s := range calls {
			s.args.Recv, _ = s.lay(false, [][]byte{make([]byte, 10), make([]byte, 30)})
			s.args.Node, s.args.Seq = node.ranks[r], node.seq
			places, ok := Place(&s.args, s.heap)
			require.True(t, ok)
			told := &list{rangesHead: places.told.rangesHead, places: [4]heapRange{places.told.few[0], places.told.few[1]}}
			payload := arrive.Payload{Data: unsafe.Pointer(told), Bytes: bytes}
			if r == 1 {
				payload.Bytes = c.bytes
				if c.bytes == indexBytes {
					x := newTensorIn(s.heap, op.UInt8, make([]byte, 2*rangeBytes)) // all zero: it was freed
					defer x.free()
					told.places[0].Location, ok = s.heap.Find(x.Data, 2*rangeBytes)
					require.True(t, ok)
				}
				c.spoil(told)
			}
			_, _, err := s.args.Node.Slots.Announce(node.seq, &arrive.Signature{1}, s.args.Agreed, payload, 0)
			require.NoError(t, err)
			for _, x := range s.tensors {
				defer x.free()
			}
		}
		o, err := mapped.shared(&calls[0].args)
		if what == "as it is" || c.blind {
			require.NoError(t, err, what)
			assert.Equal(t, c.blind, o.IsBlind(), what)
			if c.blind {
				assert.Zero(t, o.Work(shm.All), what)
			}
			o.Free()
			continue
		}
		var bad *NotAsAgreed
		require.ErrorAs(t, err, &bad, what)
		assert.Equal(t, 1, bad.Member, what)
	}
}

// A rank that comes when the others have done all the work may find that memory was freed meanwhile. It
// sees that everything is done.
func TestAnIndexThatIsGone(t *testing.T) {
	const size, n = 2, 400
	w := newWorld(size)
	w.inHeap = true
	node := w.ofNode()
	node.seq++
	rng := rand.New(rand.NewSource(3))
	a := Args{Sig: Sig{Code: op.AllReduceCoalesced, DType: op.Int32, Reduce: op.Sum, Agreed: Even | Mapped}}
	counts := even(n, 5)
	a.Count = int64(sum(counts))
	calls := w.coalesced(rng, a, counts, apart)
	var places [size]Places
	for r, s := range calls {
		s.args.Node, s.args.Seq = node.ranks[r], node.seq
		var ok bool
		places[r], ok = Place(&s.args, s.heap)
		require.True(t, ok)
		_, _, err := s.args.Node.Slots.Announce(node.seq, &arrive.Signature{1}, s.args.Agreed, places[r].Payload(), 0)
		require.NoError(t, err)
	}
	o, err := mapped.shared(&calls[0].args)
	require.NoError(t, err)
	o.Work(shm.All)
	require.Equal(t, shm.Done, o.State(0))
	o.Free()
	clear(unsafe.Slice((*heapRange)(places[0].index), n))
	places[0].Free()
	late, err := mapped.shared(&calls[1].args)
	require.NoError(t, err)
	assert.Zero(t, late.Work(shm.All))
	assert.Equal(t, shm.Done, late.State(0))
	late.Free()
	places[1].Free()
	for r, s := range calls {
		for _, x := range s.tensors {
			x.check(t, "a late rank", r)
		}
	}
}
