package dl

/*
#include <stdlib.h>
#include <unistd.h>

extern char **environ;
*/
import "C"

import "unsafe"

// Getenv reads a variable of the C environment. Libraries read that one, and Python's os.environ
// writes to it. Go's os.Getenv reads a copy from the start of the Go runtime.
func Getenv(name string) (value string, ok bool) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	v := C.getenv(n)
	if v == nil {
		return "", false
	}
	return C.GoString(v), true
}

// Environ returns the C environment, as NAME=value.
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

// SetenvDefault sets a variable of the C environment unless it is set, even to an empty value. It
// returns whether it has set the variable. Call it before the library that reads the variable is
// loaded.
func SetenvDefault(name, value string) bool {
	n, v := C.CString(name), C.CString(value)
	defer C.free(unsafe.Pointer(n))
	defer C.free(unsafe.Pointer(v))
	if C.getenv(n) != nil {
		return false
	}
	return C.setenv(n, v, 0) == 0
}

// Setenv sets a variable of the C environment.
func Setenv(name, value string) {
	n, v := C.CString(name), C.CString(value)
	defer C.free(unsafe.Pointer(n))
	defer C.free(unsafe.Pointer(v))
	C.setenv(n, v, 1)
}

// Unsetenv removes a variable from the C environment.
func Unsetenv(name string) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	C.unsetenv(n)
}
