package mem

// #cgo noescape pmpi_copy_cost
// #cgo nocallback pmpi_copy_cost
// #include "alloc.h"
import "C"

import "unsafe"

// CopyCost copies as many bytes as fit, into the caches or past them, and returns how many ticks of the processor's clock each KiB
// took; 0: it has none, or there was nothing to copy. The two do not overlap.
func CopyCost(to, from []byte, past bool) uint32 {
	n := min(len(to), len(from))
	if n == 0 {
		return 0
	}
	way := C.int(0)
	if past {
		way = 1
	}
	return uint32(C.pmpi_copy_cost(way, unsafe.Pointer(unsafe.SliceData(to)), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(n)))
}
