package mpi

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Communicator implements transport.Comm by a communicator of a Library.
type Communicator struct {
	lib        Library
	comm       Comm
	rank, size int
	word       Datatype
	min        Op // FreeAll forgets them, and the departure of a world comes after that
	// taking is held by who looks at a message and by who takes one: MPI_Iprobe of Open MPI 5.0.11 reads the length after it has left its
	// lock, and says 0 of a message that another thread takes meanwhile (measured).
	taking *sync.Mutex
}

// calls are what the methods that send and receive hand to the library.
var calls = sync.Pool{New: func() any { return new(Call) }}

// NewCommunicator returns a communicator with what the seam asks of it.
func NewCommunicator(lib Library, comm Comm) (*Communicator, error) {
	rank, err := lib.Rank(comm)
	if err != nil {
		return nil, err
	}
	size, err := lib.Size(comm)
	if err != nil {
		return nil, err
	}
	c := &Communicator{lib: lib, comm: comm, rank: rank, size: size, taking: new(sync.Mutex)}
	c.word, _ = lib.TypeOf(op.Int64)
	c.min, _ = lib.OpOf(op.Min, op.Int64)
	return c, nil
}

// Of returns the library and the communicator behind c. The communicator is 0 if c is nil.
func Of(c transport.Comm) (Library, Comm) {
	if c, ok := c.(*Communicator); ok {
		return c.lib, c.comm
	}
	return nil, 0
}

// other returns another communicator of this library.
func (c *Communicator) other(comm Comm, rank, size int) *Communicator {
	made := *c
	made.comm, made.rank, made.size, made.taking = comm, rank, size, new(sync.Mutex)
	return &made
}

// FirstSendWaits is about Intel MPI, which makes a connection at the first message: that MPI_Isend does not
// return until the other rank is inside MPI (measured).
func (c *Communicator) FirstSendWaits() bool { return c.lib.Info().Name == "Intel MPI" }

// MatchesFirst is about two defects. Open MPI 5.0.11 writes all of a message that it does not send at once, also what a posted
// receive has no room for, so a receive has to know the length before. With MPICH 5.0.2 and UCX an MPI_Irecv from MPI_ANY_SOURCE
// does not always get the second of two messages of another node that have come before it; MPI_Improbe finds it (both measured).
func (c *Communicator) MatchesFirst(from int32) bool {
	switch c.lib.Info().Name {
	case "Open MPI":
		return true
	case "MPICH", "MVAPICH":
		return from == AnySource
	}
	return false
}

// Eager is about TCP, where Open MPI and MPICH ask the receiver before they send more than 64 KiB with its header. 256 KiB in five messages take
// 0.75 to 0.93 of the time of one. Intel MPI gains nothing by two messages (measured).
func (c *Communicator) Eager() int64 {
	switch c.lib.Info().Name {
	case "Intel MPI":
		return 0
	}
	return 60 << 10
}

func (c *Communicator) Rank() int           { return c.rank }
func (c *Communicator) Size() int           { return c.size }
func (c *Communicator) MaxTag() int32       { return c.lib.TagUB() }
func (c *Communicator) Gone() bool          { return c.lib.Finalized() }
func (c *Communicator) Free() error         { return c.lib.Free(c.comm) }
func (c *Communicator) Poller() work.Poller { return c.lib.Poller() }
func (c *Communicator) Pace() work.Pace     { return c.lib.Pace() }

func (c *Communicator) Release(r *transport.Request)      { c.lib.Release(r) }
func (c *Communicator) Err(r *transport.Request) error    { return c.lib.Err(r) }
func (c *Communicator) Cancel(r *transport.Request) error { return c.lib.Cancel(r) }

func (c *Communicator) TakesDeviceMemory() (aware bool, says string) {
	if q, ok := c.lib.(CUDAQuery); ok {
		return q.QueryCUDA()
	}
	return false, "this MPI cannot be asked"
}

func (c *Communicator) HostMemoryOnly() bool { return false }

// round returns the call of a round.
func (c *Communicator) round(what transport.Round, mine, all unsafe.Pointer, words int) *Call {
	q := &Call{Comm: c.comm, SendBuf: mine, SendCount: int64(words), SendType: c.word, RecvBuf: all, RecvCount: int64(words), RecvType: c.word}
	switch what {
	case transport.Barrier:
		return &Call{Fn: FnBarrier, Comm: c.comm}
	case transport.Gather:
		q.Fn = FnAllgather
	case transport.Min:
		q.Fn, q.Op = FnAllreduce, c.min
	}
	return q
}

func (c *Communicator) Start(what transport.Round, mine, all unsafe.Pointer, words int) (*transport.Request, error) {
	return c.lib.Start(c.round(what, mine, all, words))
}

