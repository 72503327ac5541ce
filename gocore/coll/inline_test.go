package coll

import (
	"fmt"
	"math/rand"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/segment"
)

// fakeNode is what the ranks of a fakeWorld share. Its collectives run one after another.
type fakeNode struct {
	seq   uint64
	ranks []*Node
}

// ofNode returns the node of all ranks. Its control slots stay mapped until the tests end.
func (w *fakeWorld) ofNode() *fakeNode {
	if w.node == nil {
		n := len(w.libs)
		file, err := segment.New("paddlempi-test", arrive.ControlSlotsSize(n))
		if err != nil {
			panic(err)
		}
		defer file.Close()
		w.node = &fakeNode{}
		for i := range n {
			slots, err := arrive.NewControlSlots(file, n, i)
			if err != nil {
				panic(err)
			}
			slots.YieldEvery(8)
			w.node.ranks = append(w.node.ranks, &Node{Slots: slots, Heaps: viewed{}})
		}
	}
	return w.node
}

// fakeHeaps are the heaps of the ranks, and views of them. A heap reserves 64 MiB, so several ranks
// share one. They stay until the tests end.
var fakeHeaps [3]struct {
	once sync.Once
	own  *heap.Heap
	view *heap.View
}

func heapOf(rank int) *heap.Heap {
	h := &fakeHeaps[rank%len(fakeHeaps)]
	h.once.Do(func() {
		var err error
		if h.own, err = heap.New(); err != nil {
			panic(err)
		}
		if h.view, err = heap.Open(h.own.Address()); err != nil {
			panic(err)
		}
	})
	return h.own
}

// viewed are the heaps of the ranks.
type viewed struct{}

func (viewed) Reach(member int, l heap.Location, bytes int64) (unsafe.Pointer, error) {
	return fakeHeaps[member%len(fakeHeaps)].view.At(l, bytes)
}

func (viewed) Read(member int, l heap.Location, to []byte) error {
	return fakeHeaps[member%len(fakeHeaps)].view.Read(l, to)
}

func (viewed) Acquire(member int, l heap.Location, bytes int64) (heap.Ref, error) {
	return fakeHeaps[member%len(fakeHeaps)].view.Acquire(l, bytes)
}

// unmapped are heaps that this process cannot map.
type unmapped struct{ viewed }

func (unmapped) Reach(int, heap.Location, int64) (unsafe.Pointer, error) {
	return nil, fmt.Errorf("refused")
}

// onNode tells whether an algorithm needs a node and not MPI.
func onNode(alg *Algorithm) bool { return alg.atOnce != nil || alg.shared != nil }

// flagOf returns the flag by which the members agree on an algorithm of a node, 0 for other
// algorithms.
func flagOf(alg *Algorithm) arrive.Flags {
	switch alg {
	case &inline:
		return Inline
	case &mapped:
		return Mapped
	case &bounced, &allToAllUnevenBounce:
		return ForBounce
	case &copiedByCMA, &allToAllUnevenByCMA:
		return ForBounce | ForCMA
	}
	return 0
}

// fakePayloads has the room of the control slots of a number of members, before the call has any.
type fakePayloads int

func (n fakePayloads) Rooms() arrive.Rooms {
	room := arrive.PayloadRoom(int(n))
	return arrive.Rooms{Payload: room, Gathered: room, Alone: room}
}
func (fakePayloads) Payload(uint64, int) (unsafe.Pointer, int64) { panic("nothing was announced") }

// suitsNode tells whether this rank would announce the flag of alg for the call.
func suitsNode(alg *Algorithm, s *rankCall) (ok bool) {
	switch alg {
	case &inline:
		_, _, ok = Payload(&s.args, s.args.Agreed)
	case &mapped:
		var places Places
		places, ok = Place(&s.args, s.heap)
		places.Free()
	case &copiedByCMA, &allToAllUnevenByCMA:
		ok = separate(&s.args)
	default:
		ok = true
	}
	return ok
}

