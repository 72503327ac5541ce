package group

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// named are the codes of the errors that ranks may get when one of them is damaged.
var named = []status.Code{status.OK, status.Timeout, status.Mismatch, status.Refused, status.PeerLeft, status.PeerDied, status.GroupBroken,
	status.MPI, status.NoMemory, status.Truncate, status.Cuda, status.Unsupported}

// linesOf returns the memory of the control slots of a group.
func linesOf(g *Group) []byte {
	words, n := g.Node.Slots.Chunks(0) // the first of the words that end the control slots
	size := arrive.ControlSlotsSize(g.Size)
	begin := unsafe.Add(words, -(size - int64(8*n*arrive.Slots)))
	return unsafe.Slice((*byte)(begin), size)
}

// inHeap makes a buffer of n float32 in the heap of this process, which is freed at the end of the test
// unless kept is set by then.
func inHeap(t *testing.T, n int64, kept *atomic.Bool) op.Buf {
	own, err := heap.OfProcess()
	require.NoError(t, err)
	p, err := own.Alloc(4 * n)
	require.NoError(t, err)
	t.Cleanup(func() {
		if !kept.Load() {
			assert.NoError(t, own.Free(p))
		}
	})
	clear(unsafe.Slice((*float32)(p), n))
	return op.Buf{Data: p, Count: n, DType: op.Float32, DeviceType: op.DeviceCPU}
}

// end destroys a world. If it cannot be freed, operations of it may still use their tensors.
func end(t *testing.T, e *world.Env) (settled bool) {
	settled, err := e.Destroy()
	assert.NoError(t, err)
	if settled {
		_ = e.Close() // the fake MPI does not free communicators of broken groups
	}
	return settled
}

// scribble writes an 8-byte value where an input says: into the block of rank 1 in the control slots, anywhere in
// the control slots, or into the chunk words.
func scribble(slots []byte, chunks int, where byte, at uint16, value uint64) {
	own := int(arrive.ControlSlotsSize(2)-int64(8*chunks*arrive.Slots)) / 2 // a block and payloads are as long as the other's
	const block = (arrive.Slots + 2) * 64
	offset := 0
	switch where % 3 {
	case 0:
		offset = block + 8*int(at)%block
	case 1:
		offset = 8 * int(at) % (len(slots) - 8)
	case 2:
		offset = 2*own + 8*(int(at)%(chunks*arrive.Slots))
	}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&slots[offset])), value)
}

// FuzzDamagedRank has two ranks that make the same collectives, one after another. Between them rank 1 writes
// what the input says into the memory that both share. Every call ends in time, with its result or with an
// error that is meant for it.
func FuzzDamagedRank(f *testing.F) {
	step := func(kind, where byte, at uint16, value uint64) []byte {
		b := binary.LittleEndian.AppendUint16([]byte{kind, where}, at)
		return binary.LittleEndian.AppendUint64(b, value)
	}
	for kind := range byte(6) {
		good := step(kind, 255, 0, 0)
		f.Add(slices.Concat(good, good, good))
		f.Add(slices.Concat(good, step(kind, 0, 8*3, 1<<40)))                  // the number of a slot
		f.Add(slices.Concat(good, step(kind, 0, 8*2+4, ^uint64(0))))           // flags, length and mark
		f.Add(slices.Concat(good, step(kind, 0, 8*2+5, 1<<40)))                // a payload
		f.Add(slices.Concat(good, step(kind, 2, 256*2+1, 3<<20|1<<4|1), good)) // a chunk that rank 1 works on
		f.Add(slices.Concat(good, step(kind, 2, 256*2+2, ^uint64(0)), good))
		f.Add(slices.Concat(good, step(kind, 0, 8*arrive.Slots, ^uint64(0)), good)) // how far it has come
		f.Add(slices.Concat(good, step(kind, 0, 8*arrive.Slots+8, ^uint64(0)), good))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		const stepBytes, most = 12, 8
		input = input[:min(len(input), most*stepBytes)]
		libs := mpifake.New(2, mpifake.Patience(time.Second))
		var all sync.WaitGroup
		var unsettled atomic.Bool
		began := time.Now()
		for _, lib := range libs {
			small, large, host := floats(1, 2), inHeap(t, 1<<14, &unsettled), floats(make([]float32, 3000)...)
			gathered := inHeap(t, 1<<15, &unsettled)
			all.Add(1)
			go func(lib mpi.Library) {
				defer all.Done()
				e, err := world.NewEnv(mpifake.World(lib), 10*time.Second, nil)
				if err != nil {
					return // a busy machine: the fake MPI waits for a second only
				}
				g, err := World(e, 0, 150*time.Millisecond)
				if err != nil || g.Node == nil {
					return
				}
				slots := linesOf(g)
				_, chunks := g.Node.Slots.Chunks(0)
				var handles []*work.Handle
				for rest := input; len(rest) >= stepBytes; rest = rest[stepBytes:] {
					spoil := func() {
						if g.Rank == 1 && rest[1] != 255 {
							scribble(slots, chunks, rest[1], binary.LittleEndian.Uint16(rest[2:]), binary.LittleEndian.Uint64(rest[4:]))
						}
					}
					var d *op.Desc
					switch rest[0] % 6 {
					case 0:
						d = allReduce(small)
					case 1, 2:
						d = allReduce(large)
					case 3:
						d = allReduce(host)
					case 4:
						d = desc(op.AllGather, []op.Buf{large}, []op.Buf{gathered})
					default:
						d = desc(op.Barrier, nil, nil)
					}
					async := rest[0]%6 == 2
					if async {
						d.Flags = op.FlagAsync
					} else {
						spoil()
					}
					h, _, err := g.Submit(d, false)
					assert.Contains(t, named, status.CodeOf(err), "%v", err)
					if h != nil {
						handles = append(handles, h)
					}
					if async {
						spoil()
					}
				}
				for _, h := range handles {
					_, err := h.Wait(5*time.Second, nil)
					assert.Contains(t, named, status.CodeOf(err), "%v", err)
				}
				if !end(t, e) {
					unsettled.Store(true)
				}
			}(lib)
		}
		all.Wait()
		assert.Less(t, time.Since(began), time.Minute)
	})
}
