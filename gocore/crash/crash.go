// Package crash keeps what C says of groups and windows when a signal ends the process inside a call (capi/crash.c):
// a signal handler cannot ask Go.
package crash

// #cgo CFLAGS: -std=gnu11 -O2 -Wall
// #cgo nocallback crash_name_group
// #cgo noescape crash_name_group
// #cgo nocallback crash_name_window
// #include "groups.h"
import "C"

import (
	"sync"
	"unsafe"
)

var mu sync.Mutex // held by calls of C that write

// NameGroup notes a group that was made: its number in this process, the rank of this process in the world, and a text
// for "in all_reduce of the ...".
func NameGroup(id int64, rank int, text string) {
	b := append([]byte(text), 0)
	mu.Lock()
	defer mu.Unlock()
	C.crash_name_group(C.int64_t(id), C.int32_t(rank), (*C.char)(unsafe.Pointer(&b[0])))
}

// NameWindow notes of which group a window is.
func NameWindow(id, group int64) {
	mu.Lock()
	defer mu.Unlock()
	C.crash_name_window(C.int64_t(id), C.int64_t(group))
}

// SetInitial says which group the number 0 stands for.
func SetInitial(id int64) { C.crash_initial(C.int64_t(id)) }
