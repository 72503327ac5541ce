package coll

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// on returns n elements of four bytes in device memory, from element i of a region on.
func on(i, n int64) Part { return Part{Data: address(4 * i), Count: n, OnDevice: true} }

func TestExportable(t *testing.T) {
	host, strided := on(0, 4), on(0, 4)
	host.OnDevice = false
	strided.Layout = &op.Buf{}
	list := []Part{on(0, 4), on(8, 4), on(16, 4)}
	chunks := []Part{on(100, 4), on(104, 4), on(108, 4)}
	uneven := []Part{on(100, 4), on(104, 0), on(104, 1)}
	for _, c := range []struct {
		name       string
		code       op.Code
		root       int
		send, recv []Part
		want       bool
	}{
		{"all_reduce in place", op.AllReduce, 0, nil, []Part{on(0, 4)}, true},
		{"all_reduce in one memory", op.AllReduce, 0, []Part{on(0, 4)}, []Part{on(0, 4)}, true},
		{"all_reduce elsewhere", op.AllReduce, 0, []Part{on(0, 4)}, []Part{on(4, 4)}, true},
		{"all_reduce, one element further", op.AllReduce, 0, []Part{on(0, 4)}, []Part{on(1, 4)}, false},
		{"all_reduce on the host", op.AllReduce, 0, nil, []Part{host}, false},
		{"all_reduce with gaps", op.AllReduce, 0, nil, []Part{strided}, false},
		{"all_reduce of nothing", op.AllReduce, 0, nil, []Part{{}}, true},
		{"reduce, not the root", op.Reduce, 0, []Part{on(0, 4)}, nil, true},
		{"reduce, the root, overlapping", op.Reduce, 1, []Part{on(0, 4)}, []Part{on(2, 4)}, false},
		{"broadcast", op.Broadcast, 1, nil, []Part{on(0, 4)}, true},
		{"all_gather", op.AllGather, 0, []Part{on(0, 4)}, []Part{on(100, 12)}, true},
		{"all_gather in its place", op.AllGather, 0, []Part{on(104, 4)}, []Part{on(100, 12)}, true},
		{"all_gather in another's place", op.AllGather, 0, []Part{on(100, 4)}, []Part{on(100, 12)}, false},
		{"all_gather between places", op.AllGather, 0, []Part{on(103, 4)}, []Part{on(100, 12)}, false},
		{"all_gather into a list", op.AllGather, 0, []Part{on(100, 4)}, list, true},
		{"all_gather into a list in its place", op.AllGather, 0, []Part{on(8, 4)}, list, true},
		{"all_gather into a list in another's", op.AllGather, 0, []Part{on(0, 4)}, list, false},
		{"gather, not the root", op.Gather, 0, []Part{on(0, 4)}, nil, true},
		{"gather, the root, in its place", op.Gather, 1, []Part{on(8, 4)}, list, true},
		{"gather, the root, in another's", op.Gather, 1, []Part{on(16, 4)}, list, false},
		{"scatter, not the root", op.Scatter, 0, nil, []Part{on(0, 4)}, true},
		{"scatter of a list", op.Scatter, 1, list, []Part{on(100, 4)}, false},
		{"scatter of chunks", op.Scatter, 1, chunks, []Part{on(0, 4)}, true},
		{"scatter in its place", op.Scatter, 1, chunks, []Part{on(104, 4)}, true},
		{"scatter in another's place", op.Scatter, 1, chunks, []Part{on(100, 4)}, false},
		{"reduce_scatter", op.ReduceScatter, 0, []Part{on(100, 12)}, []Part{on(0, 4)}, true},
		{"reduce_scatter in its place", op.ReduceScatter, 0, []Part{on(100, 12)}, []Part{on(104, 4)}, true},
		{"reduce_scatter between places", op.ReduceScatter, 0, []Part{on(100, 12)}, []Part{on(102, 4)}, false},
		{"reduce_scatter of different lengths", op.ReduceScatter, 0, uneven, []Part{{}}, true},
		{"all_to_all", op.AllToAll, 0, []Part{on(0, 12)}, []Part{on(100, 12)}, true},
		{"all_to_all in place", op.AllToAll, 0, []Part{on(0, 12)}, []Part{on(0, 12)}, false},
		{"all_to_all of chunks", op.AllToAll, 0, chunks, list, true},
		{"all_to_all of a list", op.AllToAll, 0, list, chunks, false},
		{"scan", op.Scan, 0, nil, []Part{on(0, 4)}, false},
		{"all_reduce_coalesced", op.AllReduceCoalesced, 0, nil, []Part{on(0, 4)}, false},
	} {
		a := Args{Sig: Sig{Size: 3, Code: c.code, DType: op.Float32, Root: c.root, Count: 4}, Rank: 1, Send: c.send, Recv: c.recv}
		assert.Equal(t, c.want, Exportable(&a), c.name)
	}
}

// The slices cover all elements in order, and begin at addresses that suit vector loads.
func TestSlicesOnDevice(t *testing.T) {
	rng := rand.New(rand.NewSource(4))
	for range 2000 {
		d := op.DType(1 + rng.Intn(int(op.Complex128)))
		a := Args{Sig: Sig{Size: 1 + rng.Intn(64), DType: d}}
		n := rng.Int63n(1 << (1 + rng.Intn(40)))
		what := fmt.Sprintf("%d %s on %d ranks", n, d, a.Size)
		next := int64(0)
		for i, s := range slicesOnDevice(&a, n) {
			require.Equal(t, next, s.from, "%s: slice %d", what, i)
			require.GreaterOrEqual(t, s.count, int64(0), what)
			if next += s.count; next < n {
				require.GreaterOrEqual(t, s.count*a.elem(), int64(leastSlice), what)
				require.Zero(t, s.count*a.elem()%deviceLine, what)
			}
		}
		require.Equal(t, n, next, what)
	}
}

func TestWhatThePathIPCServes(t *testing.T) {
	sig := Sig{DType: op.BFloat16, Reduce: op.Avg, Size: 64, Local: true, Agreed: Even | IPC, Any: Device}
	for _, c := range collectives()[1:] { // a barrier has no tensors
		if c.Trait().Neighbours { // their tensors are in host memory
			continue
		}
		s := sig
		s.Code = c
		chosen, err := Choose(&s)
		require.NoError(t, err, c.String())
		served := c != op.AllReduceCoalesced && !c.Trait().Prefix
		assert.Equal(t, served, chosen.Name == "ipc", c.String())

		s.Size = 65 // one more than the arrays of a kernel
		chosen, err = Choose(&s)
		require.NoError(t, err, c.String())
		trait, _ := op.TraitOf(c)
		assert.Equal(t, served && !trait.Reduces, chosen.Name == "ipc", "%s on 65 ranks", c)

		s = sig
		s.Code, s.Agreed = c, IPC // shares of different lengths
		chosen, err = Choose(&s)
		require.NoError(t, err, c.String())
		assert.Equal(t, served && c != op.AllToAll, chosen.Name == "ipc", "%s of different lengths", c)

		s = sig
		s.Code, s.Agreed = c, Even // the tensors of some rank cannot be mapped
		chosen, err = Choose(&s)
		require.NoError(t, err, c.String())
		assert.NotEqual(t, "ipc", chosen.Name, c.String())

		s = sig
		s.Code, s.Local = c, false
		chosen, err = Choose(&s)
		require.NoError(t, err, c.String())
		assert.NotEqual(t, "ipc", chosen.Name, "%s of several nodes", c)
	}
}
