package coll

import (
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/coll/shm"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// fuzzed is the world of FuzzNote, of two ranks whose tensors are in heaps.
var fuzzed struct {
	once  sync.Once
	world *fakeWorld
}

// shape is a call: the lengths of the tensors of rank 0 and of rank 1, on both sides.
type shape struct {
	code       op.Code
	root       int
	count      int64
	uneven     bool
	send, recv [2][]int
}

var shapes = []shape{
	{op.AllReduce, -1, 1000, false, [2][]int{}, [2][]int{{1000}, {1000}}},
	{op.AllReduce, -1, 1000, false, [2][]int{{1000}, {1000}}, [2][]int{{1000}, {1000}}},
	{op.AllReduceCoalesced, -1, 40, false, [2][]int{}, [2][]int{{10, 30}, {10, 30}}},
	{op.Reduce, 1, 77, false, [2][]int{{77}, {77}}, [2][]int{{}, {77}}},
	{op.ReduceScatter, -1, 500, false, [2][]int{{1000}, {500, 500}}, [2][]int{{500}, {500}}},
	{op.ReduceScatter, -1, 0, true, [2][]int{{10, 700}, {10, 700}}, [2][]int{{10}, {700}}},
	{op.Broadcast, 1, 9000, false, [2][]int{}, [2][]int{{9000}, {9000}}},
	{op.AllGather, -1, 500, false, [2][]int{{500}, {500}}, [2][]int{{1000}, {500, 500}}},
	{op.AllGather, -1, 0, true, [2][]int{{3}, {4000}}, [2][]int{{3, 4000}, {3, 4000}}},
	{op.Gather, 0, 50, false, [2][]int{{50}, {50}}, [2][]int{{50, 50}, {}}},
	{op.Scatter, 1, 50, false, [2][]int{{}, {100}}, [2][]int{{50}, {50}}},
	{op.AllToAll, -1, 50, false, [2][]int{{100}, {100}}, [2][]int{{100}, {50, 50}}},
	{op.AllToAll, -1, 10, true, [2][]int{{10, 600}, {20, 10}}, [2][]int{{10, 20}, {600, 10}}},
}

// make makes the calls of both ranks.
func (s *shape) make(w *fakeWorld) []*rankCall {
	a := Args{Sig: Sig{Code: s.code, DType: op.Int32, Root: s.root, Count: s.count, Agreed: Inline | Mapped}}
	if a.Trait().Reduces {
		a.Reduce = op.Sum
	}
	if !s.uneven {
		a.Agreed |= Even
	}
	calls := w.calls(a)
	for r, c := range calls {
		for _, n := range s.send[r] {
			c.args.Send = append(c.args.Send, c.tensor(make([]byte, 4*n)).Part)
		}
		for _, n := range s.recv[r] {
			c.args.Recv = append(c.args.Recv, c.tensor(make([]byte, 4*n)).Part)
		}
	}
	return calls
}

// FuzzNote has two ranks at a collective, one of which tells what the input says of its tensors, in its slot
// or in an index. The other one carries the collective out, or gets an error that names that rank.
func FuzzNote(f *testing.F) {
	le := binary.LittleEndian
	list := func(in, out int32, words ...uint64) []byte {
		b := le.AppendUint32(le.AppendUint32(nil, uint32(in)), uint32(out))
		for _, w := range words {
			b = le.AppendUint64(b, w)
		}
		return b
	}
	const at, one = 2<<20 + 64, 1 // where tensors begin in a new heap, and its first generation
	for i := range shapes {
		f.Add(byte(i), false, list(inPlace, 1, at, one, 1000))
		f.Add(byte(i), false, list(1, 1, at, one, 1000, at+4096, one, 500))
		f.Add(byte(i), false, list(2, 1, at, one, 30, at, one, 10, at, one, 100))
		f.Add(byte(i), true, list(1, 2, at, one, 1<<62, at, one, 1<<62, at, one, ^uint64(0)))
		f.Add(byte(i), true, list(0, 2, 0, 0, 0, at, one, 40))
	}
	f.Fuzz(func(t *testing.T, kind byte, short bool, told []byte) {
		fuzzed.once.Do(func() { fuzzed.world = newWorld(2); fuzzed.world.inHeap = true })
		w := fuzzed.world
		node := w.ofNode()
		node.seq++
		calls := shapes[int(kind)%len(shapes)].make(w)
		for _, c := range calls {
			for _, x := range c.tensors {
				defer x.free()
			}
		}
		told = told[:min(len(told), int(arrive.PayloadRoom(2)))]
		block, err := mem.Alloc(int64(max(8, len(told))))
		require.NoError(t, err)
		defer mem.Free(block)
		copy(unsafe.Slice((*byte)(block), len(told)), told)
		for r, c := range calls {
			c.args.Node, c.args.Seq = node.ranks[r], node.seq
			payload := arrive.Payload{Data: block, Bytes: int64(len(told))}
			if r == 0 {
				alg := &mapped
				if short {
					alg = &inline
				}
				mine, free, err := payloadOf(alg, c)
				if err != nil {
					return // no call of this kind is inline
				}
				defer free()
				payload = mine
			}
			_, _, err := c.args.Node.Slots.Announce(node.seq, &arrive.Signature{1}, c.args.Agreed, payload, 0)
			require.NoError(t, err)
		}
		a := &calls[0].args
		a.Payloads = a.Node.Slots
		check := func(err error) {
			var bad *NotAsAgreed
			if errors.As(err, &bad) {
				assert.Equal(t, 1, bad.Member)
			} else if err != nil {
				assert.Equal(t, status.Mismatch, status.CodeOf(err), "%v", err)
			}
		}
		if short {
			check(runInline(a, nil))
		} else if o, err := sharedOp(a); err != nil {
			check(err)
		} else {
			o.Work(shm.All)
			if o.IsBlind() {
				o.Leave()
			}
			assert.NotEqual(t, shm.Pending, o.State(0))
			o.Free()
		}
		for _, x := range calls[0].tensors { // nothing is written outside of them
			for i, b := range x.bytes {
				if (i < guard || i >= len(x.bytes)-guard) && b != 0xA5 {
					t.Fatalf("written outside a tensor: byte %d", i-guard)
				}
			}
		}
	})
}
