// Package segment makes memory that the ranks of a node share: anonymous memory files, whose
// descriptors a process gets from another process.
//
// There are two ways to get a descriptor. If the processes see each other's /proc, the descriptor
// is opened there (Open). They may not see it, for instance because each process is in its own user
// namespace, as under Apptainer. Then the owner sends the descriptor over a socket (Giver, Take).
// Addresses travel by MPI.
//
// What another process names or sends is checked: it must be the regular file of the inode that was
// named, of the length that was named, and sealed against shrinking. Otherwise its owner could cut it,
// and the next access here would end in SIGBUS.
package segment

import (
	"strconv"
	"syscall"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// File is a memory file that is open in this process.
type File struct {
	fd    int
	size  int64
	inode uint64
	pid   int // see PID
}

// AnySize is the size that Open and Take expect of a file that its owner may have made longer.
const AnySize = -1

// Address identifies a memory file for the other processes of the node. The zero Address is that of no file.
type Address struct {
	PID   int
	FD    int
	Inode uint64 // no two memory files of a kernel have the same
}

// Words returns an address as numbers. Of reads them.
func (a Address) Words() [3]int64 { return [3]int64{int64(a.PID), int64(a.FD), int64(a.Inode)} }

// Of returns the address in w.
func Of(w [3]int64) Address { return Address{int(w[0]), int(w[1]), uint64(w[2])} }

// New makes a file of size bytes, all zero. name is only seen in /proc/PID/maps.
func New(name string, size int64) (*File, error) {
	f, err := create(name, size)
	if err != nil {
		return nil, err
	}
	return f.seal(sealShrink | sealGrow)
}

func create(name string, size int64) (*File, error) {
	fd, err := memfd(name)
	if err != nil {
		return nil, status.New(status.NoMemory, "cannot make shared memory of %d bytes: %v", size, err)
	}
	if err := syscall.Ftruncate(fd, size); err != nil {
		syscall.Close(fd)
		return nil, status.New(status.NoMemory, "cannot size shared memory to %d bytes: %v", size, err)
	}
	return adopt(fd)
}

// adopt makes a File of a descriptor. It closes the descriptor if it fails.
func adopt(fd int) (*File, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		syscall.Close(fd)
		return nil, status.New(status.Unsupported, "a descriptor that should be shared memory: %v", err)
	}
	return &File{fd: fd, size: st.Size, inode: st.Ino}, nil
}

// Duplicate opens a file once more that is open in this process. The new descriptor is the File's.
func Duplicate(fd int) (*File, error) {
	copied, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, status.New(status.Argument, "cannot duplicate descriptor %d: %v", fd, errno)
	}
	return adopt(int(copied))
}

// Inode returns the number of the file. No two memory files of a kernel have the same.
func (f *File) Inode() uint64 { return f.inode }

// PID returns the process in whose /proc this one opened the file; 0 if it came by the file in another way.
func (f *File) PID() int { return f.pid }

// Address returns the address by which other processes open the file, while it is open here; of a nil File the zero Address.
func (f *File) Address() Address {
	if f == nil {
		return Address{}
	}
	return Address{syscall.Getpid(), f.fd, f.inode}
}

// Size returns the length in bytes.
func (f *File) Size() int64 { return f.size }

// Open opens the file of another process through /proc. A process id may stand for different
// processes here and there, so Open checks that the file has the inode of a and size bytes (AnySize: any number).
func Open(a Address, size int64) (*File, error) {
	f, path, err := openNamed(a)
	if err != nil {
		return nil, err
	}
	return f.check(a, size, path)
}

// openNamed opens what an address names, if that is the regular file of its inode. It does not open
// anything else, because that may wait, or mean something to a device.
func openNamed(a Address) (f *File, path string, err error) {
	path = "/proc/" + strconv.Itoa(a.PID) + "/fd/" + strconv.Itoa(a.FD)
	look, err := syscall.Open(path, oPath|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, path, status.New(status.Unsupported, "cannot open the shared memory at %s: %v", path, err)
	}
	defer syscall.Close(look)
	var st syscall.Stat_t
	if err := syscall.Fstat(look, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFREG || st.Ino != a.Inode {
		return nil, path, status.New(status.Unsupported, "%s is not the shared memory that was named", path)
	}
	fd, err := syscall.Open("/proc/self/fd/"+strconv.Itoa(look), syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, path, status.New(status.Unsupported, "cannot open the shared memory at %s: %v", path, err)
	}
	if f, err = adopt(fd); err == nil {
		f.pid = a.PID
	}
	return f, path, err
}

// oPath is O_PATH of open(2): such a descriptor can only be looked at.
const oPath = 0x200000

// check closes f and returns an error, unless f is the file that a identifies, and nobody can cut it.
func (f *File) check(a Address, size int64, where string) (*File, error) {
	if f.inode != a.Inode || size != AnySize && f.size != size {
		f.Close()
		return nil, status.New(status.Unsupported, "%s is not the shared memory of %d bytes that was named", where, size)
	}
	if seals, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(f.fd), fGetSeals, 0); errno != 0 || seals&sealShrink == 0 {
		f.Close()
		return nil, status.New(status.Unsupported, "%s is not sealed: its owner could cut it while it is in use here", where)
	}
	return f, nil
}

// Map maps the whole file for reading and writing. Unmap it with syscall.Munmap.
func (f *File) Map() ([]byte, error) {
	mem, err := syscall.Mmap(f.fd, 0, int(f.size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, status.New(status.NoMemory, "cannot map %d bytes of shared memory: %v", f.size, err)
	}
	return mem, nil
}

// MapTail maps what the file has from an offset on, a number of whole pages, for reading and writing: at a place that Vacate has
// left, or anywhere if place is nil. Only Vacate ends that mapping.
func (f *File) MapTail(offset int64, place unsafe.Pointer) (unsafe.Pointer, error) {
	at, err := mapAt(place, f.size-offset, syscall.MAP_SHARED, f.fd, offset)
	if err != nil {
		return nil, status.New(status.NoMemory, "cannot map %d bytes of shared memory: %v", f.size-offset, err)
	}
	return at, nil
}

// Vacate ends the mapping of MapTail of so many bytes, and keeps its place: what is read there is 0 from then on, and what is
// written there nobody else sees. A thread may use the place meanwhile.
func Vacate(place unsafe.Pointer, size int64) error {
	_, err := mapAt(place, size, syscall.MAP_PRIVATE|syscall.MAP_ANON, -1, 0)
	return err
}

// mapAt maps memory at a place, or anywhere if that is nil. The kernel changes the mapping of a place in one step.
func mapAt(place unsafe.Pointer, size int64, flags, fd int, offset int64) (unsafe.Pointer, error) {
	if place != nil {
		flags |= syscall.MAP_FIXED
	}
	at, _, errno := syscall.Syscall6(syscall.SYS_MMAP, uintptr(place), uintptr(size), syscall.PROT_READ|syscall.PROT_WRITE, uintptr(flags), uintptr(fd), uintptr(offset))
	if errno != 0 {
		return nil, errno
	}
	return unsafe.Add(nil, at), nil
}

// Close closes the descriptor. Mappings stay. Close may be called again.
func (f *File) Close() {
	if f.fd >= 0 {
		syscall.Close(f.fd)
		f.fd = -1
	}
}
