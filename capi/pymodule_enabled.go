//go:build pymodule

package capi

// With this tag the package is the Python extension: it compiles the C files of the module, which
// are empty otherwise.

// #cgo CFLAGS: -DPMPI_PYMODULE
import "C"
