package window

import (
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
)

// Calls to a member that is reached by messages. The elements are copied into the message, so an access that raises leaves
// nothing behind that reads or writes the caller's memory. The member carries the calls of this one out in
// their order, and says how far it has come.

const (
	// mostCalls and mostBytes are how many calls to a member may be under way, and how many bytes of elements in them.
	mostCalls = 64
	mostBytes = 8 << 20
	// mostAsked is how many pieces of one access whose elements come back are under way.
	mostAsked = 16
)

// pending is a call that the member has not answered.
type pending struct {
	w     *Window
	given int64 // bytes of elements there, and back
	taken int64
	wants bool // an answer is awaited: elements, or that the lock is taken

	over atomic.Bool // the answer has come: the next two are valid
	err  error
	back *arrival // with the elements; nil if there are none
	data []byte

	dropped bool // nobody waits for it any more; the Windows' mu guards it
}

// call is what is sent to a member.
type call struct {
	head
	at   box
	data [2]unsafe.Pointer // of the elements that are given; the second one only in a CompareAndSwap
}

// byMessages carries out an access by messages.
func (w *Window) byMessages(a *access, r int, at box, deadline time.Time) error {
	asked := &answers{w: w, r: r, what: a.code.String(), to: a.recv, deadline: deadline}
	defer asked.drop()
	err := at.pieces(w.piece(at.count), func(part box, from int64) error {
		c := call{head: head{code: a.code, reduce: a.reduce, more: from+part.count < at.count}, at: part}
		if c.data[0] = shifted(a.send, from*w.members.elem); a.code == CompareAndSwap {
			c.data = [2]unsafe.Pointer{a.compare, a.send}
		}
		p, err := w.send(asked.what, r, &c, deadline)
		if err != nil {
			return err
		}
		if !p.wants {
			return nil
		}
		asked.list = append(asked.list, answer{p, from})
		return asked.await(mostAsked - 1)
	})
	if err == nil {
		err = asked.await(0)
	}
	return err
}

// piece returns the elements of a piece. Pieces are of one length: the member carries one out while the next one is sent, and
// the longest one that is left to carry out when all are sent is as short as it can be.
func (w *Window) piece(count int64) int64 {
	most := pieceBytes / w.members.elem
	n := (count + most - 1) / most
	return max(1, (count+n-1)/max(n, 1))
}

// answers are the pieces of an access whose elements come back.
type answers struct {
	w        *Window
	r        int
	what     string
	to       unsafe.Pointer
	deadline time.Time
	list     []answer
}

type answer struct {
	*pending
	from int64 // elements before it
}

// await waits until at most n answers have not come, and copies the elements of the others. This thread alone writes to the
// caller's memory.
func (s *answers) await(n int) error {
	for len(s.list) > n {
		first := s.list[0]
		if err := s.w.await(s.what, s.deadline, only(s.r), first.over.Load); err != nil {
			return err
		}
		s.list = s.list[1:]
		err := first.err
		if err == nil && s.to != nil {
			copy(unsafe.Slice((*byte)(unsafe.Add(s.to, first.from*s.w.members.elem)), len(first.data)), first.data)
		}
		first.back.free()
		if err != nil {
			return err
		}
	}
	return nil
}

// drop gives up the answers that have not come.
func (s *answers) drop() {
	s.w.ws.mu.Lock()
	defer s.w.ws.mu.Unlock()
	for _, a := range s.list {
		a.dropped = true
		if a.over.Load() {
			a.back.free()
		}
	}
}

// send sends a call to member r. It waits until not too many are under way.
func (w *Window) send(what string, r int, c *call, deadline time.Time) (*pending, error) {
	ws, g := w.ws, w.ws.g
	if err := g.Trouble(what, r); err != nil {
		return nil, err
	}
	c.kind, c.window, c.dtype, c.offset, c.count, c.dims = kindCall, w.number, w.members.dtype, c.at.offset, c.at.count, int32(len(c.at.shape))
	given := c.given()
	p := &pending{w: w, given: given, taken: c.taken(), wants: c.taken() > 0 || c.code == Lock || c.code == LockShared}
	free := func() bool { return ws.mayCall(r) }
	if !free() {
		if err := w.await(what, deadline, only(r), free); err != nil {
			return nil, err
		}
	}
	n := headBytes + int64(c.dims)*dimBytes + given
	block, err := mem.Alloc(n)
	if err != nil {
		return nil, err
	}
	b := unsafe.Slice((*byte)(block), n)
	rest := b[headBytes+int(c.dims)*dimBytes:]
	if c.code == CompareAndSwap {
		copy(rest, unsafe.Slice((*byte)(c.data[0]), w.members.elem))
		copy(rest[w.members.elem:], unsafe.Slice((*byte)(c.data[1]), w.members.elem))
	} else if given > 0 {
		mem.Copy(unsafe.Pointer(&rest[0]), c.data[0], given)
	}
	ws.mu.Lock()
	err = ws.post.call(r, c, p, block, b)
	ws.mu.Unlock()
	if err != nil {
		return nil, prefix(what, err)
	}
	g.Engine().CalledMPI()
	return p, nil
}

// mayCall tells whether another call to a member may begin.
func (ws *Windows) mayCall(r int) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	p := &ws.post.peers[r]
	return p.lost != nil || len(p.pending) == 0 || len(p.pending) < mostCalls && p.bytes < mostBytes
}

// flushFar returns when member r has carried out the calls that were sent to it.
func (w *Window) flushFar(what string, r int, deadline time.Time) error {
	ws := w.ws
	ws.mu.Lock()
	p := &ws.post.peers[r]
	until := p.sent
	ws.mu.Unlock()
	var lost error
	err := w.await(what, deadline, only(r), func() bool {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		lost = p.lost
		return p.acked >= until || lost != nil
	})
	if err == nil {
		err = lost
	}
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err, w.lost[r] = w.lost[r], nil
	return prefix(what, err)
}

// lockFar asks member r for its lock.
func (w *Window) lockFar(what string, r int, shared bool, deadline time.Time) error {
	c := call{head: head{code: Lock}}
	if shared {
		c.code = LockShared
	}
	asked := &answers{w: w, r: r, what: what, deadline: deadline}
	defer asked.drop()
	p, err := w.send(what, r, &c, deadline)
	if err != nil {
		return err
	}
	asked.list = append(asked.list, answer{p, 0})
	if err = asked.await(0); err != nil { // the request may be on its way: it is taken back
		_, _ = w.send(what, r, &call{head: head{code: Unlock}}, deadline)
	}
	return err
}

// pieces calls do for parts of at most most elements, in row-major order. from counts the elements before a part.
func (b box) pieces(most int64, do func(part box, from int64) error) error {
	if b.count <= most {
		return do(b, 0)
	}
	if b.shape == nil {
		b.shape, b.steps = []int64{b.count}, []int64{1}
	}
	inner := b.count / b.shape[0]
	rows := max(1, most/inner)
	for i := int64(0); i < b.shape[0]; i += rows {
		part := b
		part.offset += i * b.steps[0]
		n := min(rows, b.shape[0]-i)
		part.count = n * inner
		part.shape = slices.Clone(b.shape)
		part.shape[0] = n
		if n == 1 {
			part.shape, part.steps = part.shape[1:], part.steps[1:]
		}
		err := part.simple().pieces(most, func(part box, from int64) error { return do(part, i*inner+from) })
		if err != nil {
			return err
		}
	}
	return nil
}
