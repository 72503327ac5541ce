package cgroup

import (
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	atOnce  = 256 // more processes than take memory of one cgroup at the same moment
	patient = 10 * time.Second
)

// impatient says that a lock could not be had: whoever may read a cgroup's folder can keep its lock. Then this
// process asks for none any more.
var impatient atomic.Bool

// Lock makes other processes wait in Lock until unlock is called or this process ends: for whoever looks at MemoryLeft
// and then takes size bytes. Without it all ranks of a node see the same bytes, take them all, and the kernel kills one.
// What is locked is the folders of those cgroups that have less left than many processes would take (flock(2)). If that
// takes 10 s, Lock goes without. Thread-safety: the threads of a process wait for each other, too.
func Lock(size int64) (unlock func()) { return system.lock(size, patient) }

func (t tree) lock(size int64, wait time.Duration) (unlock func()) {
	var held []*os.File
	end := time.Now().Add(wait)
	t.eachLimit(func(cgroup, _ string, rest int64) { // from the inner ones to the outer: all processes in one order
		if rest/atOnce >= size || impatient.Load() {
			return
		}
		folder, err := os.Open(cgroup)
		if err != nil {
			return
		}
		if flock(folder, end) {
			held = append(held, folder)
		} else {
			folder.Close()
		}
	})
	return func() {
		for _, folder := range held {
			// A process that was forked meanwhile has the file open, too: closing it here would not unlock it.
			_ = syscall.Flock(int(folder.Fd()), syscall.LOCK_UN)
			folder.Close()
		}
	}
}

func flock(file *os.File, end time.Time) bool {
	for {
		switch err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case err == nil:
			return true
		case err != syscall.EWOULDBLOCK && err != syscall.EINTR:
			return false
		case time.Now().After(end):
			impatient.Store(true)
			return false
		}
		time.Sleep(time.Millisecond)
	}
}
