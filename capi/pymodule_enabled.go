//go:build pymodule

package main

// With this tag the package is the Python extension: pymodule.c and tensor.c, which
// are empty otherwise, are compiled in.

// #cgo CFLAGS: -DPMPI_PYMODULE
import "C"
