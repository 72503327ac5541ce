package coll

import (
	"math/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// The tensor is so long that the root scatters it and the ranks exchange the parts, instead of a
// tree. The parts differ in length, and every rank is the root once.
func TestDirectBroadcastOfALongTensor(t *testing.T) {
	const n = directTree + 3
	rng := rand.New(rand.NewSource(6))
	for _, size := range []int{2, 3, 5} {
		w := newWorld(size)
		for root := range size {
			a := Args{Sig: Sig{Code: op.Broadcast, DType: op.UInt8, Count: n, Root: root}, DeviceArgs: &DeviceArgs{}}
			for _, how := range forms {
				calls := w.calls(a)
				for _, s := range calls {
					s.args.Recv, _ = s.lay(true, [][]byte{noise(rng, a.DType, n)})
				}
				for _, s := range calls {
					s.tensors[0].want = calls[root].tensors[0].want
				}
				for rank, err := range w.carryOut(&broadcastDirect, how, calls) {
					require.NoError(t, err, "rank %d", rank)
					calls[rank].tensors[0].check(t, "broadcast", rank)
				}
			}
		}
	}
}

// The algorithm direct serves no reductions, because MPI would do the arithmetic, and no buffers
// that MPI forbids.
func TestWhatDoesNotGoDirectly(t *testing.T) {
	for _, c := range collectives() {
		moves := c == op.Broadcast || c == op.AllGather || c == op.Gather || c == op.Scatter || c == op.AllToAll
		assert.Equal(t, moves, hasAlgorithm("direct", c), c.String())
		assert.Equal(t, moves, DirectOK(&Args{Sig: Sig{Code: c, Size: 2, DType: op.UInt8}, Recv: []Part{{}}}), c.String())
	}
	x := newTensor(op.UInt8, make([]byte, 12))
	part := func(from, n int64) Part {
		return Part{Data: (&Args{Sig: Sig{DType: op.UInt8}}).at(x.Data, from), Count: n, OnDevice: true}
	}
	for _, c := range []struct {
		what       string
		code       op.Code
		send, recv []Part
		ok         bool
	}{
		{"apart", op.AllToAll, []Part{part(0, 4)}, []Part{part(4, 4)}, true},
		{"in place", op.AllToAll, []Part{part(0, 4)}, []Part{part(0, 4)}, false},
		{"own part in its place", op.AllGather, []Part{part(4, 4)}, []Part{part(0, 8)}, true},
		{"in another's place", op.AllGather, []Part{part(0, 4)}, []Part{part(0, 8)}, false},
		{"across two places", op.AllGather, []Part{part(2, 4)}, []Part{part(0, 8)}, false},
		{"own tensor of a list", op.AllGather, []Part{part(4, 4)}, []Part{part(8, 4), part(4, 4)}, true},
		{"the root's own part", op.Scatter, []Part{part(0, 8)}, []Part{part(4, 4)}, true},
		{"the root's other part", op.Scatter, []Part{part(0, 8)}, []Part{part(0, 4)}, false},
		{"the root's own part", op.Gather, []Part{part(4, 4)}, []Part{part(0, 8)}, true},
		{"not contiguous", op.Broadcast, nil, []Part{{Data: x.Data, Count: 2, OnDevice: true, Layout: &op.Buf{}}}, false},
	} {
		a := Args{Sig: Sig{Code: c.code, DType: op.UInt8, Size: 2, Root: 1}, Rank: 1, Send: c.send, Recv: c.recv}
		assert.Equal(t, c.ok, DirectOK(&a), "%s, %s", c.code, c.what)
	}
}

// If the MPI or the tensors of one rank do not allow the algorithm direct, no rank uses it.
func TestDirectIsAgreedOn(t *testing.T) {
	name := func(any arrive.Flags) string {
		a, err := Choose(&Sig{Code: op.Broadcast, Size: 2, Any: any})
		require.NoError(t, err)
		return a.Name
	}
	assert.Equal(t, "direct", name(Device))
	assert.Equal(t, "staged", name(Device|NotDirect))
	assert.Equal(t, "mpi", name(NotDirect))
}
