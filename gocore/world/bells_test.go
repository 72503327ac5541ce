package world

import (
	"bytes"
	"os"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/health"
	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// opened returns a node of so many ranks, whose doorbells this process has as one of them.
func opened(t *testing.T, n, me int) (_ *Node, file *segment.File) {
	page := int64(os.Getpagesize())
	file, err := segment.New("paddlempi-test", page+work.BellBytes(n))
	require.NoError(t, err)
	t.Cleanup(file.Close)
	node := &Node{NodeView: health.NodeView{Ranks: make([]int, n)}}
	node.bells, err = openBells(file, page, n, me)
	require.NoError(t, err)
	return node, file
}

// asOther returns the doorbells of a file as another rank has them.
func asOther(t *testing.T, file *segment.File, n, me int) *work.Bells {
	place, err := file.MapTail(int64(os.Getpagesize()), nil)
	require.NoError(t, err)
	return work.NewBells(place, n, me)
}

// Worlds come and go while a thread rings all the time: each has doorbells that ring, and they leave one mapping, which is not
// that of their files.
func TestDoorbellsOfWorldsThatEnd(t *testing.T) {
	var stop atomic.Bool
	over := make(chan struct{})
	go func() {
		defer close(over)
		for !stop.Load() {
			work.Ring()
		}
	}()
	first, _ := opened(t, 2, 1)
	place := first.bells.Memory()
	first.bells.Answer(false)
	first.closeBells()
	for range 200 {
		node, file := opened(t, 2, 1)
		require.Equal(t, place, node.bells.Memory())
		other := asOther(t, file, 2, 0)
		node.bells.Answer(false)
		for seen := other.Enter(); other.Enter() == seen; {
			work.Ring() // one of the two threads took the other rank out of the set, and rings it
		}
		node.closeBells()
		require.Zero(t, *(*uint64)(place))
		require.NoError(t, segment.Vacate(other.Memory(), work.BellBytes(2)))
	}
	stop.Store(true)
	<-over
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	assert.Zero(t, bytes.Count(maps, []byte("paddlempi-test")))
}

// Doorbells of another number of ranks, or of another rank, lie elsewhere: a late ring would find other words where it looks.
func TestDoorbellsOfOtherRanksLieElsewhere(t *testing.T) {
	seen := map[unsafe.Pointer]bool{}
	for _, of := range [][2]int{{2, 0}, {3, 0}, {3, 2}, {2, 0}, {3, 2}} {
		node, _ := opened(t, of[0], of[1])
		seen[node.bells.Memory()] = true
		node.closeBells()
	}
	assert.Len(t, seen, 3)
	a, _ := opened(t, 2, 0)
	b, _ := opened(t, 2, 0) // two worlds at a time
	assert.NotEqual(t, a.bells.Memory(), b.bells.Memory())
	a.closeBells()
	b.closeBells()
	a.closeBells() // does nothing
}
