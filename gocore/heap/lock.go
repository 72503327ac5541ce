package heap

import (
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/paddlempi/paddlempi/gocore/descriptors"
	"github.com/paddlempi/paddlempi/gocore/segment"
)

// A process that has a heap holds a lock on its file until it ends or execs. The kernel drops the lock
// then, also for a process that is killed, and keeps it while the process is stopped. Others see that in
// the file, whatever namespaces they are in.
//
// The lock belongs to an open file description (fcntl(2)), and ends with the last descriptor and the last
// mapping of it. So the file is opened once more for the lock alone, and a forked child closes its copy of
// that descriptor: a worker may outlive its parent. Only a child that neither the fork of the C library
// made nor executes anything keeps it. A record lock (F_SETLK) would be lost as soon as anything in this
// process opened and closed the file, as a profiler does that looks at /proc/self/fd.

const fOFDSetLk = 37 // fcntl(2)

// lock locks the file for this process. It is false if that cannot be done.
func lock(file *segment.File) bool {
	fd, err := syscall.Open("/proc/self/fd/"+strconv.Itoa(file.FD()), syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err == nil && setLock(fd, fOFDSetLk) {
		descriptors.Note(fd) // it stays open
		return true
	}
	if err == nil {
		syscall.Close(fd)
	}
	// There is no /proc, or the kernel has no such locks. Better a lock that can be lost than none.
	return setLock(file.FD(), syscall.F_SETLK)
}

func setLock(fd, command int) bool {
	l := syscall.Flock_t{Type: syscall.F_WRLCK, Len: 1}
	return syscall.FcntlFlock(uintptr(fd), command, &l) == nil
}

// locked tells whether a process has locked the file. It is true if that cannot be found out.
func locked(file *segment.File) bool {
	l := syscall.Flock_t{Type: syscall.F_WRLCK, Len: 1}
	return syscall.FcntlFlock(uintptr(file.FD()), syscall.F_GETLK, &l) != nil || l.Type != syscall.F_UNLCK
}

// lookEvery is the time between two looks of Dead.
const lookEvery = 10 * time.Millisecond

// Dead tells whether the owner's process has ended, as it was at most 10 ms ago, and for how long that
// has been known. A zombie is dead. The answer is false if it cannot be found out.
func (v *View) Dead() (dead bool, known time.Duration) {
	last, now := v.looked.Load(), time.Now().UnixNano()
	if v.dead.Load() == 0 && now-last >= int64(lookEvery) && v.looked.CompareAndSwap(last, now) {
		v.DeadNow()
	}
	seen := v.dead.Load()
	return seen != 0, time.Duration(now - seen)
}

// DeadNow is Dead as of now. It makes a system call.
func (v *View) DeadNow() bool {
	if atomic.LoadUint64(&v.words[lockEntry*entryWords]) != 0 && !locked(v.file) {
		v.dead.CompareAndSwap(0, time.Now().UnixNano())
	}
	return v.dead.Load() != 0
}
