package messages

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// longest is the length of the longest message that is packed as a whole where the transport can move it in fragments.
const longest = 16 << 20

// fragments packs or unpacks a longer message whose tensors are not one contiguous tensor in host memory. It has two blocks: a
// device copies between the tensors and one of them while the transport has the other one.
type fragments struct {
	content *content
	into    bool
	device  *deviceTensor // nil if all tensors are in host memory
	blocks  [2]fragmentBlock
	host    unsafe.Pointer // the memory of the blocks, if there is no device
	err     error          // why Open or Close has failed
}

type fragmentBlock struct {
	data   unsafe.Pointer
	pinned *mem.Pinned
	has    int64      // of a send: where the fragment begins that is packed here; -1: none is
	copied cuda.Event // the copy to or from the block; 0: it is over
}

// fragmenter returns what moves a message of so many bytes in fragments; nil: it goes as a whole.
func fragmenter(comm transport.Comm, bytes int64) transport.Fragmenter {
	if bytes <= longest {
		return nil
	}
	f, _ := comm.(transport.Fragmenter)
	return f
}

// newFragments prepares the fragments of tensors in host memory, or of those of d.
func newFragments(c *content, into bool, d *deviceTensor) (f *fragments, err error) {
	f = &fragments{content: c, into: into, device: d}
	if d == nil {
		f.host, err = mem.Alloc(int64(len(f.blocks)) * transport.FragmentBytes) // what is not used of it takes no memory
	}
	for i := 0; i < len(f.blocks) && err == nil; i++ {
		b := &f.blocks[i]
		b.has = -1
		if d == nil {
			b.data = unsafe.Add(f.host, i*transport.FragmentBytes)
		} else if b.pinned, err = d.pin(transport.FragmentBytes); err == nil {
			b.data = b.pinned.Data
		}
	}
	if err != nil {
		f.free()
		return nil, err
	}
	return f, nil
}

func (f *fragments) block(from int64) *fragmentBlock {
	return &f.blocks[from/transport.FragmentBytes%int64(len(f.blocks))]
}

// Open implements transport.Packer.
func (f *fragments) Open(from, n int64) (unsafe.Pointer, error) {
	b := f.block(from)
	if !f.into && f.err == nil {
		f.err = f.pack(b, from, n)
	}
	done := b.copied == 0
	if !done && f.err == nil {
		if done, f.err = f.content.device.Query(b.copied); done && f.err == nil {
			f.content.device.PutEvent(b.copied)
			b.copied = 0
		}
	}
	if f.err != nil || !done {
		return nil, f.err
	}
	if next := from + n; !f.into && f.device != nil && next < f.content.bytes {
		f.err = f.pack(f.block(next), next, min(transport.FragmentBytes, f.content.bytes-next)) // while this one moves
	}
	return b.data, f.err
}

// Close implements transport.Packer.
func (f *fragments) Close(from, n int64) error {
	if f.into && f.err == nil {
		f.err = f.move(f.block(from), from, n)
	}
	return f.err
}

// pack begins to copy a fragment to its block, unless it was begun.
func (f *fragments) pack(b *fragmentBlock, from, n int64) error {
	if b.has == from {
		return nil
	}
	b.has = from
	return f.move(b, from, n)
}

// move copies between a block and the tensors. A device has begun to when it returns.
func (f *fragments) move(b *fragmentBlock, from, n int64) (err error) {
	if f.device == nil {
		return f.content.copy(b.data, from, n, f.into, 0)
	}
	b.copied, err = f.device.move(b.data, from, n)
	return err
}

// last returns the event that follows the copies of a receive, all of whose fragments are closed. It is the caller's.
func (f *fragments) last() (e cuda.Event) {
	b := f.block(f.content.bytes - 1)
	e, b.copied = b.copied, 0
	return e
}

// free gives back the blocks. Copies from or to them may still be queued.
func (f *fragments) free() {
	for i := range f.blocks {
		b := &f.blocks[i]
		if b.pinned != nil {
			mem.PutPinned(b.pinned, f.device.stream())
		}
		if b.copied != 0 {
			f.content.device.PutEvent(b.copied)
		}
		*b = fragmentBlock{}
	}
	mem.Free(f.host)
	f.host = nil
}
