package arrive

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// Wire is the arrival of a group that spans nodes, or whose members cannot share memory: a
// nonblocking allreduce of 64 bytes, on a communicator that carries no other collectives.
//
// The vector holds each word and its complement, combined by bitwise or. A bit that is set in both
// differs between two members. If a word differs or a member has refused, which all members see in
// the same result, an allgather of 32 bytes for each member follows. So the error can say which
// ranks called what.
//
// An allreduce tells neither which members are late nor which will never come. Members ask each
// other by message (package group): Standing is the answer of this member, and Learn takes in the
// answer of another one. A member that has announced a collective may withdraw from it later.
type Wire struct {
	comm  transport.Comm
	n, me int

	announced atomic.Uint64      // newest collective that this member has announced
	mu        sync.Mutex         // guards gaveUp and withdrawn
	gaveUp    *Withdrawal        // what this member answers; nil while it takes part in everything
	withdrawn map[int]Withdrawal // members that take part no more, as far as this one has learnt; by the first of them

	request  *transport.Request // of the round under way
	vec      []uint64           // wireWords that are sent, then wireWords that are received
	entry    []uint64           // what this member has announced: entryWords
	gathered []uint64           // what all members have announced: entryWords for each
	block    unsafe.Pointer
	stage    int  // 0 idle, 1 allreduce under way, 2 allgather under way
	last     bool // a member has left: the allreduce under way, or the one before, is the last
	state    State
	result   Result
	entries  []Entry
}

// Withdrawal says that a member takes no part in collective Seq and in all later ones. Member By was the
// first that did not, for Reason: either it is the member itself, or the member follows what it has learnt.
type Withdrawal struct {
	Seq    uint64
	By     int
	Reason status.Code
}

const (
	wireWords  = 8 // three words and the flags, each with its complement
	entryWords = 4
)

// NewWire makes the arrival of the members of comm. There must be no other collectives on comm. The buffers are
// 64-byte aligned memory outside the Go heap.
func NewWire(comm transport.Comm) (*Wire, error) {
	n := comm.Size()
	words := 2*wireWords + entryWords + n*entryWords
	block, err := mem.Alloc(int64(words) * 8)
	if err != nil {
		return nil, err
	}
	room := unsafe.Slice((*uint64)(block), words)
	return &Wire{
		comm: comm, n: n, me: comm.Rank(), block: block,
		vec:      room[:2*wireWords],
		entry:    room[2*wireWords : 2*wireWords+entryWords],
		gathered: room[2*wireWords+entryWords:],
	}, nil
}

// Announce starts the allreduce.
func (w *Wire) Announce(seq uint64, sig *Signature, flags Flags, _ Note, _ int) (State, Result, error) {
	return Pending, Result{}, w.announce(seq, sig, flags)
}

// Leave announces, in the place of collective seq, the next one, that this member comes to no more, because
// of reason. So no allreduce of another member stays under way for ever, and each member that comes to seq
// finds it closed. If an allreduce of this member is under way, it is the last: the others are told if they
// ask. The caller polls Settled afterwards. No member announces anything after a collective in which one left.
func (w *Wire) Leave(seq uint64, reason status.Code) error {
	w.GiveUp(seq, reason)
	if w.stage != 0 || w.last {
		return nil
	}
	w.last = true
	return w.announce(seq, &Signature{uint64(reason)}, Left)
}

// announce starts the allreduce of what this member announces.
func (w *Wire) announce(seq uint64, sig *Signature, flags Flags) error {
	for i, v := range sig {
		w.vec[2*i], w.vec[2*i+1] = v, ^v
		w.entry[i] = v
	}
	f := uint64(flags)
	w.vec[2*len(sig)], w.vec[2*len(sig)+1] = f, ^f
	w.entry[len(sig)] = f
	err := w.start(transport.Or, &w.vec[0], &w.vec[wireWords], wireWords, 1)
	if err == nil {
		w.announced.Store(seq) // what was not started is not announced
	}
	return err
}

func (w *Wire) start(what transport.Round, mine, all *uint64, words, stage int) (err error) {
	w.state, w.stage = Pending, stage
	if w.request, err = w.comm.Start(what, unsafe.Pointer(mine), unsafe.Pointer(all), words); err != nil {
		w.stage = 0
	}
	return err
}