// one carries a call out as rank. The blocking form does all the work that it can claim at once,
// the polled form a chunk at a time.
func (f *fakeNode) one(alg *Algorithm, how form, rank int, s *rankCall) error {
	a := &s.args
	a.Node, a.Payloads, a.Seq = f.ranks[rank], f.ranks[rank].Slots, f.seq
	payload, free, err := payloadOf(alg, s)
	if err != nil {
		return err
	}
	defer free()
	slots := a.Node.Slots
	sig := arrive.Signature{1, uint64(a.Count)}
	state, _, err := slots.Announce(f.seq, &sig, a.Agreed, payload, 10)
	for state == arrive.Pending && err == nil {
		runtime.Gosched()
		state, _, err = slots.Poll(10)
	}
	if err != nil || state != arrive.Agreed {
		return fmt.Errorf("the arrival ended with %d: %v", state, err)
	}
	if alg.atOnce != nil {
		return alg.atOnce(a, nil)
	}
	o, err := alg.shared(a)
	if err != nil {
		return err
	}
	defer o.Free()
	most := shm.All
	if how == polled {
		most = 1
	}
	over := shm.Pending
	for over == shm.Pending {
		o.Work(most)
		runtime.Gosched()
		over = o.State(10)
	}
	if over != shm.Done {
		return fmt.Errorf("the chunks ended with %d", over)
	}
	return nil
}

// payloadOf returns what this rank puts into its slot, as package group does.
func payloadOf(alg *Algorithm, s *rankCall) (payload arrive.Payload, free func(), err error) {
	if alg == &mapped {
		at, ok := Place(&s.args, s.heap)
		if !ok {
			return payload, nil, fmt.Errorf("not in the heap")
		}
		// The control slots copy the payload, but not before the caller announces it: it must not move.
		places := &at
		return places.Payload(), places.Free, nil
	}
	parts, n, ok := Payload(&s.args, s.args.Agreed)
	if !ok {
		return payload, nil, fmt.Errorf("no payload")
	}
	block, err := mem.Alloc(max(n, 1))
	if err != nil {
		return payload, nil, err
	}
	to := block
	for _, part := range parts {
		mem.Copy(to, part.Data, part.Count*s.args.elem())
		to = s.args.at(to, part.Count)
	}
	return arrive.Payload{Data: block, Bytes: n}, func() { mem.Free(block) }, nil
}

// nodeSizes are the numbers of ranks of the sweeps, and sweepLengths counts of elements around
// vectors, cache lines, and the longest payload.
var nodeSizes = []int{1, 2, 3, 4, 5, 8}

// payloadRoom is the longest payload of few ranks.
const payloadRoom = 4 << 10

func sweepLengths(d op.DType, turn int) []int {
	var list []int
	for n := range 18 {
		list = append(list, n)
	}
	list = append(list, 31, 32, 33, 63, 64, 65)
	// The long ones take turns.
	long := []int{4095, 4096, 4097, payloadRoom/d.Size() - 1, payloadRoom / d.Size(), payloadRoom/d.Size() + 1}
	return append(list, long[turn%len(long)])
}

// bothOnNode carries out a call with both algorithms of a node. mapped must serve it.
func (w *fakeWorld) bothOnNode(t *testing.T, what string, sig *Sig, turn int, make func() []*rankCall) (wasInline bool) {
	t.Helper()
	how := forms[turn%len(forms)]
	with := *sig
	with.Agreed |= Inline
	wasInline = w.check(t, what, &inline, how, &with, make)
	with = *sig
	with.Agreed |= Mapped
	require.True(t, w.check(t, what, &mapped, how, &with, make), "%s: not mapped", what)
	return wasInline
}

