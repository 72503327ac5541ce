package arrive

/*
#include "slots.h"
#cgo noescape pa_arrive
#cgo nocallback pa_arrive
#cgo noescape pa_poll
#cgo nocallback pa_poll
#cgo noescape pa_payload
#cgo nocallback pa_payload
*/
import "C"

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// PayloadRoom returns the most bytes of a Payload in a group of n members: pa_room, without the call.
func PayloadRoom(n int) int64 {
	return int64(max(C.PA_LEAST_NOTE, min(C.PA_NOTE, C.PA_NOTES/n/64*64)))
}

var _ [C.PA_REFUSED]struct{} = [Refused]struct{}{} // slots.c sets the flag, too

// Rooms returns the most bytes of payloads. Control slots sum nothing up on the way.
func (l *ControlSlots) Rooms() Rooms {
	room := PayloadRoom(l.n)
	return Rooms{Payload: room, Gathered: room, Alone: room}
}

// Slots is the number of collectives that a member may have announced and not finished.
const Slots = C.PA_SLOTS

// ControlSlots is the arrival of a group on one node. Each member has a block of cache lines in a segment
// that all members map. To announce a collective takes a few stores, to poll one load for each
// member.
//
// A member may announce collectives ahead of its turn. Announce, Turn, Poll, Entries and Missing are of
// the collective whose turn it is: one goroutine at a time calls them. The other methods may be called
// from several.
type ControlSlots struct {
	mem     []byte
	n, me   int
	seq     uint64 // the collective whose turn it is
	from    C.int
	yield   C.int
	entries []Entry
	stops   sync.Mutex // held by GiveUp and Stop: both look at what this member said before
}

// yieldEvery is after how many pauses Poll yields the core, some 10 us. The kernel may have put two ranks onto one core, though
// others are free: then the one that waits keeps the other from what it waits for.
const yieldEvery = 256

// ControlSlotsSize returns the bytes that the control slots of n members take.
func ControlSlotsSize(n int) int64 { return int64(C.pa_size(C.int(n))) }

// NewControlSlots maps the control slots of n members for member me. The file has ControlSlotsSize(n) bytes, all 0 before
// the first member announces, or more: see Behind. It may be closed afterwards.
func NewControlSlots(file *segment.File, n, me int) (*ControlSlots, error) {
	mem, err := file.Map()
	if err != nil {
		return nil, err
	}
	return &ControlSlots{mem: mem, n: n, me: me, yield: yieldEvery, entries: make([]Entry, n)}, nil
}

// Behind returns the memory that the file has behind the control slots. It stays until Close.
func (l *ControlSlots) Behind() unsafe.Pointer { return unsafe.Pointer(&l.mem[ControlSlotsSize(l.n)]) }

// Yields returns after how many pauses Poll yields the core.
func (l *ControlSlots) Yields() int { return int(l.yield) }

// YieldEvery makes Poll yield the core after that many pauses, instead of some 10 us, 0: never. On nodes with more ranks than
// cores it is to be small.
func (l *ControlSlots) YieldEvery(pauses int) { l.yield = C.int(pauses) }

func (l *ControlSlots) base() *C.pa_member {
	return (*C.pa_member)(unsafe.Pointer(unsafe.SliceData(l.mem)))
}

// Announce announces collective seq, whose turn it is, and polls once.
func (l *ControlSlots) Announce(seq uint64, sig *Signature, flags Flags, payload Payload, spin int) (State, Result, error) {
	_, state, r := l.AnnounceAndSum(seq, sig, flags, payload, spin, nil, nil)
	return state, r, nil
}

// Sum is a reduction of the payloads of all members, which AnnounceAndSum carries out if all have announced. It has the
// memory layout of pa_sum.
type Sum struct {
	Folder      unsafe.Pointer // a pa_folder
	To          unsafe.Pointer // where the result goes
	Count       int64          // elements of a payload
	Need, Avoid Flags          // that all members must have set, and that no member may have set
}

// AnnounceAndSum is Announce that goes on to s (nil: to nothing), with fold, if all members have arrived, agree and have the right flags.
// summed says that it did. Then nothing is left to be done with this collective.
func (l *ControlSlots) AnnounceAndSum(seq uint64, sig *Signature, flags Flags, payload Payload, spin int, s *Sum, fold unsafe.Pointer) (summed bool, state State, r Result) {
	l.seq = seq
	var all, any, diff C.uint32_t
	got := C.pa_arrive(l.base(), C.int(l.n), C.int(l.me), C.uint64_t(seq), (*C.uint64_t)(&sig[0]), C.uint32_t(flags),
		(*C.uint8_t)(payload.Data), C.uint32_t(payload.Bytes), C.int(spin), l.yield, &l.from, &all, &any, &diff, (*C.pa_sum)(unsafe.Pointer(s)), (*C.char)(fold))
	summed = got == C.PA_SUMMED_UP
	if summed {
		got = C.PA_AGREED
	}
	return summed, State(got), Result{All: Flags(all), Any: Flags(any), Diff: uint32(diff)}
}