// Poll takes the comparison further. It ignores spin, because every look is a test of a request. A
// collective in which some member takes no part is closed, even if all have announced it: it could not end.
func (w *Wire) Poll(int) (State, Result, error) {
	if w.stage == 0 {
		return w.state, w.result, nil
	}
	if !transport.Over(w.comm, w.request) {
		if w.closed() {
			return Closed, Result{}, nil
		}
		return Pending, Result{}, nil
	}
	stage := w.stage
	err := w.comm.Err(w.request)
	w.comm.Release(w.request)
	w.request, w.stage = nil, 0
	if err != nil {
		return Pending, Result{}, err
	}
	if stage == 1 {
		w.compare()
		if w.last = w.result.Any&Left != 0; w.result.All&Left != 0 {
			w.state = Closed // all have left: nobody asks who
			return w.state, w.result, nil
		}
		// All members see in the same result whether the allgather follows. A member that knows already that the
		// collective is closed takes part too, or the allgather of the others would never end.
		if w.state == Agreed && w.result.Any&(Refused|Left) == 0 {
			if w.closed() {
				w.state = Closed
			}
			return w.state, w.result, nil
		}
		return Pending, Result{}, w.start(transport.Gather, &w.entry[0], &w.gathered[0], entryWords, 2)
	}
	switch {
	case w.last:
		w.learnWhoLeft()
		w.state = Closed
	case w.result.Diff != 0:
		w.state = Differ
	default:
		w.state = Agreed
	}
	return w.state, w.result, nil
}

// learnWhoLeft notes the members that have left, as they have announced.
func (w *Wire) learnWhoLeft() {
	for i, e := range w.Entries() {
		if e.Flags&Left != 0 {
			w.Learn(Withdrawal{w.announced.Load(), i, status.Code(e.Signature[0])})
		}
	}
}

func (w *Wire) compare() {
	got := w.vec[wireWords:]
	w.result = Result{Any: Flags(got[wireWords-2]), All: ^Flags(got[wireWords-1])}
	for i := 0; i < len(Signature{}); i++ {
		if got[2*i]&got[2*i+1] != 0 {
			w.result.Diff |= 1 << i
		}
	}
	w.state = Agreed
	if w.result.Diff != 0 {
		w.state = Differ
	}
}

// Entries returns what each member has announced.
func (w *Wire) Entries() []Entry {
	if w.entries == nil {
		w.entries = make([]Entry, w.n)
	}
	for i := range w.entries {
		row := w.gathered[i*entryWords : (i+1)*entryWords]
		copy(w.entries[i].Signature[:], row)
		w.entries[i].Flags = Flags(row[entryWords-1])
	}
	return w.entries
}

// Missing returns known = false: an allreduce does not tell which members are late.
func (w *Wire) Missing() ([]int, bool) { return nil, false }

// GiveUp records that this member takes no part in seq and in all later collectives, for members that
// ask. If another member was the first, as this one has learnt, the answer names that one and its reason.
// GiveUp always returns true: each member has its own deadline, which counts after the arrival too,
// because nothing blocks across nodes.
func (w *Wire) GiveUp(seq uint64, reason status.Code) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gaveUp != nil && w.gaveUp.Seq <= seq {
		return true
	}
	w.gaveUp = &Withdrawal{seq, w.me, reason}
	for by := range w.n {
		if first, ok := w.withdrawn[by]; ok && first.Seq <= seq {
			w.gaveUp = &Withdrawal{seq, by, first.Reason}
			break
		}
	}
	return true
}

// Standing returns whether this member has announced seq, and its withdrawal if it takes no part in seq, or none
// any more. It is safe for concurrent use, also after Close.
func (w *Wire) Standing(seq uint64) (announced bool, gaveUp *Withdrawal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gaveUp != nil && w.gaveUp.Seq <= seq {
		gaveUp = w.gaveUp
	}
	return w.announced.Load() >= seq, gaveUp
}

// GaveUp returns the withdrawal of this member, nil while it takes part in everything.
func (w *Wire) GaveUp() *Withdrawal {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gaveUp
}

// Learn records what another member has answered. It is safe for concurrent use.
func (w *Wire) Learn(about Withdrawal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.withdrawn == nil {
		w.withdrawn = map[int]Withdrawal{}
	}
	if known, ok := w.withdrawn[about.By]; !ok || about.Seq < known.Seq {
		w.withdrawn[about.By] = about
	}
}

// Closers returns the members that take no part in seq and were the first, as far as this one has learnt.
func (w *Wire) Closers(seq uint64) map[int]status.Code {
	w.mu.Lock()
	defer w.mu.Unlock()
	var who map[int]status.Code
	for member, g := range w.withdrawn {
		if g.Seq <= seq {
			if who == nil {
				who = map[int]status.Code{}
			}
			who[member] = g.Reason
		}
	}
	return who
}

// closed tells whether some member takes no part in the current collective.
func (w *Wire) closed() bool { return len(w.Closers(w.announced.Load())) > 0 }

// Settled tests a comparison that was given up. It ends when the other members have come.
func (w *Wire) Settled() bool {
	if w.stage != 0 {
		_, _, _ = w.Poll(0)
	}
	return w.stage == 0
}

// Close frees the buffers, unless a comparison is under way: then the transport may still write to them.
func (w *Wire) Close() error {
	if w.stage == 0 && w.block != nil {
		mem.Free(w.block)
		w.block = nil
	}
	return nil
}

var _ Arrival = (*Wire)(nil)
