//go:build way

package main

// With this tag the core can tell what a call passes through: see tools/way.

// #include "way.h"
import "C"

import "runtime/coverage"

//export goWayStart
func goWayStart() C.int {
	if coverage.ClearCounters() != nil {
		return 1
	}
	return 0
}

//export goWayStop
func goWayStop(folder *C.char) C.int {
	dir := C.GoString(folder)
	if coverage.WriteCountersDir(dir) != nil || coverage.WriteMetaDir(dir) != nil {
		return 1
	}
	return 0
}
