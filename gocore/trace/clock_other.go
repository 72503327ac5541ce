//go:build !amd64

package trace

import "sync/atomic"

func counter() uint64 { return monotonic() }

func invariant() bool { return false }

// release stores value so that a reader in another process that sees it also sees every earlier store.
func release(word *uint64, value uint64) { atomic.StoreUint64(word, value) }
