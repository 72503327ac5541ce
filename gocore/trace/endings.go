package trace

import (
	"syscall"
	"time"
	"unsafe"
)

const (
	sysPidfdOpen = 434 // pidfd_open(2), the same on all processors; Linux >= 5.3
	pollIn       = 1   // poll(2)
)

// openProcess returns a descriptor that can be read once a process has ended, -1 if the kernel gives none.
func openProcess(pid int) int {
	fd, _, errno := syscall.Syscall(sysPidfdOpen, uintptr(pid), 0, 0)
	if errno != 0 {
		return -1
	}
	return int(fd)
}

// pollfd is the struct of poll(2).
type pollfd struct {
	fd              int32
	events, revents int16
}

// Wait waits until it is time for the next Poll, or a process ends whose operations are recorded. It notes when that was.
func (c *Collector) Wait(d time.Duration) {
	list, of := []pollfd{}, []*recorded{}
	for _, r := range c.rings {
		if r.ended == 0 && r.ending >= 0 {
			list, of = append(list, pollfd{fd: int32(r.ending), events: pollIn}), append(of, r)
		}
	}
	// Not time.Sleep, which is imprecise in this process.
	limit := syscall.NsecToTimespec(int64(max(d, 0)))
	_, _, _ = syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(list))), uintptr(len(list)), uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	for i := range list {
		if list[i].revents != 0 {
			of[i].ended = time.Now().UnixNano()
		}
	}
}

// lookAfter notes which processes have ended that have no such descriptor.
func (c *Collector) lookAfter() {
	for _, r := range c.rings {
		if r.ended == 0 && r.ending < 0 && State(r.view.pid) == "ended" {
			r.ended = time.Now().UnixNano()
		}
	}
}

// state returns what the process does; see State.
func (r *recorded) state() string {
	if r.ended != 0 { // its number may be another one's
		return "ended"
	}
	return State(r.view.pid)
}
