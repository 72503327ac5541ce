package table

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	sharedIDs = 20_000
	sharedDim = 96
)

// trained pushes large batches, in which ids appear several times, to a table of so many threads,
// and returns what a pull of 16-bit or 32-bit rows gives then.
func trained(t *testing.T, c Config, threads int) []float32 {
	table := newTable(t, best(), c)
	table.Threads = threads
	random := rand.New(rand.NewPCG(3, 4))
	ids, of := tensor(t, op.Int64, make([]int64, sharedIDs))
	values, gradients := tensor(t, op.Float32, make([]float32, sharedIDs*sharedDim))
	for range 3 {
		for i := range of {
			of[i] = int64(random.IntN(5000))
		}
		for i := range gradients {
			gradients[i] = float32(random.NormFloat64())
		}
		require.NoError(t, table.Push(Batch{IDs: ids, Values: values}, math.NaN(), 0))
	}
	for i := range of {
		of[i] = int64(random.IntN(9000)) // also new ones
	}
	require.Equal(t, threads, max(1, table.threads(sharedIDs)))
	require.NoError(t, table.Pull(Batch{IDs: ids, Values: values}))
	return gradients
}

// A large batch gives the same rows with one thread and with several.
func TestThreadsAgree(t *testing.T) {
	for _, optimizer := range []string{"sgd", "adam", "row_wise_adagrad"} {
		for _, dtype := range []op.DType{op.Float32, op.BFloat16} {
			c := config(optimizer, sharedDim)
			c.DType = dtype.String()
			want := trained(t, c, 1)
			assert.Equal(t, want, trained(t, c, 3), "%s %v", optimizer, dtype)
		}
	}
}

// The limit of a table holds for all threads together, and its error comes once.
func TestThreadsAndTheLimit(t *testing.T) {
	c := config("sgd", sharedDim)
	c.MemoryLimit = 4 << 20
	table := newTable(t, best(), c)
	table.Threads = 4
	ids, of := tensor(t, op.Int64, make([]int64, sharedIDs))
	for i := range of {
		of[i] = int64(i)
	}
	values, _ := tensor(t, op.Float32, make([]float32, sharedIDs*sharedDim))
	for _, call := range []func() error{
		func() error { return table.Pull(Batch{IDs: ids, Values: values}) },
		func() error { return table.Push(Batch{IDs: ids, Values: values}, math.NaN(), 0) },
	} {
		err := call()
		require.Error(t, err)
		assert.Equal(t, status.NoMemory, status.CodeOf(err))
	}
	info, err := table.Info()
	require.NoError(t, err)
	assert.LessOrEqual(t, info.Bytes, c.MemoryLimit+info.IndexBytes)
}
