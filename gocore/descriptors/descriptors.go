// Package descriptors closes connections and locks in forked children. They end only when all processes
// that have them have closed them. So a child that has inherited one would hide the death of its parent,
// and keep a port taken.
package descriptors

// #include "fork.h"
import "C"

import "syscall"

// Note has a forked child close fd. It is called after fd was opened.
func Note(fd int) { C.pd_note(C.int(fd)) }

// Forget takes Note back. It is called before fd is closed, so that a child never closes a
// descriptor that has got the same number.
func Forget(fd int) { C.pd_forget(C.int(fd)) }

// Of calls f, Note or Forget for instance, with the descriptor of a connection or a listener.
func Of(s syscall.Conn, f func(fd int)) {
	if raw, err := s.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}
