// Package transport is the seam between the rooms that make and use groups and what carries their bytes. They
// know only the interfaces of this package. Package mpi implements them by libmpi (mpi.Communicator), and on
// its fake, mpifake, by goroutines.
package transport

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/work"
)

// Wait waits until done returns true, or returns why the wait has ended before.
type Wait func(done func() bool) error

// Exchange lets some ranks tell each other words, before they have anything else in common. All of them call
// the same methods, in the same order, with the same number of words.
type Exchange interface {
	// Rank returns the rank of this process among the Size ranks.
	Rank() int
	Size() int
	// Gather returns the words of every rank, by rank. It waits by wait; nil stands for as long as it takes.
	Gather(words []int64, wait Wait) ([][]int64, error)
	// Min replaces each word by the least of all ranks.
	Min(words []int64) error
	// Node makes an exchange of the ranks that share memory with this one.
	Node() (Exchange, error)
	Free() error
}

// Limited is an Exchange that is told how those of its calls wait that do not say so themselves.
type Limited interface {
	// WaitBy tells it; nil stands for as long as it takes. A call ends with the error of the wait.
	WaitBy(wait Wait)
	// Await waits like these calls.
	Await(done func() bool) error
	// Missing returns the ranks whose words have not come, of the call that waits, or whose wait has ended with an error last.
	Missing() []int
}

// Endpoint sends bytes to some ranks and receives them. Tags are from 0 to MaxTag. Data is outside the Go heap,
// and stays valid until the request is done. All methods are safe for concurrent use.
type Endpoint interface {
	Rank() int
	Size() int
	MaxTag() int32
	// Eager returns the bytes of the longest message that goes to another node without asking its receiver first, if two
	// of this length are faster than one of both; else 0.
	Eager() int64
	Send(data unsafe.Pointer, bytes int64, to, tag int32) (*Request, error)
	// Receive takes the next message of a rank, or of AnySource, with a tag, or AnyTag. It may be shorter.
	Receive(data unsafe.Pointer, bytes int64, from, tag int32) (*Request, error)
	// Probe tells whether such a message has come.
	Probe(from, tag int32) (st Status, found bool, err error)
	// Match also takes it out, so that only Take receives it.
	Match(from, tag int32) (m Message, found bool, err error)
	Take(m Message, data unsafe.Pointer, bytes int64) (*Request, error)
	// Cancel gives up a Receive. It ends then: Cancelled says whether nothing was received.
	Cancel(r *Request) error
	Requests
}

// QuickOpener is a Comm of one node whose short messages C code may send and receive without Go (memory/quick.h).
type QuickOpener interface {
	// OpenQuick lets C do so for a group of all its ranks; nil: it cannot.
	OpenQuick(g QuickGroup) Quick
}

// Quick is what C carries out of the messages of a group.
type Quick interface {
	// Hold says that by more messages wait for something before they begin: C overtakes none.
	Hold(by int32)
	// Close ends it, before the Comm is freed.
	Close()
}

// QuickGroup is what C has to know of a group.
type QuickGroup struct {
	ID      int64 // in this process
	MaxTag  int32
	Crowded bool           // the node has fewer cores than ranks
	Trace   unsafe.Pointer // a trace.Shared, which is read at once
}

// Fragmenter is an Endpoint that moves a message in fragments. So tensors that do not lie in one piece are packed and unpacked
// while the message moves, and no rank needs a copy of the whole.
type Fragmenter interface {
	// SendFragments sends a message of more than 64 KiB. ReceiveFragments takes one of exactly this length; of another one it
	// takes nothing but the length.
	SendFragments(p Packer, bytes int64, to, tag int32) (*Request, error)
	ReceiveFragments(p Packer, bytes int64, from, tag int32) (*Request, error)
	// Refuse ends a message that was matched: its sender is done, and nobody gets it.
	Refuse(m Message) (*Request, error)
}

// FragmentBytes is the length of a fragment. The last one of a message may be shorter.
const FragmentBytes = 8 << 20

// Packer packs or unpacks a message; UCX calls such a thing a generic datatype. The transport goes through the fragments once, in
// their order, under a lock, on any thread, and calls nothing any more when the request is done.
type Packer interface {
	// Open returns the block of the fragment of n bytes that begins at from: what is sent lies there, what is received goes
	// there. It returns nil if it is to be called again, because that is still copied. A block stays until the fragment is
	// closed, also if the next one is opened before that.
	Open(from, n int64) (unsafe.Pointer, error)
	// Close ends the use of a block. What was received goes into the tensors.
	Close(from, n int64) error
}

