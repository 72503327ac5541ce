// Package cma reads the memory of other processes of this node: cross-memory attach, process_vm_readv(2). Nobody writes there.
//
// The kernel may not let one process read another: if the two run as different users, under Yama's ptrace_scope 1, out of a
// user namespace of its own, or behind a filter of system calls. And in another pid namespace a number is somebody else's. So
// who is to be read proves who it is: it shows a random number in memory that both map, and where the same number is in its own.
// Whether A may read B says nothing about B and A.
package cma

import (
	"crypto/rand"
	"encoding/binary"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// NonceBytes is the length of the random number.
const NonceBytes = 16

// Proof is what a process shows in memory that the reader maps. It is untrusted until it was tried. Zeros stand for a process that
// shows nothing.
type Proof struct {
	PID, At uint64 // the process, and the address in it of Nonce
	Nonce   [NonceBytes]byte
}

// own is the random number of this process.
var own struct {
	once  sync.Once
	nonce [NonceBytes]byte // no variable of a package moves
}

// Show returns what this process shows to others.
func Show() Proof {
	own.once.Do(func() { _, _ = rand.Read(own.nonce[:]) }) // it never fails
	return Proof{uint64(os.Getpid()), uint64(uintptr(unsafe.Pointer(&own.nonce))), own.nonce}
}

// Holds tries a proof: it tells whether this process can read the memory of the one that has shown it.
func (p Proof) Holds() bool {
	var seen [NonceBytes]byte
	n, errno := Read(p.PID, p.At, seen[:])
	return errno == 0 && n == NonceBytes && seen == p.Nonce && seen != [NonceBytes]byte{}
}

// Read reads what a process has at an address, and returns how many bytes it has read.
func Read(pid, at uint64, to []byte) (int, syscall.Errno) {
	return read(pid, []part{{at, to}})
}

// Read reads what the process has at an address, whose proof has held, and returns how many bytes it has read. A process that was put
// in the place of one that has ended is ESRCH, too.
func (p *Proof) Read(at uint64, to []byte) (int, syscall.Errno) {
	var seen [NonceBytes]byte
	n, errno := read(p.PID, []part{{p.At, seen[:]}, {at, to}})
	switch {
	case errno != 0 || n < NonceBytes:
		return 0, errno
	case seen != p.Nonce:
		return 0, syscall.ESRCH
	}
	return n - NonceBytes, 0
}

// part is a number of bytes in another process, and where they go.
type part struct {
	at uint64
	to []byte
}

// read reads one or two parts.
func read(pid uint64, parts []part) (int, syscall.Errno) {
	var local [2]syscall.Iovec
	var remote [2][16]byte // these addresses are none of this process
	for i, p := range parts {
		local[i] = syscall.Iovec{Base: unsafe.SliceData(p.to), Len: uint64(len(p.to))}
		binary.NativeEndian.PutUint64(remote[i][:], p.at)
		binary.NativeEndian.PutUint64(remote[i][8:], uint64(len(p.to)))
	}
	k := uintptr(len(parts))
	n, _, errno := syscall.Syscall6(sysReadv, uintptr(pid), uintptr(unsafe.Pointer(&local)), k, uintptr(unsafe.Pointer(&remote)), k, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// Span is a number of bytes in this process.
type Span struct {
	At    unsafe.Pointer
	Bytes int64
}

// atOnce is how many spans a system call looks at.
const atOnce = 32

// Readable tells whether others can read such memory, as far as its first and its last byte tell. They cannot read what a driver has mapped, as memory that a GPU's
// runtime has pinned may be.
func Readable(spans []Span) bool {
	var to [2 * atOnce]byte
	var from [2 * atOnce]syscall.Iovec
	for len(spans) > 0 {
		n := 0
		for ; len(spans) > 0 && n < len(from); spans = spans[1:] {
			s := spans[0]
			if s.Bytes > 0 {
				from[n] = syscall.Iovec{Base: (*byte)(s.At), Len: 1}
				from[n+1] = syscall.Iovec{Base: (*byte)(unsafe.Add(s.At, s.Bytes-1)), Len: 1}
				n += 2
			}
		}
		if n == 0 {
			continue
		}
		local := syscall.Iovec{Base: &to[0], Len: uint64(n)}
		got, _, errno := syscall.Syscall6(sysReadv, uintptr(os.Getpid()), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&from[0])), uintptr(n), 0)
		if errno != 0 || int(got) != n {
			return false
		}
	}
	return true
}
