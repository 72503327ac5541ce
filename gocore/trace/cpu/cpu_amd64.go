// Package cpu has what the flight recorder asks of the processor itself. It is apart from package trace because
// a package with cgo has no assembly of Go.
package cpu

// Counter reads the time stamp counter, which all cores share if it is invariant.
//
//go:noescape
func Counter() uint64

// Invariant tells whether the time stamp counter runs at one rate, whatever the cores do (CPUID leaf
// 0x80000007, EDX bit 8).
func Invariant() bool

// Release stores value so that a reader in another process that sees it also sees every earlier store.
// On this processor a plain store does that; sync/atomic would take a locked instruction.
//
//go:noescape
func Release(word *uint64, value uint64)
