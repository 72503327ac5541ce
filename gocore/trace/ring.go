// Package trace is the flight recorder: a ring of the last operations of this process, in a memory file
// that other processes read without its help. So they can read what a stopped process does, or what a
// process did that has died.
//
// An operation takes an entry when it is submitted (Ring.Begin) and keeps it until it has ended. Only
// that operation writes to the entry meanwhile. The next operations pass over entries of operations
// under way: the oldest of these is what a reader wants to know most.
//
// How a reader knows that it has read one operation. The word of an entry has the number of its
// operation, and says whether that writes to the entry now (bit writing) and whether it has ended (bit
// ended). A writer sets the first bit by a compare-and-swap, writes the other fields, and then stores the
// word without that bit, with release order. A reader copies the ring twice. An entry whose copies are
// the same, without that bit, is the state of one operation: if the first copy has a part of a later
// state, the second copy, which begins after that, has the bit or the rest of that state (read.go).
package trace

import (
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace/cpu"
)

// entry.h, by which C enters messages, has some of these numbers too.
const (
	magic   = 0x6361727469706d70 // "pmpitrac"
	version = 2

	fileName   = "paddlempi-trace"
	entries    = 1024      // that operations use while nobody records: a power of 2
	some       = 4 * 1024  // that they use while somebody does, as a rule: as many as fit into the caches of a core
	room       = 16 * 1024 // that they use at the most: a power of 2, as both others
	entrySize  = 128
	headerSize = 4096
	areaSize   = 64 << 10
	groupsSize = 2 * areaSize
	fewSize    = headerSize + groupsSize + entries*entrySize // what has memory from the beginning
	ringSize   = headerSize + groupsSize + room*entrySize

	// The bits of an entry's word below the number of its operation.
	writing    = 1
	ended      = 2
	numberFrom = 2

	// tries is the number of entries that an operation looks at before it goes without one.
	tries = 16
)

// header is the beginning of the file.
type header struct {
	magic     uint64
	version   uint32
	entrySize uint32
	entries   uint32
	groups    uint32 // bytes for groups
	pid       int64
	rank      int32
	size      int32
	clock     uint64
	ticks     uint64 // when the ring was made
	monotonic uint64 // the same moment
	joined    uint64 // see joined
	host      [64]byte
	boot      [40]byte // of the kernel: ranks with the same one share their clocks
	told      [toldSlots]told
	job       uint64 // a random number, the same on all ranks of the world; 0: not known yet

	generation uint64 // how often the world was reformed before it became this one
	counts     counts // has a cache line for itself
}

var _ [0]byte = [unsafe.Offsetof(header{}.counts) % 64]byte{}

// counts is what an operation reads and writes to find its entry; tr_counts of entry.h.
type counts struct {
	next    uint64 // the number of the last operation, or of the last entry that one has passed over
	wide    uint64 // how many entries more than the first ones operations use: 0, some-entries or room-entries
	lease   uint64 // in ticks: wide holds until then
	lost    uint64 // operations that found no entry
	passed  uint64 // numbers that operations passed over
	widened uint64 // not 0: operations may have used more than the first entries
}

// widen has operations use so many entries, which have memory, until a time.
func (c *counts) widen(width, until uint64) {
	atomic.StoreUint64(&c.widened, 1)
	atomic.StoreUint64(&c.lease, until)
	atomic.StoreUint64(&c.wide, width-entries)
}

// place returns where the entry of operation n is. A collector (collect.go) that records the operations has them use more entries, for
// some seconds at a time: one that is killed has no effect for longer. What it writes here is no more than a wish: every value is safe.
func (c *counts) place(n uint64) uint64 {
	wide := atomic.LoadUint64(&c.wide)
	if wide != 0 && n%entries == 0 && now() > atomic.LoadUint64(&c.lease) {
		wide = 0
		atomic.StoreUint64(&c.wide, wide)
	}
	return n & (entries - 1 + wide&(room-entries))
}

// told says that this rank has reported a long wait.
type told struct {
	id uint64 // the same on all ranks that wait for the same
	at uint64 // monotonic
}

