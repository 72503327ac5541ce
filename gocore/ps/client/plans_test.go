package client

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
)

// idsOf makes a batch of ids. C reads them, so they are not in Go's memory.
func idsOf(t *testing.T, ids ...int64) *op.Buf {
	t.Helper()
	p, err := mem.Alloc(int64(8 * len(ids)))
	require.NoError(t, err)
	t.Cleanup(func() { mem.Free(p) })
	copy(unsafe.Slice((*int64)(p), len(ids)), ids)
	return &op.Buf{Data: p, Count: int64(len(ids)), DType: op.Int64}
}

func planOf(t *testing.T, ids *op.Buf) *route.Plan {
	t.Helper()
	p, err := route.New(ids, 2, route.ByHash, 0)
	require.NoError(t, err)
	return p
}

func TestPlansOfTheLastTwoBatchesAreKept(t *testing.T) {
	var kept plans
	one, two, three := idsOf(t, 1, 2, 1), idsOf(t, 1, 2, 2), idsOf(t, 5)
	assert.Nil(t, kept.take(one))
	first, second, third := planOf(t, one), planOf(t, two), planOf(t, three)
	kept.put(first)
	kept.put(second) // prefetched
	assert.Same(t, first, kept.take(one))
	assert.Nil(t, kept.take(one), "nobody else may use it meanwhile")
	kept.put(first)
	assert.Same(t, second, kept.take(two))
	kept.put(second)
	kept.put(third)
	assert.Nil(t, first.Inverse, "the oldest one is freed")
	assert.Same(t, third, kept.take(three))
	kept.put(third)
	kept.close()
	assert.Nil(t, second.Inverse)
	assert.Nil(t, third.Inverse)
	late := planOf(t, one)
	kept.put(late)
	assert.Nil(t, late.Inverse)
	assert.Nil(t, kept.take(one))
}
