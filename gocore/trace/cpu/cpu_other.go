//go:build !amd64

package cpu

import "sync/atomic"

// Counter is not called where Invariant is false.
func Counter() uint64 { return 0 }

// Invariant tells that there is no counter to read.
func Invariant() bool { return false }

// Release stores value so that a reader in another process that sees it also sees every earlier store.
func Release(word *uint64, value uint64) { atomic.StoreUint64(word, value) }
