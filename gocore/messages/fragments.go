package messages

import (
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// longest is the length of the longest message that is packed as a whole where the transport can move it in fragments.
const longest = 16 << 20

// fragments packs or unpacks a longer message whose tensors are not one contiguous tensor in host memory. It has two blocks: a
// device copies between the tensors and one of them while the transport has the other one. In host memory the message itself copies
// (work) what the transport has asked for, which holds its lock meanwhile and no longer: other messages pass.
type fragments struct {
	*packed
	mu     sync.Mutex // guards what follows, but for the blocks' memory
	blocks [2]fragmentBlock
	err    error // why a copy has failed
}

type fragmentBlock struct {
	block
	from, n int64      // the fragment that was packed here last, or is to be copied
	asked   bool       // the message is to copy it
	copied  cuda.Event // the copy to or from the block; 0: it is over
}

// fragmenter returns what moves a message of so many bytes in fragments; nil: it goes as a whole.
func fragmenter(comm transport.Comm, bytes int64) transport.Fragmenter {
	if bytes <= longest {
		return nil
	}
	f, _ := comm.(transport.Fragmenter)
	return f
}

// newFragments prepares the fragments of a message. What it returns is to be freed also after an error.
func newFragments(p *packed) (f *fragments, err error) {
	f = &fragments{packed: p}
	for i := range f.blocks {
		b := &f.blocks[i]
		b.from = -1
		if b.block, err = p.newBlock(transport.FragmentBytes); err != nil {
			break
		}
	}
	return f, err
}

func (f *fragments) place(from int64) *fragmentBlock {
	return &f.blocks[from/transport.FragmentBytes%int64(len(f.blocks))]
}

// Open implements transport.Packer.
func (f *fragments) Open(from, n int64) (unsafe.Pointer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.place(from)
	if !f.recv {
		f.begin(b, from, n)
	}
	if f.err == nil && b.copied != 0 {
		var done bool
		if done, f.err = f.device.Query(b.copied); done && f.err == nil {
			f.device.PutEvent(b.copied)
			b.copied = 0
		}
	}
	if f.err != nil || b.asked || b.copied != 0 {
		return nil, f.err
	}
	if next := from + n; !f.recv && f.device != nil && next < f.bytes {
		f.begin(f.place(next), next, min(transport.FragmentBytes, f.bytes-next)) // while this one moves
	}
	return b.data, f.err
}

// Close implements transport.Packer.
func (f *fragments) Close(from, n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.recv {
		f.begin(f.place(from), from, n)
	}
	return f.err
}

// begin begins to copy a fragment, unless that was begun. The caller holds mu.
func (f *fragments) begin(b *fragmentBlock, from, n int64) {
	if b.from == from || f.err != nil {
		return
	}
	b.from, b.n = from, n
	if b.asked = f.device == nil; !b.asked {
		b.copied, f.err = f.move(b.block, from, n)
	}
}

// work copies in host memory what was asked for, and tells whether there was something. One goroutine at a time calls it.
func (f *fragments) work() (copied bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.blocks {
		b := &f.blocks[i]
		if !b.asked {
			continue
		}
		f.mu.Unlock()
		_, err := f.move(b.block, b.from, b.n)
		f.mu.Lock()
		if b.asked, copied = false, true; f.err == nil {
			f.err = err
		}
	}
	return copied
}

// last returns the event that follows the copies of a receive, all of whose fragments are closed. It is the caller's.
func (f *fragments) last() (e cuda.Event) {
	b := f.place(f.bytes - 1)
	e, b.copied = b.copied, 0
	return e
}

// free gives back the blocks. Copies from or to them may still be queued.
func (f *fragments) free() {
	for i := range f.blocks {
		b := &f.blocks[i]
		if b.data != nil {
			f.freeBlock(&b.block)
		}
		if b.copied != 0 {
			f.device.PutEvent(b.copied)
			b.copied = 0
		}
	}
}
