package coll

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

func TestAForcedAlgorithmIsChosen(t *testing.T) {
	f, err := ParseForced(" all_reduce:slices16, all_gather:mpi_uneven,")
	require.NoError(t, err)
	for _, c := range []struct {
		sig  Sig
		want *Algorithm
	}{
		{Sig{Code: op.AllReduce, DType: op.BFloat16, Reduce: op.Sum, Count: 1}, &allReduceSlices16}, // gather16 comes first
		{Sig{Code: op.AllReduce, DType: op.Float32, Reduce: op.Sum, Count: 1}, &allReduceMPI},       // slices16 does not serve it
		{Sig{Code: op.AllGather, DType: op.Float32, Count: 1, Agreed: Even}, &allGatherUnevenMPI},
		{Sig{Code: op.Broadcast, DType: op.Float32, Count: 1}, &broadcastMPI},
	} {
		c.sig.Size, c.sig.Forced = 2, f
		alg, err := Choose(&c.sig)
		require.NoError(t, err)
		assert.Same(t, c.want, alg, "%+v", c.sig)
	}
}

// MPI has no 16-bit floats, and its sums of small integers saturate. Forcing it must not change what
// a call returns.
func TestMPIIsNotForcedOnWhatItCannotReduce(t *testing.T) {
	for _, code := range []op.Code{op.AllReduce, op.Reduce, op.ReduceScatter, op.Scan, op.Exscan} {
		f, err := ParseForced(code.String() + ":mpi")
		require.NoError(t, err)
		for _, d := range []op.DType{op.BFloat16, op.Int8} {
			alg, err := Choose(&Sig{Code: code, DType: d, Reduce: op.Sum, Size: 2, Count: 1 << 20, Forced: f})
			require.NoError(t, err)
			assert.NotEqual(t, "mpi", alg.Name, "%s of %s", code, d)
		}
	}
}

func TestEveryAlgorithmCanBeForced(t *testing.T) {
	for c := range registry {
		for _, alg := range registry[c] {
			f, err := ParseForced(op.Code(c).String() + ":" + alg.Name)
			require.NoError(t, err)
			assert.Equal(t, alg.Name, f.of(op.Code(c)).Name)
			for _, other := range collectives() {
				assert.True(t, int(other) == c || f.of(other) == nil, "%s forces %s", op.Code(c), other)
			}
		}
		assert.Less(t, len(registry[c]), 1<<forcedBits)
	}
}

func TestWrongListsOfForcedAlgorithms(t *testing.T) {
	for list, word := range map[string]string{
		"all_reduce":                          `it has single, inline, mapped, bounce, ipc, `,
		"all_reduce:":                         `no algorithm ""`,
		"all_reduce:fast":                     `no algorithm "fast"`,
		"send:mpi":                            `no collective "send"`,
		"allreduce:mpi":                       `no collective "allreduce"`,
		"broadcast:mpi,broadcast:single":      `twice`,
		"all_reduce:mpi;broadcast:mpi":        `no algorithm "mpi;broadcast:mpi"`,
		"all_reduce:mpi,all_reduce_coalesced": `no algorithm ""`,
	} {
		_, err := ParseForced(list)
		assert.Equal(t, status.Argument, status.CodeOf(err), list)
		assert.ErrorContains(t, err, word)
	}
}