// toldSlots is how many of its reports a ring keeps.
const toldSlots = 8

// entry is the record of one operation. Times are ticks, 0 if the operation has not come so far.
type entry struct {
	word      uint64
	submitted uint64
	begun     uint64
	ended     uint64
	outcome   uint64 // valid if the word has the bit ended
	seq       uint64 // number of a collective in its group, once it has one
	group     uint32 // id of the group in this process
	flags     Flags
	arrived   uint64
	signature [3]uint64
	algorithm [16]byte
	peer      [2]int32 // of a message; of a collective, the first is the member of the phase, the second see share
	tag       [2]int32 // of a message; of a collective: see waited
	phase     phase    // of a collective; of a message: see waited
}

var _ [entrySize]byte = [unsafe.Sizeof(entry{})]byte{}

// phase is the part of a collective over nodes that is under way.
type phase struct {
	name uint32 // 1 plus the place in Phases; 0: none is known
	rail uint32
}

// Phases are the names of phases.
var Phases = [...]string{"on the node", "between the nodes"}

// Flags say more about an operation.
type Flags uint32

const (
	Async    Flags = 1 << iota // the caller does not wait inside its call
	Message                    // the operation is no collective
	Refusing                   // this rank takes part in the arrival only, because its own arguments are wrong
	Access                     // the operation is one of a window: its code is a place in Accesses
)

// Accesses are the names of the operations of windows, by window.Code.
var Accesses = [...]string{1: "Window.put", "Window.get", "Window.accumulate", "Window.get_accumulate", "Window.compare_and_swap", "Window.flush", "Window.fence",
	"Window.signal", "Window.wait_signal", "Window.lock", "Window.lock", "Window.unlock", "Window.free"}

// Ring is the ring of this process. Its methods are safe for concurrent use, and do nothing on a nil
// Ring.
type Ring struct {
	file *segment.File
	mem  []byte
	list *[room]entry

	mu       sync.Mutex // guards the groups of the file, and what follows
	groups   []noted    // what the file has
	nextTold int
}

// New makes an empty ring for a rank of a world of size ranks.
func New(rank, size int) (*Ring, error) {
	file, err := segment.NewSparse(fileName, ringSize, fewSize)
	if err != nil {
		return nil, err
	}
	mem, err := file.Map()
	if err != nil {
		file.Close()
		return nil, err
	}
	// A forked child must not write here: it gets no mapping.
	if err := syscall.Madvise(mem, syscall.MADV_DONTFORK); err != nil {
		_ = syscall.Munmap(mem)
		file.Close()
		return nil, status.New(status.Unsupported, "cannot keep the trace from forked children: %v", err)
	}
	r := &Ring{file: file, mem: mem, list: (*[room]entry)(unsafe.Pointer(&mem[headerSize+groupsSize]))}
	h, begin := r.header(), takeMoment()
	*h = header{version: version, entrySize: entrySize, entries: room, groups: groupsSize, pid: int64(os.Getpid()),
		rank: int32(rank), size: int32(size), clock: clockKind(), ticks: begin.ticks, monotonic: begin.monotonic}
	host, _ := os.Hostname()
	copy(h.host[:], host)
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	copy(h.boot[:], boot)
	atomic.StoreUint64(&h.magic, magic) // last: a reader that sees it sees the others
	return r, nil
}

func (r *Ring) header() *header { return (*header)(unsafe.Pointer(&r.mem[0])) }

// Close frees the ring. No Mark of it is used any more.
func (r *Ring) Close() {
	if r == nil || r.mem == nil {
		return
	}
	_ = syscall.Munmap(r.mem)
	r.mem, r.list = nil, nil
	r.file.Close()
}

// Shared is where the ring is, for C code of this process that enters operations: tr_ring of entry.h. It is valid until Close.
type Shared struct {
	Counts *counts
	List   unsafe.Pointer
	Clock  uint64
}