// within starts a call and waits for its end. If the wait ends before, MPI may still write to what the call
// names, and to the request.
func (c *Communicator) within(q *Call, wait transport.Wait) (made Comm, over bool, err error) {
	r, err := c.lib.Start(q)
	if err != nil {
		return 0, true, err
	}
	if err := wait(func() bool { return transport.Over(c, r) }); err != nil {
		return 0, false, err
	}
	defer c.Release(r)
	return Comm(r.Made), true, c.Err(r)
}

// words carries out a round of words. The result has n words.
func (c *Communicator) words(what transport.Round, words []int64, n int, wait transport.Wait) ([]int64, error) {
	block, err := mem.Alloc(int64(8 * (len(words) + n)))
	if err != nil {
		return nil, err
	}
	room := unsafe.Slice((*int64)(block), len(words)+n)
	copy(room, words)
	q, over := c.round(what, block, unsafe.Add(block, 8*len(words)), len(words)), true
	if wait == nil {
		err = c.lib.Run(q, nil)
	} else {
		_, over, err = c.within(q, wait)
	}
	if over {
		defer mem.Free(block)
	}
	if err != nil {
		return nil, err
	}
	return slices.Clone(room[len(words):]), nil
}

func (c *Communicator) Gather(words []int64, wait transport.Wait) ([][]int64, error) {
	all, err := c.words(transport.Gather, words, c.size*len(words), wait)
	if err != nil {
		return nil, err
	}
	return slices.Collect(slices.Chunk(all, len(words))), nil
}

func (c *Communicator) Min(words []int64) error {
	least, err := c.words(transport.Min, words, len(words), nil)
	if err == nil {
		copy(words, least)
	}
	return err
}

func (c *Communicator) Node() (transport.Exchange, error) {
	comm, err := c.lib.SplitShared(c.comm)
	if err != nil {
		return nil, err
	}
	return NewCommunicator(c.lib, comm)
}

func (c *Communicator) Dup(wait transport.Wait) (transport.Comm, error) {
	var comm Comm
	var err error
	if wait == nil {
		comm, err = c.lib.Dup(c.comm)
	} else {
		comm, _, err = c.within(&Call{Fn: FnDup, Comm: c.comm}, wait)
	}
	if err != nil {
		return nil, err
	}
	return c.other(comm, c.rank, c.size), nil
}

func (c *Communicator) Create(ranks []int, key uint64) (transport.Comm, error) {
	list := make([]int32, len(ranks))
	for i, r := range ranks {
		list[i] = int32(r)
	}
	comm, err := c.lib.CreateGroup(c.comm, list, int32(key%uint64(c.lib.TagUB())))
	if err != nil {
		return nil, err
	}
	return c.other(comm, slices.Index(ranks, c.rank), len(ranks)), nil
}

// transfer starts a send or a receive; m is the message of FnMrecv. The datatype of a long one is freed at
// once: MPI keeps it for the calls that use it (MPI-4.1 section 5.1.9).
func (c *Communicator) transfer(fn Fn, data unsafe.Pointer, bytes int64, peer, tag int32, m Message) (*transport.Request, error) {
	kind := c.lib.Byte()
	if bytes > MaxCount {
		long, free, err := c.lib.Bytes(bytes)
		if err != nil {
			return nil, err
		}
		defer free()
		bytes, kind = 1, long
	}
	q := calls.Get().(*Call)
	defer calls.Put(q)
	*q = Call{Fn: fn, Comm: c.comm, Peer: peer, Tag: tag, Message: m}
	if fn == FnSend {
		q.SendBuf, q.SendCount, q.SendType = data, bytes, kind
	} else {
		q.RecvBuf, q.RecvCount, q.RecvType = data, bytes, kind
		c.taking.Lock()
		defer c.taking.Unlock()
	}
	return c.lib.Start(q)
}

func (c *Communicator) Send(data unsafe.Pointer, bytes int64, to, tag int32) (*transport.Request, error) {
	return c.transfer(FnSend, data, bytes, to, tag, 0)
}

func (c *Communicator) Receive(data unsafe.Pointer, bytes int64, from, tag int32) (*transport.Request, error) {
	return c.transfer(FnRecv, data, bytes, from, tag, 0)
}

func (c *Communicator) Take(m transport.Message, data unsafe.Pointer, bytes int64) (*transport.Request, error) {
	return c.transfer(FnMrecv, data, bytes, m.Source, m.Tag, Message(m.Handle))
}

func (c *Communicator) Probe(from, tag int32) (Status, bool, error) {
	c.taking.Lock()
	defer c.taking.Unlock()
	return c.lib.Iprobe(c.comm, from, tag)
}

func (c *Communicator) Match(from, tag int32) (transport.Message, bool, error) {
	c.taking.Lock()
	defer c.taking.Unlock()
	m, st, found, err := c.lib.Improbe(c.comm, from, tag)
	return transport.Message{Status: st, Handle: uintptr(m)}, found, err
}

var _ transport.Comm = (*Communicator)(nil)