func TestSweepOfReductionsOnANode(t *testing.T) {
	for _, size := range nodeSizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newWorld(size)
			rng := rand.New(rand.NewSource(int64(size)))
			turn, inSlots := 0, 0
			for d := op.DType(1); d <= lastDType; d++ {
				for r := op.ReduceOp(1); r <= lastReduceOp; r++ {
					if !op.Defined(r, d) {
						continue
					}
					turn++
					for i, n := range sweepLengths(d, turn) {
						turn := turn + i
						a := Args{Sig: Sig{DType: d, Reduce: r, Count: int64(n), Root: rng.Intn(size),
							Code: []op.Code{op.AllReduce, op.Reduce, op.ReduceScatter}[turn%3]}, Scale: 0.5}
						place := places[turn/3%3]
						if a.Code == op.ReduceScatter {
							place = "out of place"
						}
						if w.bothOnNode(t, what(a, size, r.String()+" "+place), signature(a, size, true), turn/2, func() []*rankCall {
							return w.reduction(rng, a, place, n)
						}) {
							inSlots++
						}
					}
				}
			}
			assert.Greater(t, inSlots, turn, "the slots served too few calls")
		})
	}
}

// reduction makes the calls of an all_reduce, a reduce or a reduce_scatter.
func (w *fakeWorld) reduction(rng *rand.Rand, a Args, place string, n int) []*rankCall {
	calls := w.calls(a)
	size := len(calls)
	length := n
	if a.Code == op.ReduceScatter {
		length = n * size
	}
	parts := contributions(rng, a.DType, size, length)
	want := encode(a.DType, folded(a.Reduce, a.DType, parts, a.Scale))
	for r, s := range calls {
		switch {
		case a.Code == op.ReduceScatter:
			s.args.Send = []Part{s.tensor(encode(a.DType, parts[r])).Part}
			x := s.tensor(noise(rng, a.DType, n))
			x.want = cut(a.DType, want, even(size, n))[r]
			s.args.Recv = []Part{x.Part}
		case a.Code == op.Reduce && r != a.Root:
			s.args.Send = []Part{s.tensor(encode(a.DType, parts[r])).Part}
		default:
			s.give(rng, place, parts[r]).want = want
		}
	}
	return calls
}

func TestSweepOfMovesOnANode(t *testing.T) {
	codes := []op.Code{op.Broadcast, op.AllGather, op.Gather, op.Scatter, op.AllToAll}
	for _, size := range nodeSizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newWorld(size)
			rng := rand.New(rand.NewSource(int64(size)))
			for d := op.DType(1); d <= lastDType; d++ {
				for i, code := range codes {
					for k, n := range sweepLengths(d, int(d)+i) {
						a := Args{Sig: Sig{DType: d, Count: int64(n), Root: rng.Intn(size), Code: code}}
						w.bothOnNode(t, what(a, size, ""), signature(a, size, true), i+k, func() []*rankCall {
							return w.move(rng, a, n)
						})
					}
				}
			}
		})
	}
}

// move makes the calls of an operation that moves data between separate tensors.
func (w *fakeWorld) move(rng *rand.Rand, a Args, n int) []*rankCall {
	calls := w.calls(a)
	size := len(calls)
	t := a.Trait()
	data := make([][][]byte, size) // what a rank has for each rank
	for r := range data {
		for range size {
			data[r] = append(data[r], noise(rng, a.DType, n))
		}
	}
	for r, s := range calls {
		var got [][]byte
		switch a.Code {
		case op.Broadcast:
			got = [][]byte{data[a.Root][0]}
		case op.Scatter:
			got = [][]byte{data[a.Root][r]}
		case op.AllGather, op.Gather:
			for from := range size {
				got = append(got, data[from][0])
			}
		case op.AllToAll:
			for from := range size {
				got = append(got, data[from][r])
			}
		}
		if a.Code == op.Broadcast {
			content := noise(rng, a.DType, n)
			if r == a.Root {
				content = data[r][0]
			}
			x := s.tensor(content)
			s.args.Recv, x.want = []Part{x.Part}, got[0]
			continue
		}
		if t.Gives.Includes(a.Root, r) {
			sent := data[r][:1]
			if t.Send.PerRank() {
				sent = data[r]
			}
			s.args.Send, _ = s.lay(true, sent)
		}
		if t.WritesRecv(a.Root, r) {
			junk := make([][]byte, len(got))
			for i := range junk {
				junk[i] = noise(rng, a.DType, n)
			}
			var outs []*tensor
			s.args.Recv, outs = s.lay(true, junk)
			wants(outs, got)
		}
	}
	return calls
}

