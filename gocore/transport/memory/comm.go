package memory

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

const maxTag = math.MaxInt32

// Comm implements transport.Comm. Its ranks are processes of one node.
type Comm struct {
	o       *endpoint
	context uint64
	members []int // rank of the endpoint, by rank
	rank    int
	made    atomic.Uint64 // how many Comms were made of this one by Dup
	rounds  *Comm         // carries the rounds, which no receive from any tag may meet; nil there
	begun   atomic.Uint64 // how many rounds have begun
	bounded bool          // its messages are the application's; see bounds
	wait    transport.Wait
	missing []int // see Missing
}

// Open returns the Comm of all ranks of a world, which share the file: Bytes(size) long, and made by one of them for this
// alone. It closes the file. The memory is given back when this Comm and all that were made of it are freed.
func Open(file *segment.File, rank, size int) (*Comm, error) {
	shared, err := file.Map()
	file.Close()
	if err != nil {
		return nil, err
	}
	return New(shared, rank, size, func() { _ = syscall.Munmap(shared) })
}

// New returns the Comm of all ranks of a world. All of them share the memory, Bytes(size) long and
// filled with zeros before the first rank calls New. release is called when this Comm and all that were
// made of it are freed; it may be nil.
func New(shared []byte, rank, size int, release func()) (*Comm, error) {
	if size < 1 || rank < 0 || rank >= size || int64(len(shared)) < Bytes(size) {
		return nil, status.New(status.Argument, "a world in memory: rank %d of %d ranks in %d bytes", rank, size, len(shared))
	}
	o, err := newEndpoint(shared, rank, size)
	if err != nil {
		return nil, err
	}
	o.release = release
	return o.comm(1, transport.EveryRank(size)), nil
}

// comm returns the Comm of some ranks of the endpoint.
func (o *endpoint) comm(number uint64, members []int) *Comm {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.comms++
	c := o.part(number, members)
	c.rounds = o.part(child(number, 0), members)
	return c
}

// part returns a Comm without rounds. The caller holds mu.
func (o *endpoint) part(number uint64, members []int) *Comm {
	delete(o.freed.numbers, number)
	c := o.context(number)
	c.members, c.places = members, map[int]int32{}
	for place, member := range members {
		c.places[member] = int32(place)
	}
	for _, m := range c.came { // before this rank has made it
		m.Source = c.places[m.peer]
	}
	return &Comm{o: o, context: number, members: members, rank: slices.Index(members, o.rank)}
}

func (c *Comm) Rank() int           { return c.rank }
func (c *Comm) Size() int           { return len(c.members) }
func (c *Comm) MaxTag() int32       { return maxTag }
func (c *Comm) Eager() int64        { return 0 }
func (c *Comm) Gone() bool          { return false }
func (c *Comm) Poller() work.Poller { return c.o }

// Pace implements transport.Requests. Whoever writes to a ring, or reads from it, rings.
func (c *Comm) Pace() work.Pace { return work.Rung }

func (c *Comm) FirstSendWaits() bool    { return false }
func (c *Comm) MatchesFirst(int32) bool { return false }

func (c *Comm) TakesDeviceMemory() (aware bool, says string) {
	return false, "ranks without MPI pass device memory by themselves"
}

// HostMemoryOnly implements transport.Comm.
func (c *Comm) HostMemoryOnly() bool { return true }

// Err returns the error of a request that is done.
func (c *Comm) Err(r *transport.Request) error { return errorOf(r) }

// Release frees a request that is done.
func (c *Comm) Release(r *transport.Request) { mem.Free(unsafe.Pointer(r)) }

// allocate is mem.Alloc; tests let it fail.
var allocate = mem.Alloc

// newRequest returns a request outside the Go heap.
func newRequest() (*transport.Request, error) {
	p, err := allocate(int64(unsafe.Sizeof(transport.Request{})))
	if err != nil {
		return nil, err
	}
	r := (*transport.Request)(p)
	*r = transport.Request{}
	return r, nil
}

// check returns the error of a rank or tag that cannot be.
func (c *Comm) check(rank, tag int32, wild bool) error {
	if rank < 0 && !(wild && rank == transport.AnySource) || int(rank) >= len(c.members) {
		return status.New(status.Argument, "rank %d is not among the %d ranks", rank, len(c.members))
	}
	if tag < 0 && !(wild && tag == transport.AnyTag) {
		return status.New(status.Argument, "tag %d is below 0", tag)
	}
	return nil
}