// MayAnnounce tells whether the ring has a slot for collective seq, ahead of its turn.
func (l *ControlSlots) MayAnnounce(seq uint64) bool {
	return C.pa_may_announce(l.base(), C.int(l.n), C.uint64_t(seq)) != 0
}

// AnnounceAhead announces collective seq ahead of its turn. MayAnnounce has returned true.
func (l *ControlSlots) AnnounceAhead(seq uint64, sig *Signature, flags Flags, payload Payload) {
	C.pa_announce(l.base(), C.int(l.n), C.int(l.me), C.uint64_t(seq), (*C.uint64_t)(&sig[0]), C.uint32_t(flags|Ahead),
		(*C.uint8_t)(payload.Data), C.uint32_t(payload.Bytes))
}

// Turn says that it is the turn of collective seq, which was announced ahead.
func (l *ControlSlots) Turn(seq uint64) {
	l.seq, l.from = seq, 0
	C.pa_turn(l.base(), C.int(l.me), C.uint64_t(seq))
}

// Finish says that this member has finished with collective seq, in its turn.
func (l *ControlSlots) Finish(seq uint64) { C.pa_turn(l.base(), C.int(l.me), C.uint64_t(seq+1)) }

// Finished tells whether all members have finished with collective seq, as far as they have said.
func (l *ControlSlots) Finished(seq uint64) bool {
	return C.pa_finished(l.base(), C.int(l.n), C.uint64_t(seq)) != 0
}

// HasFinished is Finished for one member.
func (l *ControlSlots) HasFinished(i int, seq uint64) bool {
	return C.pa_has_finished(l.base(), C.int(i), C.uint64_t(seq)) != 0
}

// ReadNoMore tells whether no other member looks at anything of collective seq any more: it has finished with seq, or is gone.
func (l *ControlSlots) ReadNoMore(seq uint64) bool {
	if l.Finished(seq) {
		return true
	}
	for i := range l.n {
		if i != l.me && !l.HasFinished(i, seq) && !l.Gone(i) {
			return false
		}
	}
	return true
}

// Look tests whether all members have announced collective seq, whose turn it need not be.
func (l *ControlSlots) Look(seq uint64) (State, Result) {
	var from C.int
	var all, any, diff C.uint32_t
	s := C.pa_poll(l.base(), C.int(l.n), C.int(l.me), C.uint64_t(seq), 0, 0, &from, &all, &any, &diff)
	return State(s), Result{All: Flags(all), Any: Flags(any), Diff: uint32(diff)}
}

// Poll tests whether all members have announced.
func (l *ControlSlots) Poll(spin int) (State, Result, error) {
	var all, any, diff C.uint32_t
	s := C.pa_poll(l.base(), C.int(l.n), C.int(l.me), C.uint64_t(l.seq), C.int(spin), l.yield, &l.from, &all, &any, &diff)
	return State(s), Result{All: Flags(all), Any: Flags(any), Diff: uint32(diff)}, nil
}

// Payload returns the payload of member i for collective seq, at which all members have arrived, and how
// long it is. It stays valid until this member has finished with seq. A length that no payload can have
// counts as 0, because what follows the payload belongs to something else.
func (l *ControlSlots) Payload(seq uint64, i int) (payload unsafe.Pointer, bytes int64) {
	var length C.uint32_t
	payload = C.pa_payload(l.base(), C.int(l.n), C.int(i), C.uint64_t(seq), &length)
	return payload, int64(length)
}

// Rubbish returns the member in whose slot Announce or Poll has found rubbish, and tells the other
// members so. It is called after they have returned Rubbish.
func (l *ControlSlots) Rubbish() (member int) {
	C.pa_blame(l.base(), C.int(l.me), l.from)
	return int(l.from)
}

// Blamed returns the member in whose slot member i says that it found rubbish. ok is false if it says
// nothing of the kind.
func (l *ControlSlots) Blamed(i int) (member int, ok bool) {
	who := int(C.pa_blamed(l.base(), C.int(l.n), C.int(i)))
	return who - 1, who > 0
}

// Chunks returns the words with which the members share out the work of collective seq, and how many
// there are (package shm).
func (l *ControlSlots) Chunks(seq uint64) (words unsafe.Pointer, n int) {
	return unsafe.Pointer(C.pa_chunks(l.base(), C.int(l.n), C.uint64_t(seq))), max(C.PA_LEAST_CHUNKS, l.n+1)
}