// Lengths around those at which the number of chunks changes.
func TestMappedAroundItsChunks(t *testing.T) {
	for _, size := range []int{2, 3} {
		w := newWorld(size)
		rng := rand.New(rand.NewSource(int64(size)))
		turn := 0
		for _, middle := range []int{64, 512, 512 * size, 32 << 10, 64 << 10, size * 64 << 10, size * 96 << 10} {
			for n := middle - 1; n <= middle+1; n++ {
				for _, code := range []op.Code{op.AllReduce, op.ReduceScatter, op.AllGather, op.AllToAll} {
					turn++
					a := Args{Sig: Sig{DType: op.UInt8, Reduce: op.Sum, Count: int64(n), Code: code}}
					w.bothOnNode(t, what(a, size, ""), signature(a, size, true), turn, func() []*rankCall {
						if code == op.AllReduce || code == op.ReduceScatter {
							return w.reduction(rng, a, places[turn%2], n)
						}
						a.Reduce = 0
						return w.move(rng, a, n)
					})
				}
			}
		}
	}
}

// Payload and Place look at what this rank has. What they accept is served as it is.
func TestWhatSuitsASlotAndAHeap(t *testing.T) {
	x := newTensorIn(heapOf(1), op.UInt8, make([]byte, 3*payloadRoom))
	defer x.free()
	other := newTensor(op.UInt8, make([]byte, 64))
	defer other.free()
	at := func(from, n int64) Part { return Part{Data: unsafe.Add(x.Data, from), Count: n} }
	in := func(n int64) Part { return Part{Data: other.Data, Count: n} }
	for _, c := range []struct {
		what       string
		code       op.Code
		root       int
		send, recv []Part
		slot, heap bool
	}{
		{"in place", op.AllReduce, 0, nil, []Part{at(0, 8)}, true, true},
		{"the longest payload", op.AllReduce, 0, nil, []Part{at(0, payloadRoom)}, true, true},
		{"longer", op.AllReduce, 0, nil, []Part{at(0, payloadRoom+1)}, false, true},
		{"ordinary memory", op.AllReduce, 0, nil, []Part{in(8)}, true, false},
		{"an ordinary result", op.AllReduce, 0, []Part{at(0, 8)}, []Part{in(8)}, true, false},
		{"an ordinary input", op.AllReduce, 0, []Part{in(8)}, []Part{at(0, 8)}, true, false},
		{"over the input in part", op.AllReduce, 0, []Part{at(0, 8)}, []Part{at(4, 8)}, true, false},
		{"nothing", op.AllReduce, 0, nil, []Part{{}}, true, true},
		{"no result on this rank", op.Reduce, 0, []Part{at(0, 8)}, nil, true, true},
		{"no input on this rank", op.Scatter, 0, nil, []Part{at(0, 8)}, true, true},
		{"no input, an ordinary result", op.Scatter, 0, nil, []Part{in(8)}, true, false},
		{"in its place", op.AllGather, 0, []Part{at(8, 8)}, []Part{at(0, 16)}, true, true},
		{"in another rank's place", op.AllGather, 0, []Part{at(0, 8)}, []Part{at(0, 16)}, true, false},
		{"in place among shares", op.AllToAll, 0, nil, []Part{at(0, 16)}, false, false},
		{"a list in a row", op.AllGather, 0, []Part{at(100, 8)}, []Part{at(0, 8), at(8, 8)}, true, true},
		{"a list with a gap", op.AllGather, 0, []Part{at(100, 8)}, []Part{at(0, 8), at(16, 8)}, true, true},
		{"a list with an ordinary tensor", op.AllGather, 0, []Part{at(100, 8)}, []Part{at(0, 8), in(8)}, true, false},
		{"a list with a tensor twice", op.AllGather, 0, []Part{at(100, 8)}, []Part{at(0, 8), at(0, 8)}, true, false},
		{"a list over the input", op.AllGather, 0, []Part{at(100, 8)}, []Part{at(0, 8), at(104, 8)}, true, false},
		{"a list with the input in its place", op.AllGather, 0, []Part{at(100, 8)}, []Part{at(0, 8), at(100, 8)}, true, true},
		{"a list that is not in order", op.ReduceScatter, 0, []Part{at(100, 8), at(0, 8)}, []Part{at(40, 8)}, true, true},
		{"a prefix", op.Scan, 0, nil, []Part{at(0, 8)}, false, false},
		{"coalesced", op.AllReduceCoalesced, 0, nil, []Part{at(0, 8)}, true, true},
		{"coalesced, with gaps", op.AllReduceCoalesced, 0, nil, []Part{at(60, 8), at(0, 8), at(20, 0)}, true, true},
		{"coalesced, a tensor in part twice", op.AllReduceCoalesced, 0, nil, []Part{at(60, 8), at(0, 8), at(64, 8)}, true, false},
	} {
		a := Args{Sig: Sig{Code: c.code, DType: op.UInt8, Size: 2, Root: c.root, Count: 8}, Rank: 1, Send: c.send, Recv: c.recv, Payloads: fakePayloads(2)}
		_, _, slot := Payload(&a, Even)
		places, inHeap := Place(&a, heapOf(1))
		places.Free()
		assert.Equal(t, c.slot, slot, "%s, %s: slot", c.code, c.what)
		assert.Equal(t, c.heap, inHeap, "%s, %s: heap", c.code, c.what)
	}
	a := Args{Sig: Sig{Code: op.AllReduce, DType: op.UInt8, Size: 2, Count: 8}, Recv: []Part{at(0, 8)}}
	_, inHeap := Place(&a, heapOf(2))
	assert.False(t, inHeap, "the heap of another rank")
}

