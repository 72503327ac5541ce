package dl

/*
#include <stdlib.h>
#include <unistd.h>

extern char **environ;
*/
import "C"

import "unsafe"

// Getenv reads a variable of the C environment. That is the one which libraries
// read and which Python's os.environ writes; Go's os.Getenv reads a copy made
// when the Go runtime started, and misses what was set since.
func Getenv(name string) (value string, ok bool) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	v := C.getenv(n)
	if v == nil {
		return "", false
	}
	return C.GoString(v), true
}

// Environ returns the C environment, a NAME=value each.
func Environ() (all []string) {
	for p := unsafe.Pointer(C.environ); p != nil; p = unsafe.Add(p, unsafe.Sizeof(p)) {
		v := *(**C.char)(p)
		if v == nil {
			break
		}
		all = append(all, C.GoString(v))
	}
	return all
}

// SetenvDefault sets a variable of the C environment unless it is set, if only
// to nothing, and says whether it did. It must run before the library that
// reads the variable is loaded.
func SetenvDefault(name, value string) bool {
	n, v := C.CString(name), C.CString(value)
	defer C.free(unsafe.Pointer(n))
	defer C.free(unsafe.Pointer(v))
	if C.getenv(n) != nil {
		return false
	}
	return C.setenv(n, v, 0) == 0
}

// Unsetenv removes a variable from the C environment.
func Unsetenv(name string) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	C.unsetenv(n)
}