// Send implements transport.Endpoint.
func (c *Comm) Send(data unsafe.Pointer, bytes int64, to, tag int32) (*transport.Request, error) {
	return c.send(spanOf(data, bytes), to, tag)
}

// SendFragments implements transport.Fragmenter.
func (c *Comm) SendFragments(p transport.Packer, bytes int64, to, tag int32) (*transport.Request, error) {
	return c.send(span{packer: p, length: bytes}, to, tag)
}

func (c *Comm) send(what span, to, tag int32) (*transport.Request, error) {
	if err := c.check(to, tag, false); err != nil {
		return nil, err
	}
	r, err := newRequest()
	if err != nil {
		return nil, err
	}
	o, peer, bytes := c.o, c.members[to], what.length
	o.mu.Lock()
	defer o.mu.Unlock()
	p := packet{kind: whole, tag: tag, context: c.context, bytes: bytes}
	out := &o.out[peer]
	switch {
	case out.broken != 0:
		o.end(r, out.broken)
	case what.packer == nil && bytes <= mostWhole && out.sendWhole(&p, what.address(), c.bounded):
		o.end(r, 0)
	case bytes > short:
		p.kind = ask
		o.numbers++
		p.number, p.answer = o.numbers, uint64(uintptr(what.address()))
		o.asked[p.number] = &sending{span: what, r: r, to: peer}
		out.send(&outgoing{head: p, bounded: c.bounded})
	default:
		out.send(&outgoing{head: p, from: what.data, r: r, bounded: c.bounded})
	}
	return r, nil
}

// Receive implements transport.Endpoint.
func (c *Comm) Receive(data unsafe.Pointer, bytes int64, from, tag int32) (*transport.Request, error) {
	return c.receive(spanOf(data, bytes), from, tag)
}

// ReceiveFragments implements transport.Fragmenter.
func (c *Comm) ReceiveFragments(p transport.Packer, bytes int64, from, tag int32) (*transport.Request, error) {
	return c.receive(span{packer: p, length: bytes}, from, tag)
}

func (c *Comm) receive(room span, from, tag int32) (*transport.Request, error) {
	if err := c.check(from, tag, true); err != nil {
		return nil, err
	}
	r, err := newRequest()
	if err != nil {
		return nil, err
	}
	o := c.o
	o.mu.Lock()
	defer o.mu.Unlock()
	w := newReceiving(r, room, from, tag)
	in := o.context(c.context)
	if at := in.find(from, tag); at >= 0 {
		o.taken(w, in.takeOut(at))
		return r, nil
	}
	if from >= 0 && o.in[c.members[from]].broken != 0 {
		o.endReceive(w, o.in[c.members[from]].broken)
		return r, nil
	}
	in.wait(w)
	return r, nil
}

// Probe implements transport.Endpoint.
func (c *Comm) Probe(from, tag int32) (st transport.Status, found bool, err error) {
	m, found, err := c.o.look(c, from, tag, false)
	return m.Status, found, err
}

// Match implements transport.Endpoint.
func (c *Comm) Match(from, tag int32) (m transport.Message, found bool, err error) {
	return c.o.look(c, from, tag, true)
}

