//go:build pymodule

package capi

// With this tag the package is the Python extension: it compiles the C files of the module, which
// are empty otherwise. Exceptions of C++ pass through some of them (throw.c).

// #cgo CFLAGS: -DPMPI_PYMODULE -fexceptions
import "C"