// Entries returns what each member has announced.
func (l *ControlSlots) Entries() []Entry {
	members := unsafe.Slice(l.base(), l.n)
	for i := range l.entries {
		s := &members[i].slot[l.seq%Slots]
		for w := range l.entries[i].Signature {
			l.entries[i].Signature[w] = uint64(s.word[w])
		}
		l.entries[i].Flags = Flags(s.flags)
		if C.pa_late(l.base(), C.int(l.n), C.int(i), C.uint64_t(l.seq)) != 0 {
			l.entries[i].Flags |= Refused
		}
	}
	return l.entries
}

// Missing returns the members that have not announced the current collective.
func (l *ControlSlots) Missing() ([]int, bool) {
	var missing []int
	for i := 0; i < l.n; i++ {
		if C.pa_here(l.base(), C.int(i), C.uint64_t(l.seq)) == 0 {
			missing = append(missing, i)
		}
	}
	return missing, true
}

// GiveUp closes collective seq unless all members have announced it. This member has announced it, or
// may announce it.
func (l *ControlSlots) GiveUp(seq uint64, reason status.Code) bool {
	l.stops.Lock()
	defer l.stops.Unlock()
	return C.pa_close(l.base(), C.int(l.n), C.int(l.me), C.uint64_t(seq), C.uint32_t(reason)) != 0
}

// Refuse refuses collective seq, which this member has announced. It returns false if all members have
// announced it.
func (l *ControlSlots) Refuse(seq uint64) bool {
	return C.pa_refuse(l.base(), C.int(l.n), C.int(l.me), C.uint64_t(seq)) != 0
}

// Stop says that this member takes no part from collective seq on, whoever has announced it.
func (l *ControlSlots) Stop(seq uint64, reason status.Code) {
	l.stops.Lock()
	defer l.stops.Unlock()
	C.pa_stop(l.base(), C.int(l.me), C.uint64_t(seq), C.uint32_t(reason))
}

// Explain says why this member gives up a collective at which all members have arrived. Why returns
// what a member has said last.
func (l *ControlSlots) Explain(reason status.Code) {
	C.pa_explain(l.base(), C.int(l.me), C.uint32_t(reason))
}

// Why returns the last reason that member i has given for anything that it gave up.
func (l *ControlSlots) Why(i int) status.Code { return status.Code(C.pa_why(l.base(), C.int(i))) }

// GivenUp tells whether a member takes no part in collective seq.
func (l *ControlSlots) GivenUp(seq uint64) bool { return len(l.Closers(seq)) > 0 }

// Closers returns the members that take no part in collective seq, and why.
func (l *ControlSlots) Closers(seq uint64) map[int]status.Code {
	var who map[int]status.Code
	for i := 0; i < l.n; i++ {
		if reason := C.pa_closer(l.base(), C.int(l.n), C.int(i), C.uint64_t(seq)); reason != 0 {
			if who == nil {
				who = map[int]status.Code{}
			}
			who[i] = status.Code(reason)
		}
	}
	return who
}

// Settled is always true: MPI has no part in these arrivals.
func (l *ControlSlots) Settled() bool { return true }

// Leave tells the other members that this one has left.
func (l *ControlSlots) Leave() { C.pa_leave(l.base(), C.int(l.me), C.PA_LEFT) }

// Go tells the other members that this one looks at nothing any more that they share. In the control slots of a world it follows Leave:
// the process of this one may end, and they need it no more.
func (l *ControlSlots) Go() { C.pa_leave(l.base(), C.int(l.me), C.PA_GONE) }

// Bury says of member i, which is dead, what Go says of this one.
func (l *ControlSlots) Bury(i int) { C.pa_leave(l.base(), C.int(i), C.PA_GONE) }

// Gone returns whether member i has called Go.
func (l *ControlSlots) Gone(i int) bool { return C.pa_left(l.base(), C.int(i)) == C.PA_GONE }

// Left returns whether member i has left, or is gone.
func (l *ControlSlots) Left(i int) bool {
	how := C.pa_left(l.base(), C.int(i))
	return how == C.PA_LEFT || how == C.PA_GONE
}

// Fail tells the other members that the process of this one ends with a status, which is not 0.
func (l *ControlSlots) Fail(exit int) {
	C.pa_leave(l.base(), C.int(l.me), C.PA_FAILED+C.uint32_t(exit&0xff))
}

// Failed returns the status with which member i has said that its process ends; 0: it has not.
func (l *ControlSlots) Failed(i int) (exit int) {
	return max(0, min(0xff, int(C.pa_left(l.base(), C.int(i)))-C.PA_FAILED))
}

// Close unmaps the segment.
func (l *ControlSlots) Close() error {
	mem := l.mem
	l.mem = nil
	if mem == nil {
		return nil
	}
	return syscall.Munmap(mem)
}

var _ Arrival = (*ControlSlots)(nil)