// look returns the first message that has come from a rank with a tag. If there is none it takes everything further first. out says
// that the message is taken out.
func (o *endpoint) look(c *Comm, from, tag int32, out bool) (m transport.Message, found bool, err error) {
	if err := c.check(from, tag, true); err != nil {
		return m, false, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	in := o.context(c.context)
	at := in.find(from, tag)
	if at < 0 {
		o.progress()
		if at = in.find(from, tag); at < 0 {
			o.probes(c, from)
			return m, false, nil
		}
	}
	m.Status = in.came[at].Status
	if out {
		o.numbers++
		o.matched[o.numbers], m.Handle = in.takeOut(at), uintptr(o.numbers)
	}
	return m, true, nil
}

// Take implements transport.Endpoint.
func (c *Comm) Take(m transport.Message, data unsafe.Pointer, bytes int64) (*transport.Request, error) {
	r, err := newRequest()
	if err != nil {
		return nil, err
	}
	o := c.o
	o.mu.Lock()
	defer o.mu.Unlock()
	got := o.matched[uint64(m.Handle)]
	if got == nil {
		mem.Free(unsafe.Pointer(r))
		return nil, status.New(status.Argument, "a message that was not matched, or was taken")
	}
	delete(o.matched, uint64(m.Handle))
	o.taken(newReceiving(r, spanOf(data, bytes), 0, 0), got)
	return r, nil
}

// Refuse implements transport.Fragmenter.
func (c *Comm) Refuse(m transport.Message) (*transport.Request, error) { return c.Take(m, nil, 0) }

// Cancel implements transport.Endpoint. The receive ends at once, also if its message was coming: the rest of that is dropped.
func (c *Comm) Cancel(r *transport.Request) error {
	o := c.o
	o.mu.Lock()
	defer o.mu.Unlock()
	o.giveUp(o.context(c.context), r)
	return nil
}

// giveUp ends a receive. The caller holds mu.
func (o *endpoint) giveUp(in *context, r *transport.Request) {
	for i, w := range in.waiting {
		if w.r == r {
			in.waitNoMore(i)
			o.cancelled(w)
			return
		}
	}
	for peer := range o.in {
		if o.in[peer].leaveLong(r) || o.in[peer].leaveOpen(r) {
			return
		}
	}
}

// FailPeer implements transport.PeerFailer. What had come from that rank can still be received.
func (c *Comm) FailPeer(rank int) {
	o := c.o
	o.mu.Lock()
	defer o.mu.Unlock()
	if peer := c.members[rank]; peer != o.rank && !o.closed {
		o.in[peer].collect()
		o.breakOff(peer, codeDied)
	}
}

// child returns the number of a Comm that all members make of another one, in the same order.
func child(of uint64, words ...uint64) uint64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, append([]uint64{of}, words...))
	return h.Sum64() | 1<<63
}

// Dup implements transport.Comm. Nobody waits: the members know the number of the new one.
func (c *Comm) Dup(transport.Wait) (transport.Comm, error) {
	return c.o.comm(child(c.context, c.made.Add(1)), c.members), nil
}

// Node implements transport.Exchange: all ranks are on this node, so it is this Comm.
func (c *Comm) Node() (transport.Exchange, error) { return lent{c}, nil }

// lent is a Comm that is not freed by who got it.
type lent struct{ *Comm }

func (lent) Free() error { return nil }

// Create implements transport.Comm. The keys of Comms of several ranks differ.
func (c *Comm) Create(ranks []int, key uint64) (transport.Comm, error) {
	members := make([]int, len(ranks))
	words := []uint64{key, 0}
	for i, r := range ranks {
		if err := c.check(int32(r), 0, false); err != nil {
			return nil, err
		}
		members[i] = c.members[r]
		words = append(words, uint64(r))
	}
	if len(ranks) == 1 { // nobody else has to know it, and many have the same key
		c.o.mu.Lock()
		c.o.numbers++
		words = append(words, c.o.numbers)
		c.o.mu.Unlock()
	}
	return c.o.comm(child(c.context, words...), members), nil
}

// Free implements transport.Exchange. What comes later for this Comm is kept by nobody.
func (c *Comm) Free() error {
	o := c.o
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget(c.context)
	o.forget(c.rounds.context)
	if o.comms--; o.comms == 0 {
		o.close()
	}
	return nil
}

// Abandon ends the messages of this process in the world of c, whatever Comms there still are: no peer uses the memory any more,
// and FailPeer was called for each. What has come is thrown away.
func Abandon(c *Comm) {
	o := c.o
	o.mu.Lock()
	defer o.mu.Unlock()
	for number := range o.contexts {
		o.forget(number)
	}
	o.breakOff(o.rank, codeDied)
	o.close()
}

// close gives the memory back. The caller holds mu.
func (o *endpoint) close() {
	if o.closed {
		return
	}
	o.closed = true
	if o.release != nil {
		o.release()
	}
}

// WaitBy implements transport.Limited. The goroutine that makes the calls calls it.
func (c *Comm) WaitBy(wait transport.Wait) { c.wait = wait }

// Await implements transport.Limited.
func (c *Comm) Await(done func() bool) error { return until(done, c.wait) }

// until waits by wait; nil: as long as it takes.
func until(done func() bool, wait transport.Wait) error {
	if wait != nil {
		return wait(done)
	}
	for b := (work.Backoff{}); !done(); b.Pause() {
		runtime.Gosched()
	}
	return nil
}