// Shared returns where the ring is; zeros: there is none.
func (r *Ring) Shared() Shared {
	if r == nil || r.list == nil {
		return Shared{}
	}
	return Shared{&r.header().counts, unsafe.Pointer(r.list), clockKind()}
}

// Widen has operations use all entries for some seconds, because somebody is about to record them.
func (r *Ring) Widen() {
	if r == nil {
		return
	}
	if err := r.file.Reserve(fewSize, ringSize-fewSize); err != nil {
		return // as without
	}
	const mostTicks = 5 // a nanosecond
	r.header().counts.widen(room, now()+mostTicks*uint64(leaseTime))
}

// SetGeneration tells readers how often the world was reformed before.
func (r *Ring) SetGeneration(n int) {
	if r != nil {
		atomic.StoreUint64(&r.header().generation, uint64(n))
	}
}

// SetJob tells readers which rings are of the same world.
func (r *Ring) SetJob(job uint64) {
	if r != nil {
		atomic.StoreUint64(&r.header().job, job)
	}
}

// File returns the file of the ring, which stays the ring's.
func (r *Ring) File() *segment.File { return r.file }

// Begin records that an operation of a group is submitted. seq is the number of a collective in its
// group, if it has one already: then it has begun, too. signature is its arrive.Signature; of a message:
// the operation and the dtype likewise, the count of elements, and 0.
func (r *Ring) Begin(group int64, seq uint64, signature *[3]uint64, flags Flags) Mark {
	e, word := r.take()
	if e == nil {
		return Mark{}
	}
	at := now()
	e.submitted, e.arrived, e.algorithm = at, 0, [16]byte{}
	e.group, e.flags, e.seq, e.signature, e.phase = uint32(group), flags, seq, *signature, phase{}
	e.peer, e.tag = [2]int32{}, [2]int32{}
	if seq == 0 {
		at = 0
	}
	e.begun = at
	cpu.Release(&e.word, word)
	return Mark{e, word}
}

// BeginMessage is Begin for a message. peer and tag are those of its first and its second transfer.
func (r *Ring) BeginMessage(group int64, signature *[3]uint64, flags Flags, peer, tag [2]int32) Mark {
	m := r.Begin(group, 0, signature, flags|Message)
	if m.lock() {
		m.e.peer, m.e.tag = peer, tag
		m.unlock()
	}
	return m
}

// BeginAccess is Begin for a call of a window that concerns a member. number is that of the window.
func (r *Ring) BeginAccess(group int64, signature *[3]uint64, member, number int32) Mark {
	return r.BeginMessage(group, signature, Access, [2]int32{member, -1}, [2]int32{number, -1})
}

// take takes an entry, whose word is that of the operation with the bit writing. It returns nil if the
// entries that it looked at are of operations under way.
func (r *Ring) take() (e *entry, word uint64) {
	if r == nil || r.list == nil {
		return nil, 0
	}
	c := &r.header().counts
	for range tries {
		n := atomic.AddUint64(&c.next, 1)
		e := &r.list[c.place(n)]
		old, word := atomic.LoadUint64(&e.word), n<<numberFrom
		if (old == 0 || old&(writing|ended) == ended) && atomic.CompareAndSwapUint64(&e.word, old, word|writing) {
			return e, word
		}
		atomic.AddUint64(&c.passed, 1)
	}
	atomic.AddUint64(&c.lost, 1)
	return nil, 0
}

// Read reads this ring.
func (r *Ring) Read() (*Snapshot, error) {
	if r == nil || r.mem == nil {
		return nil, status.New(status.Unsupported, "this process has no trace")
	}
	return Read(descriptor(r.file.FD()))
}

// Lock is View.Lock for the process whose ring it is.
func (r *Ring) Lock() (unlock func()) {
	if r == nil || r.mem == nil {
		return func() {}
	}
	return lock(r.file.FD())
}

// Tell notes that this rank has reported a wait.
func (r *Ring) Tell(id uint64) {
	if r == nil || r.mem == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	slot := &r.header().told[r.nextTold%toldSlots]
	r.nextTold++
	atomic.StoreUint64(&slot.id, 0)
	atomic.StoreUint64(&slot.at, monotonic())
	atomic.StoreUint64(&slot.id, id)
}