// Bounder is an Endpoint that keeps messages which nobody has received.
type Bounder interface {
	// Bound says that its messages are the application's: the sender of many that nobody receives has to wait.
	Bound()
}

// PeerFailer is an Endpoint that does not see by itself that a rank has died.
type PeerFailer interface {
	// FailPeer ends the requests with a rank that has died, with an error: nobody reads or writes their memory any more.
	FailPeer(rank int)
}

// Requests looks after requests.
type Requests interface {
	// Poller tests requests, which it knows by their Address. It is the same for all of one process, so that
	// they are tested together. Two concurrent tests must not have a request in common.
	Poller() work.Poller
	// Pace tells how often polling moves data at present.
	Pace() work.Pace
	// Err returns the error of a request that is done, nil if there is none.
	Err(r *Request) error
	// Release frees a request that is done.
	Release(r *Request)
}

// Round is a collective of words that is polled.
type Round int

// The rounds, and what each rank gets.
const (
	Barrier Round = iota // nothing
	Gather               // the words of all ranks, by rank
	Min                  // the least of each word, as int64
)

// Comm connects some ranks by a context of its own: no message or round of another Comm meets those of this one.
type Comm interface {
	Exchange
	Endpoint
	// Start begins a round, and does not wait. mine and all are outside the Go heap.
	Start(what Round, mine, all unsafe.Pointer, words int) (*Request, error)
	// Dup makes another Comm of the same ranks. All of them call it. It waits as Gather does.
	Dup(wait Wait) (Comm, error)
	// Create makes a Comm of some of the ranks, in the given order. Only these call it, with the same key.
	Create(ranks []int, key uint64) (Comm, error)
	// FirstSendWaits tells whether the first message to a rank may not return until that rank calls something.
	FirstSendWaits() bool
	// MatchesFirst tells whether a receive from a rank, or AnySource, has to Match its message and then Take it, since Receive may
	// not find it, or may write more than there is room for.
	MatchesFirst(from int32) bool
	// TakesDeviceMemory tells whether the transport says that it takes addresses of device memory, and what it
	// says. After a yes the caller has to try.
	TakesDeviceMemory() (aware bool, says string)
	// HostMemoryOnly tells whether it never takes such addresses, whatever a user says.
	HostMemoryOnly() bool
	// Gone tells whether the transport was shut down by somebody else: nothing of it may be called any more.
	Gone() bool
}

// AnySource and AnyTag are wildcards of receives and probes.
const (
	AnySource int32 = -1
	AnyTag    int32 = -1
)

// Status says what a receive or a probe has found.
type Status struct {
	Source int32
	Tag    int32
	Bytes  int64 // length of the message
}

// Message is one that Match has taken out.
type Message struct {
	Status
	Handle uintptr // the transport's
}

// Request is a call that is under way. It is outside the Go heap, because C may write to it. Another thread may end it: the
// fields after done are valid once Done returns true.
type Request struct {
	Handle uintptr // the transport's
	done   int32
	Code   int32 // the transport's code of an error; 0 is success
	Source int32
	Tag    int32
	Bytes  int64
	// Cancelled is 1 if the receive was given up after Cancel.
	Cancelled int32
	Kind      int32   // the transport's word for what was started
	Made      uintptr // the transport's handle of what was made
}

// Done tells whether the call is over. Who is told so sees the fields behind it.
func (r *Request) Done() bool { return atomic.LoadInt32(&r.done) != 0 }

// End says that the call is over. The fields are set.
func (r *Request) End() { atomic.StoreInt32(&r.done, 1) }

// Address is by what a Poller knows the request.
func (r *Request) Address() uintptr { return uintptr(unsafe.Pointer(r)) }

// TakeNow receives a short message that has come, and returns when it is there.
func TakeNow(e Endpoint, m Message, data unsafe.Pointer, bytes int64) error {
	r, err := e.Take(m, data, bytes)
	if err != nil {
		return err
	}
	for !Over(e, r) {
	}
	defer e.Release(r)
	return e.Err(r)
}

// one is room for the address of a request, so that Over, which is called in loops, allocates nothing.
var one = sync.Pool{New: func() any { return new([1]uintptr) }}

// Over tests one request, and tells whether it is done.
func Over(q Requests, r *Request) bool {
	if !r.Done() {
		a := one.Get().(*[1]uintptr)
		a[0] = r.Address()
		q.Poller().Poll(a[:])
		one.Put(a)
	}
	return r.Done()
}

// EveryRank returns the ranks of a Comm of that size, in order.
func EveryRank(size int) []int {
	all := make([]int, size)
	for r := range all {
		all[r] = r
	}
	return all
}
