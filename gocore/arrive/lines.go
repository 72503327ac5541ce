package arrive

/*
#include "lines.h"
#cgo noescape pa_arrive
#cgo nocallback pa_arrive
#cgo noescape pa_poll
#cgo nocallback pa_poll
*/
import "C"

import (
	"os"
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Lines is the arrival of a group on one node: one block of cache lines a member
// in a segment that all of them map. Announcing is three stores, polling one load
// a member. The segment is an anonymous memory file, so nothing can be left behind.
type Lines struct {
	mem     []byte
	n, me   int
	seq     uint64
	from    C.int
	yield   C.int
	file    int // descriptor of the segment on the member that made it, -1 elsewhere
	entries []Entry
}

const memberSize = C.sizeof_pa_member

// NewLines makes the segment for n members and maps it as member me. The others
// attach through (Pid, Fd) until CloseFile is called.
func NewLines(n, me int) (*Lines, error) {
	fd, err := memfd("paddlempi-arrive")
	if err != nil {
		return nil, status.New(status.NoMemory, "cannot make shared memory for %d arrival lines: %v", n, err)
	}
	if err := syscall.Ftruncate(fd, int64(n)*memberSize); err != nil {
		syscall.Close(fd)
		return nil, status.New(status.NoMemory, "cannot size shared memory for %d arrival lines: %v", n, err)
	}
	l, err := mapLines(fd, n, me)
	if err != nil {
		syscall.Close(fd)
		return nil, err
	}
	l.file = fd
	return l, nil
}

// AttachLines maps the segment that process pid holds as descriptor fd. It works
// where both processes see each other's /proc, that is on one host.
func AttachLines(pid, fd, n, me int) (*Lines, error) {
	path := "/proc/" + itoa(pid) + "/fd/" + itoa(fd)
	f, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, status.New(status.Unsupported, "cannot open the arrival lines at %s: %v", path, err)
	}
	defer syscall.Close(f)
	var st syscall.Stat_t
	if err := syscall.Fstat(f, &st); err != nil || st.Size != int64(n)*memberSize {
		return nil, status.New(status.Unsupported, "%s is not a segment of %d arrival lines", path, n)
	}
	return mapLines(f, n, me)
}

func mapLines(fd, n, me int) (*Lines, error) {
	mem, err := syscall.Mmap(fd, 0, n*memberSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, status.New(status.NoMemory, "cannot map %d arrival lines: %v", n, err)
	}
	return &Lines{mem: mem, n: n, me: me, file: -1}, nil
}

// Fd returns the descriptor others attach to, -1 if this member did not make the segment.
func (l *Lines) Fd() int { return l.file }

// Pid returns this process, the other half of the segment's address.
func (l *Lines) Pid() int { return os.Getpid() }

// CloseFile closes the descriptor once everyone has attached.
func (l *Lines) CloseFile() {
	if l.file >= 0 {
		syscall.Close(l.file)
		l.file = -1
	}
}

// YieldEvery makes Poll give the core away every so many pauses (0: never), for
// nodes with more ranks than cores.
func (l *Lines) YieldEvery(pauses int) { l.yield = C.int(pauses) }

func (l *Lines) base() *C.pa_member { return (*C.pa_member)(unsafe.Pointer(unsafe.SliceData(l.mem))) }

// Announce publishes collective seq and looks who is there.
func (l *Lines) Announce(seq uint64, sig *Signature, flags Flags, spin int) (State, Result, error) {
	l.seq = seq
	var all, any, diff C.uint32_t
	s := C.pa_arrive(l.base(), C.int(l.n), C.int(l.me), C.uint64_t(seq), (*C.uint64_t)(&sig[0]), C.uint32_t(flags),
		C.int(spin), l.yield, &l.from, &all, &any, &diff)
	return State(s), Result{All: Flags(all), Any: Flags(any), Diff: uint32(diff)}, nil
}

// Poll looks who is there.
func (l *Lines) Poll(spin int) (State, Result, error) {
	var all, any, diff C.uint32_t
	s := C.pa_poll(l.base(), C.int(l.n), C.int(l.me), C.uint64_t(l.seq), C.int(spin), l.yield, &l.from, &all, &any, &diff)
	return State(s), Result{All: Flags(all), Any: Flags(any), Diff: uint32(diff)}, nil
}

// Entries returns what each member announced.
func (l *Lines) Entries() []Entry {
	if l.entries == nil {
		l.entries = make([]Entry, l.n)
	}
	members := unsafe.Slice(l.base(), l.n)
	for i := range l.entries {
		s := &members[i].slot[l.seq&1]
		for w := range l.entries[i].Signature {
			l.entries[i].Signature[w] = uint64(s.word[w])
		}
		l.entries[i].Flags = Flags(s.flags)
	}
	return l.entries
}

// Missing returns the members that have not announced the current collective.
func (l *Lines) Missing() ([]int, bool) {
	var missing []int
	for i := 0; i < l.n; i++ {
		if uint64(C.pa_seq(l.base(), C.int(i))) < l.seq {
			missing = append(missing, i)
		}
	}
	return missing, true
}

// GiveUp closes collective seq unless everyone has announced it.
func (l *Lines) GiveUp(seq uint64, reason status.Code) bool {
	return C.pa_close(l.base(), C.int(l.n), C.int(l.me), C.uint64_t(seq), C.uint32_t(reason)) != 0
}

// Closers returns who closed collective seq.
func (l *Lines) Closers(seq uint64) map[int]status.Code {
	who := map[int]status.Code{}
	for i := 0; i < l.n; i++ {
		if reason := C.pa_closer(l.base(), C.int(i), C.uint64_t(seq)); reason != 0 {
			who[i] = status.Code(reason)
		}
	}
	return who
}

// Settled always: MPI has no part in it.
func (l *Lines) Settled() bool { return true }

// Leave tells the others that this member comes no more.
func (l *Lines) Leave() { C.pa_leave(l.base(), C.int(l.me)) }

// Left returns whether member i has left.
func (l *Lines) Left(i int) bool { return C.pa_left(l.base(), C.int(i)) != 0 }

// Close unmaps the segment.
func (l *Lines) Close() error {
	l.CloseFile()
	mem := l.mem
	l.mem = nil
	if mem == nil {
		return nil
	}
	return syscall.Munmap(mem)
}

var _ Arrival = (*Lines)(nil)