// Mark is the entry of one operation. The zero Mark is of an operation that has no entry. The methods
// may be called from several goroutines. They do nothing after End: the entry may be another
// operation's then.
type Mark struct {
	e    *entry
	word uint64
}

// lock sets the bit writing, if the operation has an entry and has not ended.
func (m Mark) lock() bool {
	for m.e != nil && !atomic.CompareAndSwapUint64(&m.e.word, m.word, m.word|writing) {
		if atomic.LoadUint64(&m.e.word) != m.word|writing {
			return false
		}
		runtime.Gosched() // another goroutine writes
	}
	return m.e != nil
}

func (m Mark) unlock() { cpu.Release(&m.e.word, m.word) }

// Begun records that a collective has got its number and was announced, or that MPI was called for a
// message (seq is 0). Only the first call counts.
func (m Mark) Begun(seq uint64) {
	if m.lock() {
		if m.e.begun == 0 {
			m.e.seq, m.e.begun = seq, now()
		}
		m.unlock()
	}
}

// Arrived records that all members have announced a collective.
func (m Mark) Arrived() {
	if m.lock() {
		m.e.arrived = now()
		m.unlock()
	}
}

// Waited records that the caller of an asynchronous operation begins to wait for its end. Only the first call counts. It must not be
// called when the ring may have been closed.
func (m Mark) Waited() {
	if m.lock() {
		if at := m.e.waited(); *at == 0 {
			*at = now()
		}
		m.unlock()
	}
}

// Share records how many bytes this rank has in a collective whose members have shares of different lengths: the signature tells no length
// then. It is called soon after Begin.
func (m Mark) Share(bytes int64) {
	if m.lock() {
		m.e.peer[1] = int32(math.Float32bits(float32(bytes + 1))) // exact up to 16 MiB, and to 24 bits beyond
		m.unlock()
	}
}

// share returns 1 plus the bytes of Share; 0 if it was not called.
func (e *entry) share() int64 {
	bytes := math.Float32frombits(uint32(e.peer[1]))
	if e.flags&Message != 0 || !(bytes >= 1 && bytes < 1<<62) {
		return 0
	}
	return int64(bytes)
}

// waited is where an operation has the time at which its caller began to wait: a collective has no tags, and a message no phases.
func (e *entry) waited() *uint64 {
	if e.flags&Message != 0 {
		return (*uint64)(unsafe.Pointer(&e.phase))
	}
	return (*uint64)(unsafe.Pointer(&e.tag))
}

// Algorithm records the algorithm that a collective takes: all members have announced it. It is called before
// End by the goroutine that carries the collective out, so it needs no lock, unless the caller begins to wait at this moment.
func (m Mark) Algorithm(name string) {
	if m.e == nil {
		return
	}
	if atomic.LoadUint64(&m.e.word) == m.word {
		copy(m.e.algorithm[:], name)
	} else if m.lock() {
		copy(m.e.algorithm[:], name)
		m.unlock()
	}
}

// Phase records which phase a collective over nodes is in: the place in Phases, the rail, and the member that is
// awaited, -1 if there is none.
func (m Mark) Phase(name, rail, member int) {
	if m.lock() {
		m.e.phase, m.e.peer[0] = phase{uint32(name) + 1, uint32(rail)}, int32(member)
		m.unlock()
	}
}

// UnderWay tells whether the operation has not ended, as far as its entry says. The ring is not closed.
func (m Mark) UnderWay() bool { return m.e == nil || atomic.LoadUint64(&m.e.word)&^writing == m.word }

// End records how the operation ended, as its caller is told. It returns false if an earlier call did.
func (m Mark) End(code status.Code) (first bool) {
	if !m.lock() {
		return m.e == nil
	}
	m.e.outcome, m.e.ended = uint64(code), now()
	cpu.Release(&m.e.word, m.word|ended)
	return true
}
