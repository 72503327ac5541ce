package trace

import (
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// recorded is a ring whose operations a Collector records. Its memory stays when the process has died, so what came last is read, too.
//
// How the operations are counted. Between two moments the ring has given away so many numbers: those of operations, and those that an
// operation has passed over, which the ring counts. So what was neither passed over, nor kept, nor is under way, was lost: overwritten
// before it was read.
type recorded struct {
	view   *View
	mem    []byte
	head   header // as it was when the ring was opened; checked
	counts *counts
	list   *[room]entry

	first, firstPassed, firstLost uint64 // when the recording began

	last    uint64   // the number up to which it has looked
	open    []uint64 // numbers up to last whose operations had not ended, or had not begun
	before  uint64   // operations that were under way when the recording began, and were kept
	kept    uint64   // operations
	thinned uint64   // numbers that were left out on purpose
	groups  map[int64]Group
	joined  uint64 // see header.joined, when the groups were read
	packer  packer
	extents []extent // of the spool
	polled  uint64   // when, in ticks
	judged  uint64   // the last number, when the collector last judged
	width   uint64   // how many entries operations are to use
	backed  uint64   // how many have memory
	ending  int      // a descriptor that can be read once the process has ended; -1: there is none
	ended   int64    // when its process was seen to have ended, in nanoseconds since 1970; 0: it has not
}

// openRecorded opens the ring of a process. It returns nil if the ring is another process's. A ring that is younger than since is recorded
// from its beginning.
func openRecorded(pid int, file ringFile, since uint64) (*recorded, error) {
	v, err := Open(segment.Address{PID: pid, FD: file.fd, Inode: file.inode})
	if err != nil {
		return nil, err
	}
	r := &recorded{view: v, groups: map[int64]Group{}, width: some, ending: openProcess(pid)}
	if err := r.start(since); err != nil {
		r.close()
		return nil, err
	}
	if r.head.pid != innerPID(pid) {
		r.close()
		return nil, nil
	}
	return r, nil
}

// start maps the ring, and begins to record.
func (r *recorded) start(since uint64) (err error) {
	if r.view.file.Size() < fewSize {
		return status.New(status.Argument, "the ring has %d bytes", r.view.file.Size())
	}
	var b [headerSize]byte
	if _, err := descriptor(r.view.file.FD()).ReadAt(b[:], 0); err != nil {
		return status.New(status.Argument, "the ring cannot be read: %v", err)
	}
	r.head = *(*header)(unsafe.Pointer(&b[0]))
	if err := r.head.check(); err != nil {
		return err
	}
	if r.head.clock != clockKind() {
		return status.New(status.Argument, "the ring has clock %d, this process reads clock %d", r.head.clock, clockKind())
	}
	if r.view.file.Size() < ringSize {
		return status.New(status.Argument, "the ring has %d bytes instead of %d", r.view.file.Size(), ringSize)
	}
	if r.mem, err = r.view.file.Map(); err != nil {
		return err
	}
	r.counts = &r.header().counts
	r.list = (*[room]entry)(unsafe.Pointer(&r.mem[headerSize+groupsSize]))
	if r.head.ticks < since {
		r.passOver()
	}
	if atomic.LoadUint64(&r.counts.wide) == room-entries { // by itself (Widen), or for another collector
		r.width, r.backed = room, room
	}
	return nil
}

func (r *recorded) header() *header { return (*header)(unsafe.Pointer(&r.mem[0])) }

// passOver leaves out what has ended before the recording.
func (r *recorded) passOver() {
	r.firstPassed, r.firstLost = atomic.LoadUint64(&r.counts.passed), atomic.LoadUint64(&r.counts.lost)
	r.first = atomic.LoadUint64(&r.counts.next)
	r.last, r.judged = r.first, r.first
	for i := range r.entries() {
		if word := atomic.LoadUint64(&r.list[i].word); word != 0 && word&ended == 0 && word>>numberFrom <= r.first {
			r.open = append(r.open, word>>numberFrom)
		}
	}
	slices.Sort(r.open)
}

// entries returns how many entries may be in use. The others may have no memory: this process does not touch them.
func (r *recorded) entries() int {
	if atomic.LoadUint64(&r.counts.widened) == 0 {
		return entries
	}
	return room
}

// widen has operations use more entries until a time.
func (r *recorded) widen(until uint64) {
	if r.backed < r.width {
		// Without memory an operation would end its process.
		if err := r.view.file.Reserve(fewSize, int64(r.width-entries)*entrySize); err != nil {
			return
		}
		r.backed = r.width
	}
	r.counts.widen(r.width, until)
}

// How many entries operations may use, or have used: the likely number first.
var narrowly, usually, fully = []uint64{entries}, []uint64{some, entries, room}, []uint64{room, some, entries}

func (r *recorded) widths() []uint64 {
	switch {
	case r.entries() == entries:
		return narrowly
	case r.width == some:
		return usually
	}
	return fully
}

// found says what a number of an operation stands for.
type found int

const (
	gone     found = iota // another operation has the entry
	unsure                // an operation takes the entry, or has passed over it
	underWay              // the operation has not ended
	isOver                // e is a copy of what it has recorded
)

// look looks for an operation, of which it copies what is recorded if it has ended.
func (r *recorded) look(n, next uint64, e *entry) found {
	at, newer, most := &r.list[0], false, uint64(r.entries())
	var word uint64
	for _, width := range r.widths() {
		at = &r.list[n&(width-1)]
		if word = atomic.LoadUint64(&at.word); word>>numberFrom == n {
			break
		}
		newer = newer || word>>numberFrom > n
	}
	switch {
	case word>>numberFrom != n && (newer || n+most <= next):
		return gone
	case word>>numberFrom != n:
		return unsure
	case word&(writing|ended) != ended:
		return underWay
	}
	from, to := (*[entrySize / 8]uint64)(unsafe.Pointer(at)), (*[entrySize / 8]uint64)(unsafe.Pointer(e))
	for i := range from {
		to[i] = atomic.LoadUint64(&from[i])
	}
	if e.word != word || atomic.LoadUint64(&at.word) != word {
		return gone // overwritten meanwhile
	}
	return isOver
}

// next returns the last number that the ring has given away. ok is false if that cannot be: any process can write anything.
func (r *recorded) next() (n uint64, ok bool) {
	n = atomic.LoadUint64(&r.counts.next)
	return n, n >= r.last && n < 1<<(64-numberFrom)
}

// poll keeps what has ended, and returns how many numbers are new.
func (r *recorded) poll() (taken uint64) {
	next, ok := r.next()
	if !ok {
		return 0
	}
	taken = next - r.last
	if taken == 0 && len(r.open) == 0 {
		return 0
	}
	if j := atomic.LoadUint64(&r.header().joined); j != r.joined {
		r.readGroups()
	}
	still := r.open[:0]
	for _, n := range r.open {
		still = r.take(n, next, still)
	}
	from := r.last + 1
	if taken > room {
		from = next - room + 1
	}
	for n := from; n <= next; n++ {
		still = r.take(n, next, still)
	}
	r.open, r.last = still, next
	return taken
}

// take keeps an operation if it has ended, and else appends it to open if a later look may find it.
func (r *recorded) take(n, next uint64, open []uint64) []uint64 {
	var e entry
	switch r.look(n, next, &e) {
	case isOver:
		r.keep(&e)
	case underWay, unsure:
		if len(open) < room {
			return append(open, n)
		}
	}
	return open
}

func (r *recorded) keep(e *entry) {
	r.packer.add(e)
	if r.kept++; e.word>>numberFrom <= r.first {
		r.before++
	}
}

// lostSoFar returns how many operations were not recorded. While operations take entries it is exact but for these.
func (r *recorded) lostSoFar() uint64 {
	passed, lost := atomic.LoadUint64(&r.counts.passed)-r.firstPassed, atomic.LoadUint64(&r.counts.lost)-r.firstLost
	known := r.kept - r.before + passed + r.thinned
	var e entry
	for _, n := range r.open {
		if n > r.first && r.look(n, r.last, &e) >= underWay {
			known++
		}
	}
	if numbers := r.last - r.first; numbers > known {
		return lost + numbers - known
	}
	return lost
}

// readGroups reads the groups of the ring. Those that it does not have any more are kept.
func (r *recorded) readGroups() {
	i, err := readOnce(descriptor(r.view.file.FD()))
	if err != nil {
		return
	}
	r.joined = i.header.joined
	for _, g := range decodeGroups(i.groups, int(r.head.size)) {
		r.groups[g.ID] = g
	}
}

// job returns the job of the rank.
func (r *recorded) job() string {
	return hex(atomic.LoadUint64(&r.header().job))
}

// flushFrom is the size from which what was packed goes to the spool.
const flushFrom = 64 << 10

// flush moves what was packed to the spool, if it is so many bytes.
func (r *recorded) flush(s *spool, from int) error {
	if len(r.packer.bytes) < from || len(r.packer.bytes) == 0 {
		return nil
	}
	x, err := s.append(r.packer.bytes)
	if err == nil {
		r.extents = append(r.extents, x)
		r.packer.bytes = r.packer.bytes[:0]
	}
	return err
}

func (r *recorded) close() {
	if r.ending >= 0 {
		_ = syscall.Close(r.ending)
		r.ending = -1
	}
	if r.mem != nil {
		_ = syscall.Munmap(r.mem)
		r.mem = nil
	}
	r.view.Close()
}

// copyUnderWay copies what an operation has recorded that has not ended.
func (r *recorded) copyUnderWay(n uint64) (e entry, ok bool) {
	for _, width := range r.widths() {
		from, to := (*[entrySize / 8]uint64)(unsafe.Pointer(&r.list[n&(width-1)])), (*[entrySize / 8]uint64)(unsafe.Pointer(&e))
		for range copies {
			for i := range from {
				to[i] = atomic.LoadUint64(&from[i])
			}
			if e.word == n<<numberFrom && atomic.LoadUint64(&from[0]) == e.word {
				return e, true
			}
		}
	}
	return e, false
}
