package group

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// The progress thread of rank 0 does all of a collective in mapped memory at once, while no rank waits,
// because a CPU is idle there.
func TestTheProgressThreadHelpsWhereACPUIsIdle(t *testing.T) {
	const rounds, count = 60, 16 << 10
	least := time.Hour
	var helped [rounds]chan bool
	for i := range helped {
		helped[i] = make(chan bool)
	}
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		own, err := heap.OfProcess()
		if !assert.NoError(t, err) {
			return
		}
		block, err := own.Alloc(4 * count)
		if !assert.NoError(t, err) {
			return
		}
		b := op.Buf{Data: block, Count: count, DType: op.Float32, DeviceType: op.DeviceCPU}
		if g.Rank == 0 {
			e.Engine.Spare = func() bool { return true }
		}
		for round := range rounds {
			for i := range values(b) {
				values(b)[i] = float32(g.Rank + 1)
			}
			d := allReduce(b)
			d.Flags = op.FlagAsync
			start := time.Now()
			h, _, err := g.Submit(d, false)
			if !assert.NoError(t, err) {
				return
			}
			if g.Rank == 1 {
				e.Engine.StopProgress()
				<-helped[round]
			} else {
				for end := start.Add(10 * time.Second); !h.Done() && time.Now().Before(end); work.Yield() {
				}
				least = min(least, time.Since(start))
				words, _ := g.Node.Slots.Chunks(uint64(round + 1))
				first := *(*uint64)(unsafe.Add(words, 8))
				assert.Zero(t, first>>4&0xffff, "the rank that did the first chunk")
				close(helped[round])
			}
			_, err = h.Wait(5*time.Second, nil)
			assert.NoError(t, err)
			assert.Equal(t, "mapped", g.Algorithm())
			assert.Equal(t, float32(3), values(b)[count-1])
		}
	})
	assert.Less(t, least, 2*time.Millisecond, "the patience of the progress thread")
}
