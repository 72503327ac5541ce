package liveness

// #include "fork.h"
import "C"

func noteDescriptor(fd int)   { C.pl_note(C.int(fd)) }
func forgetDescriptor(fd int) { C.pl_forget(C.int(fd)) }
