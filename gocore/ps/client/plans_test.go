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

func planIn(p *plans, ids *op.Buf) *route.Plan {
	plan, _ := p.take(ids)
	return plan
}

func TestPlansOfTheLastTwoBatchesAreKept(t *testing.T) {
	var kept plans
	one, two, three := idsOf(t, 1, 2, 1), idsOf(t, 1, 2, 2), idsOf(t, 5)
	assert.Nil(t, planIn(&kept, one))
	first, second, third := planOf(t, one), planOf(t, two), planOf(t, three)
	kept.put(first, 0)
	kept.put(second, 0) // prefetched
	assert.Same(t, first, planIn(&kept, one))
	assert.Nil(t, planIn(&kept, one), "nobody else may use it meanwhile")
	kept.put(first, 0)
	assert.Same(t, second, planIn(&kept, two))
	kept.put(second, 0)
	kept.put(third, 0)
	assert.Nil(t, first.Inverse, "the oldest one is freed")
	assert.Same(t, third, planIn(&kept, three))
	kept.put(third, 0)
	kept.close()
	assert.Nil(t, second.Inverse)
	assert.Nil(t, third.Inverse)
	late := planOf(t, one)
	kept.put(late, 0)
	assert.Nil(t, late.Inverse)
	assert.Nil(t, planIn(&kept, one))
}

// Rows of a batch that were pulled need no room on the servers, until they are restored.
func TestAPlanKnowsWhenItsRowsWereThere(t *testing.T) {
	var kept plans
	ids := idsOf(t, 4)
	_, at := kept.take(ids)
	assert.EqualValues(t, -1, at)
	kept.put(planOf(t, ids), 3)
	plan, at := kept.take(ids)
	assert.EqualValues(t, 3, at)
	plan.Free()
}
