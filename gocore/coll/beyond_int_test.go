package coll

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// For lengths beyond 2^31 - 1 the tests here look at the steps and do not run them, because they
// would need too much memory. The addresses below point to nothing. tests/ranks/core/test_large.py runs
// such calls.

const (
	many    = int64(1)<<31 + 3
	nowhere = uintptr(1) << 40
)

func address(offset int64) unsafe.Pointer {
	p := nowhere + uintptr(offset)
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}

// steps builds alg as rank of size and returns every MPI call that the steps would make.
func steps(t *testing.T, alg *Algorithm, a Args, rank, size int) (calls []mpi.Call) {
	t.Helper()
	w := newWorld(size)
	a.Lib, a.Comm, a.Rank, a.Size = w.libs[rank], w.libs[rank].World(), rank, size
	var p Program
	p.Reset(a.Lib)
	require.NoError(t, alg.build(&a, &p))
	for _, s := range p.steps {
		switch {
		case s.Calls != nil:
			calls = append(calls, s.Calls...)
		case s.Do == nil:
			calls = append(calls, s.Call)
		}
	}
	p.Close()
	for _, c := range calls {
		require.LessOrEqual(t, c.SendCount, int64(mpi.MaxCount))
		require.LessOrEqual(t, c.RecvCount, int64(mpi.MaxCount))
	}
	return calls
}

func TestMovesOfMoreThanAnIntAreOneElementOfATypeOfThatLength(t *testing.T) {
	all := []Part{{Data: address(0), Count: 3 * many}}
	for name, c := range map[string]struct {
		alg        *Algorithm
		code       op.Code
		send, recv []Part
	}{
		"all_gather": {&allGatherMPI, op.AllGather, []Part{{Data: address(-many), Count: many}}, all},
		"gather":     {&gatherMPI, op.Gather, []Part{{Data: address(-many), Count: many}}, all},
		"scatter":    {&scatterMPI, op.Scatter, all, []Part{{Data: address(-many), Count: many}}},
		"all_to_all": {&allToAllEvenMPI, op.AllToAll, all, []Part{{Data: address(3 * many), Count: 3 * many}}},
	} {
		calls := steps(t, c.alg, Args{Sig: Sig{Code: c.code, DType: op.Int8, Count: many}, Send: c.send, Recv: c.recv}, 0, 3)
		require.Len(t, calls, 1, name)
		assert.EqualValues(t, 1, max(calls[0].SendCount, calls[0].RecvCount), name)
	}
}

// The limit is in bytes, and exact.
func TestBroadcastsOfMoreThanAnIntGoInPieces(t *testing.T) {
	for n, counts := range map[int64][]int64{0: {0}, 1<<29 - 1: {1<<31 - 4}, 1 << 29: {1 << 30, 1 << 30}, 1<<29 + 1: {1 << 30, 1 << 30, 4}} {
		calls := steps(t, &broadcastMPI, Args{Sig: Sig{DType: op.Float32, Count: n}, Recv: []Part{{Data: address(0), Count: n}}}, 0, 2)
		var done int64
		var got []int64
		for _, c := range calls {
			assert.Equal(t, address(done), c.RecvBuf)
			done += c.RecvCount
			got = append(got, c.RecvCount)
		}
		assert.Equal(t, counts, got)
	}
}

func TestReductionsOfMoreThanAnIntGoInChunks(t *testing.T) {
	a := Args{Sig: Sig{Code: op.AllReduce, DType: op.Float32, Reduce: op.Sum, Count: many}, Recv: []Part{{Data: address(0), Count: many}}}
	for _, alg := range []*Algorithm{&allReduceMPI, &scanMPI} {
		calls := steps(t, alg, a, 1, 2)
		var done int64
		for _, c := range calls {
			assert.Equal(t, address(4*done), c.RecvBuf)
			assert.True(t, c.InPlace)
			done += c.RecvCount
		}
		assert.Equal(t, many, done)
	}
	a.Send = []Part{{Data: address(1 << 36), Count: many}}
	for _, root := range []int{0, 1} {
		a.Root = root
		var done int64
		for _, c := range steps(t, &reduceMPI, a, 1, 2) {
			assert.Equal(t, address(1<<36+4*done), c.SendBuf)
			assert.EqualValues(t, root, c.Peer)
			done += c.SendCount
		}
		assert.Equal(t, many, done)
	}
}

// If the total of a reduce_scatter is beyond an int, its parts are reduced one by one, each to its
// rank, and each in chunks.
func TestReduceScatterOfMoreThanAnInt(t *testing.T) {
	const size = 3
	for rank := range size {
		calls := steps(t, &reduceScatterMPI, Args{Sig: Sig{Code: op.ReduceScatter, DType: op.Int16, Reduce: op.Max, Count: many}, Send: []Part{{Data: address(0), Count: size * many}}, Recv: []Part{{Data: address(1 << 36), Count: many}}}, rank, size)
		var sent, got int64
		for _, c := range calls {
			assert.Equal(t, mpi.FnReduce, c.Fn)
			assert.Equal(t, address(2*sent), c.SendBuf)
			assert.EqualValues(t, sent/many, c.Peer)
			if int(c.Peer) == rank {
				assert.Equal(t, address(1<<36+2*got), c.RecvBuf)
				got += c.RecvCount
			}
			sent += c.SendCount
		}
		assert.Equal(t, size*many, sent)
		assert.Equal(t, many, got)
	}
}

// Displacements are ints, too. Where they do not reach, each rank broadcasts its part.
func TestUnevenAllGatherOfMoreThanAnInt(t *testing.T) {
	parts := []Part{{Data: address(0), Count: many}, {}, {Data: address(1 << 36), Count: 7}}
	calls := steps(t, &allGatherUnevenMPI, Args{Sig: Sig{Code: op.AllGather, DType: op.Int8}, Send: []Part{{Data: address(1 << 37), Count: 7}}, Recv: parts}, 2, 3)
	require.Len(t, calls, 4) // three pieces; rank 1 has no elements
	assert.Equal(t, []int32{0, 2}, []int32{calls[0].Peer, calls[3].Peer})
	assert.Equal(t, []int64{1 << 30, 1 << 30, 3, 7}, []int64{calls[0].RecvCount, calls[1].RecvCount, calls[2].RecvCount, calls[3].RecvCount})
	assert.Equal(t, parts[2].Data, calls[3].RecvBuf)
}
