// Package process reads what the kernel says of a process of this host.
package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Folder is where the kernel tells of processes.
const Folder = "/proc"

// Process is a process. Its number and the time when it began name it.
type Process struct {
	PID, Parent int
	Name        string // of which the kernel keeps 15 bytes
	State       byte   // the letter of proc(5)
	Started     uint64 // in ticks since the host began; 0: the kernel does not say
	Exiting     bool   // it runs no code of its own any more
}

// exiting is PF_EXITING of the kernel's sched.h, in the flags of stat.
const exiting = 4

// Read reads what folder has of a process: Folder, or one that a test has made.
func Read(folder string, pid int) (Process, error) {
	b, err := os.ReadFile(filepath.Join(folder, strconv.Itoa(pid), "stat"))
	if err != nil {
		return Process{}, err
	}
	// The line is: pid (name) state parent ... The name may have spaces and parentheses.
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return Process{}, os.ErrInvalid
	}
	fields := strings.Fields(string(b[end+1:]))
	if len(fields) < 2 {
		return Process{}, os.ErrInvalid
	}
	p := Process{PID: pid, Name: string(b[open+1 : end]), State: fields[0][0]}
	if len(fields) > 6 {
		flags, _ := strconv.ParseUint(fields[6], 10, 64)
		p.Exiting = flags&exiting != 0
	}
	p.Parent, err = strconv.Atoi(fields[1])
	if err == nil && len(fields) >= 20 {
		p.Started, err = strconv.ParseUint(fields[19], 10, 64)
	}
	return p, err
}

// Ended tells whether a process has ended, and is only kept for its parent, or the kernel is ending it. It drops the locks of the
// process first, by which others see that it is dead; on a busy machine it is a zombie half a second later.
func (p *Process) Ended() bool {
	return p.Exiting || p.State == 'Z' || p.State == 'X' || p.State == 'x'
}

// Stopped tells whether a signal or a debugger has stopped it.
func (p *Process) Stopped() bool { return p.State == 'T' || p.State == 't' }
