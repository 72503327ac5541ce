package segment

import (
	"runtime"
	"syscall"
	"unsafe"
)

const (
	mfdCloexec      = 1
	mfdAllowSealing = 2
)

// memfd makes an anonymous memory file (memfd_create(2), Linux >= 3.17). It has no name that has to
// be removed, and is freed when the last process that maps it ends.
func memfd(name string) (int, error) {
	nr := map[string]uintptr{"amd64": 319, "arm64": 279}[runtime.GOARCH]
	if nr == 0 {
		return -1, syscall.ENOSYS
	}
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return -1, err
	}
	fd, _, errno := syscall.Syscall(nr, uintptr(unsafe.Pointer(p)), mfdCloexec|mfdAllowSealing, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}
