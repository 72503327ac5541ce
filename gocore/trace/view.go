package trace

import (
	"io"
	"syscall"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/segment"
)

// View is the ring of another process of the node, which stays readable when that has died.
type View struct {
	file *segment.File
	pid  int // of its process here
}

// Open opens the ring at an address.
func Open(a segment.Address) (*View, error) {
	file, err := segment.Open(a, segment.AnySize)
	if err != nil {
		return nil, err
	}
	return &View{file, a.PID}, nil
}

// Read reads the ring.
func (v *View) Read() (*Snapshot, error) {
	s, err := Read(descriptor(v.file.FD()))
	if err == nil {
		s.State = State(v.pid)
	}
	return s, err
}

// lockTries is how often, a millisecond apart, lock tries: the process that has the lock may be stopped.
const lockTries = 100

// lock keeps processes that call it on their descriptors of the same ring from running side by side, if
// it can. unlock ends that.
func lock(fd int) (unlock func()) {
	for range lockTries {
		if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return func() { _ = syscall.Flock(fd, syscall.LOCK_UN) }
		} else if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return func() {}
}

// Lock is for what the processes of a node do one after another, all with the same ring: see lock.
func (v *View) Lock() (unlock func()) { return lock(v.file.FD()) }

// Told tells whether the process has reported a wait, in the time ago.
func (v *View) Told(id uint64, ago time.Duration) bool {
	var list [toldSlots]told
	b := unsafe.Slice((*byte)(unsafe.Pointer(&list)), unsafe.Sizeof(list))
	if _, err := descriptor(v.file.FD()).ReadAt(b, int64(unsafe.Offsetof(header{}.told))); err != nil {
		return false
	}
	now := monotonic()
	for _, t := range list {
		if t.id == id && t.at <= now && now-t.at <= uint64(ago) {
			return true
		}
	}
	return false
}

// Stalled says why the process does not go on, "" if it does or if that cannot be known.
func (v *View) Stalled() string { return Stalled(v.pid) }

// PID returns the number that the process has here.
func (v *View) PID() int { return v.pid }

// Close closes the ring.
func (v *View) Close() { v.file.Close() }

// descriptor reads an open file.
type descriptor int

func (d descriptor) ReadAt(b []byte, offset int64) (int, error) {
	for n := 0; n < len(b); {
		got, err := syscall.Pread(int(d), b[n:], offset+int64(n))
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return n, err
		case got == 0:
			return n, io.ErrUnexpectedEOF
		default:
			n += got
		}
	}
	return len(b), nil
}