// A call that has become a refusal may still be announced, and its caller may have freed its tensors.
func TestAnOfferThatWasFreedTellsNothing(t *testing.T) {
	block, err := mem.Alloc(16)
	require.NoError(t, err)
	defer mem.Free(block)
	inHeap, err := heapOf(0).Alloc(16)
	require.NoError(t, err)
	defer func() { assert.NoError(t, heapOf(0).Free(inHeap)) }()
	for what, c := range map[string]struct {
		parts []Part
		place bool
	}{
		"one part":    {[]Part{{Data: block, Count: 16}}, false},
		"two parts":   {[]Part{{Data: block, Count: 8}, {Data: unsafe.Add(block, 8), Count: 8}}, false},
		"in the heap": {[]Part{{Data: inHeap, Count: 16}}, true},
	} {
		a := Args{Sig: Sig{Code: op.AllReduceCoalesced, DType: op.UInt8, Size: 2, Root: -1, Count: 16}, Recv: c.parts, Payloads: fakePayloads(2)}
		var o Offer
		if c.place {
			var ok bool
			o.places, ok = Place(&a, heapOf(0))
			require.True(t, ok)
		} else {
			flags, err := o.Make(&a, Even, false)
			require.NoError(t, err)
			require.Equal(t, Even|Inline, flags)
		}
		assert.Equal(t, !c.place, o.CarriesInput(), what)
		assert.Positive(t, o.Payload(&a).Bytes, what)
		o.Free(0)
		assert.False(t, o.CarriesInput(), what)
		assert.Equal(t, arrive.Payload{}, o.Payload(&a), what)
		o.Free(0)
	}
}

