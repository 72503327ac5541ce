package segment

import (
	"syscall"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// A growing file is reserved range by range, and mapped likewise. It is sealed against shrinking, so
// that memory which was reserved once can be touched for ever.

const (
	fAddSeals  = 1033 // fcntl(2)
	fGetSeals  = 1034
	sealSeal   = 1 // no seal can be added
	sealShrink = 2
	sealGrow   = 4

	fallocKeepSize  = 1 // fallocate(2)
	fallocPunchHole = 2
)

// NewGrowing makes a file whose first size bytes are reserved and zero.
func NewGrowing(name string, size int64) (*File, error) { return NewSparse(name, size, size) }

// NewSparse makes a file of size bytes, all zero, of which the first ones are reserved. Who writes to others has reserved them, too.
func NewSparse(name string, size, reserved int64) (*File, error) {
	f, err := create(name, size)
	if err != nil {
		return nil, err
	}
	if err := f.Reserve(0, reserved); err != nil {
		f.Close()
		return nil, err
	}
	return f.seal(sealShrink)
}

// seal seals f, and sees to it that no other process adds a seal. It closes f if it fails.
func (f *File) seal(seals uintptr) (*File, error) {
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(f.fd), fAddSeals, seals|sealSeal); errno != 0 {
		f.Close()
		return nil, status.New(status.Unsupported, "cannot seal shared memory: %v", errno)
	}
	return f, nil
}

// OpenForeign is Open for a file of any size that this library has not made, and so has not sealed. A process that
// has the file open for writing can cut it. An access to what was cut then ends in SIGBUS.
func OpenForeign(a Address) (*File, error) {
	f, _, err := openNamed(a)
	return f, err
}

// Reserve has the kernel find memory for a range, beyond the end of the file if need be. Where the range
// was released before, it is zero. The caller has looked at RLIMIT_FSIZE and the cgroup's limit.
func (f *File) Reserve(offset, size int64) error {
	for {
		switch err := syscall.Fallocate(f.fd, 0, offset, size); err {
		case nil:
			return nil
		case syscall.EINTR:
		default:
			return status.New(status.NoMemory, "cannot reserve %d bytes of shared memory: %v", size, err)
		}
	}
}

// Release gives the memory of a range back to the kernel. The file stays as long as it is; who reads
// the range finds zeros.
func (f *File) Release(offset, size int64) {
	_ = syscall.Fallocate(f.fd, fallocPunchHole|fallocKeepSize, offset, size)
}

// MapRange maps a range for reading and writing. It is an error if the file does not have all of it.
// Unmap it with syscall.Munmap.
func (f *File) MapRange(offset, size int64) ([]byte, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(f.fd, &st); err != nil {
		return nil, status.New(status.Unsupported, "shared memory that cannot be looked at: %v", err)
	}
	if offset < 0 || size <= 0 || size > st.Size || offset > st.Size-size {
		return nil, status.New(status.Argument, "bytes %d to %d are not in shared memory of %d bytes", offset, offset+size, st.Size)
	}
	mem, err := syscall.Mmap(f.fd, offset, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, status.New(status.NoMemory, "cannot map %d bytes of shared memory: %v", size, err)
	}
	return mem, nil
}

// FD returns the descriptor, which stays the file's.
func (f *File) FD() int { return f.fd }
