package mem

// #cgo noescape pmpi_copy_past_caches
// #cgo nocallback pmpi_copy_past_caches
// #cgo noescape pmpi_copy_to_far
// #cgo nocallback pmpi_copy_to_far
// #include "alloc.h"
import "C"

import "unsafe"

// Far is what one writer knows of its copies to memory that another core reads: see past.h. The zero Far knows nothing.
// It is not safe for concurrent use.
type Far struct{ c C.pmpi_far }

// Copy copies as many bytes as fit. The two do not overlap.
func (f *Far) Copy(to, from []byte) {
	n := min(len(to), len(from))
	if n < C.PMPI_FAR_TIMED {
		copy(to, from)
		return
	}
	C.pmpi_copy_to_far(&f.c, unsafe.Pointer(unsafe.SliceData(to)), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(n))
}

// CopyPast copies as many bytes as fit, past the caches: nobody reads them soon. The two do not overlap.
func CopyPast(to, from []byte) {
	if n := min(len(to), len(from)); n > 0 {
		C.pmpi_copy_past_caches(unsafe.Pointer(unsafe.SliceData(to)), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(n))
	}
}