// Where all ranks know the lengths of all inputs, all have the same answer whether the slots hold them.
func TestWhetherUnevenInputsSuitTheSlots(t *testing.T) {
	for _, c := range []struct {
		code       op.Code
		send, recv []Part
		want       bool
	}{
		{op.AllGather, []Part{{Count: 5}}, []Part{{Count: payloadRoom}, {Count: 5}}, true},
		{op.AllGather, []Part{{Count: 5}}, []Part{{Count: payloadRoom + 1}, {Count: 5}}, false},
		{op.AllGather, []Part{{Count: 0}}, []Part{{Count: 1}, {Count: 0}}, true},
		{op.ReduceScatter, []Part{{Count: payloadRoom - 5}, {Count: 5}}, []Part{{Count: 5}}, true},
		{op.ReduceScatter, []Part{{Count: payloadRoom - 5}, {Count: 6}}, []Part{{Count: 6}}, false},
		{op.AllToAll, []Part{{Count: 1}, {Count: 2}}, []Part{{Count: 1}, {Count: 2}}, false},
	} {
		a := Args{Sig: Sig{Code: c.code, DType: op.UInt8, Size: 2}, Rank: 1, Send: c.send, Recv: c.recv, Payloads: fakePayloads(2)}
		_, _, ok := Payload(&a, 0)
		assert.Equal(t, c.want, ok, "%s %v", c.code, c.send)
	}
}

// A rank that announced another length than it put into its slot is named.
func TestASlotThatHoldsSomethingElse(t *testing.T) {
	for _, alg := range []*Algorithm{&inline, &mapped} {
		w := newWorld(2)
		node := w.ofNode()
		node.seq++
		w.inHeap = true
		calls := w.calls(Args{Sig: Sig{Code: op.AllReduce, DType: op.UInt8, Reduce: op.Sum, Count: 8, Agreed: Even | flagOf(alg)}})
		for r, s := range calls {
			x := s.tensor(make([]byte, 8))
			defer x.free()
			s.args.Recv, s.args.Node, s.args.Seq = []Part{x.Part}, node.ranks[r], node.seq
			payload, free, err := payloadOf(alg, s)
			require.NoError(t, err)
			defer free()
			s.args.Payloads = s.args.Node.Slots
			if r == 1 {
				payload.Bytes--
			}
			_, _, err = s.args.Node.Slots.Announce(node.seq, &arrive.Signature{1}, s.args.Agreed, payload, 0)
			require.NoError(t, err)
		}
		state, _, err := node.ranks[0].Slots.Poll(0)
		require.NoError(t, err)
		require.Equal(t, arrive.Agreed, state)
		if alg.atOnce != nil {
			err = alg.atOnce(&calls[0].args, nil)
		} else {
			_, err = alg.shared(&calls[0].args)
		}
		var bad *NotAsAgreed
		require.ErrorAs(t, err, &bad)
		assert.Equal(t, 1, bad.Member)
	}
}

// If some ranks cannot map a tensor, the others do the work. If no rank can, nothing is done.
func TestMappedWhereTensorsCannotBeMapped(t *testing.T) {
	const size, n = 3, 5000
	for blind := 1; blind < 1<<size; blind++ {
		w := newWorld(size)
		node := w.ofNode()
		rng := rand.New(rand.NewSource(int64(blind)))
		a := Args{Sig: Sig{Code: op.AllReduce, DType: op.Int32, Reduce: op.Sum, Count: n}}
		sig := signature(a, size, true)
		sig.Agreed |= Mapped
		for r, rank := range node.ranks {
			rank.Heaps = viewed{}
			if blind&(1<<r) != 0 {
				rank.Heaps = unmapped{}
			}
		}
		what := fmt.Sprintf("blind %03b", blind)
		if blind != 1<<size-1 {
			require.True(t, w.check(t, what, &mapped, blocking, sig, func() []*rankCall { return w.reduction(rng, a, "in place", n) }))
			continue
		}
		w.inHeap = true
		calls := w.reduction(rng, a, "in place", n)
		for _, s := range calls {
			s.args.Sig = *sig
			x := s.tensors[0]
			x.want = append([]byte{}, x.bytes[guard:len(x.bytes)-guard]...)
		}
		for _, err := range w.carryOut(&mapped, blocking, calls) {
			assert.ErrorContains(t, err, fmt.Sprint(int(shm.Blind)))
		}
		for r, s := range calls {
			s.tensors[0].check(t, what, r)
		}
	}
}
