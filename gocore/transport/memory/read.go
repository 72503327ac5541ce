package memory

import (
	"crypto/rand"
	"encoding/binary"
	"os"
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
)

// A receiver reads a long message in the memory of its sender (process_vm_readv(2)), if the kernel lets it. It may not if
// the two run as different users, nor under Yama's ptrace_scope 1, nor out of a user namespace of its own; and in another
// pid namespace the sender's number is somebody else's. So each sender proves where it is: it shows a random number
// in the shared memory, and where the same number is in its own.
//
// Nobody writes into the memory of others. The memory of a message stays as it is until its request is done.

// proof is what a sender shows. It lies on a cache line of its own.
type proof struct {
	pid, at uint64
	nonce   [nonceBytes]byte
}

const nonceBytes = 16

type verdict int8

const (
	untried verdict = iota
	may
	mayNot
)

// prove shows the others where this process is. Without memory or random numbers they do not read.
func (o *office) prove() {
	nonce, err := mem.Alloc(nonceBytes)
	if err != nil {
		return
	}
	o.nonce = nonce
	own := unsafe.Slice((*byte)(nonce), nonceBytes)
	_, _ = rand.Read(own) // it never fails
	for r := range o.size {
		p := o.out[r].proof
		p.pid, p.at, p.nonce = uint64(os.Getpid()), uint64(uintptr(nonce)), [nonceBytes]byte(own)
	}
}

// mayRead tells whether this process can read the memory of a rank, of which a packet has come.
func (o *office) mayRead(peer int) bool {
	in := &o.in[peer]
	if in.reads == untried {
		in.reads = mayNot
		var seen [nonceBytes]byte
		p := *in.proof
		if n, errno := readFrom(p.pid, p.at, seen[:]); errno == 0 && n == nonceBytes && seen == p.nonce && seen != [nonceBytes]byte{} {
			in.reads, in.pid = may, p.pid
		}
	}
	return in.reads == may
}

// readFrom reads what a process has at an address, and returns how many bytes it has read.
func readFrom(pid, at uint64, to []byte) (int, syscall.Errno) {
	local := syscall.Iovec{Base: unsafe.SliceData(to), Len: uint64(len(to))}
	// The other address is none of this process.
	var remote [16]byte
	binary.NativeEndian.PutUint64(remote[:], at)
	binary.NativeEndian.PutUint64(remote[8:], uint64(len(to)))
	n, _, errno := syscall.Syscall6(sysReadv, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}
