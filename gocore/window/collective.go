package window

import (
	"slices"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// collective carries out collectives of a group for a window.
type collective struct {
	g       Group
	timeout time.Duration // below 0: the group's
	nested  bool          // as for Group.Submit
}

// gather tells all members words, equally many on all, and returns those of every member.
func (c collective) gather(words []int64) ([][]int64, error) {
	_, size := c.g.Me()
	n := len(words)
	block, err := mem.Alloc(int64(8 * n * (size + 1)))
	if err != nil {
		_ = c.g.Refuse(op.AllGather)
		return nil, err
	}
	room := unsafe.Slice((*int64)(block), n*(size+1))
	copy(room, words)
	send := op.Buf{Data: block, Count: int64(n), DType: op.Int64, DeviceType: op.DeviceCPU}
	recv := op.Buf{Data: unsafe.Add(block, 8*n), Count: int64(n * size), DType: op.Int64, DeviceType: op.DeviceCPU}
	lingers, err := c.submit(&op.Desc{Code: op.AllGather, NSend: 1, Send: unsafe.Pointer(&send), NRecv: 1, Recv: unsafe.Pointer(&recv)})
	if lingers {
		return nil, err // the block stays: MPI may still use it
	}
	defer mem.Free(block)
	if err != nil {
		return nil, err
	}
	return slices.Collect(slices.Chunk(slices.Clone(room[n:]), n)), nil
}

// barrier returns when all members have called it.
func (c collective) barrier() error {
	_, err := c.submit(&op.Desc{Code: op.Barrier})
	return err
}

func (c collective) submit(d *op.Desc) (lingers bool, err error) {
	d.Root, d.Peer, d.Peer2, d.Scale, d.TimeoutNS = -1, -1, -1, 1, int64(c.timeout)
	h, _, err := c.g.Submit(d, c.nested)
	return h != nil && !h.Settled(), err
}
