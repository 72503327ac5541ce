package trace

// counter reads the time stamp counter, which all cores share if it is invariant.
//
//go:noescape
func counter() uint64

// invariant tells whether the time stamp counter runs at one rate, whatever the cores do (CPUID leaf
// 0x80000007, EDX bit 8).
func invariant() bool

// release stores value so that a reader in another process that sees it also sees every earlier store.
// On this processor a plain store does that; sync/atomic would take a locked instruction.
//
//go:noescape
func release(word *uint64, value uint64)
