package arrive

import "github.com/paddlempi/paddlempi/gocore/status"

// Alone is the arrival of a group of one rank, which always agrees with itself.
type Alone struct{ flags Flags }

// Announce agrees at once.
func (a *Alone) Announce(_ uint64, _ *Signature, flags Flags, _ Payload, _ int) (State, Result, error) {
	a.flags = flags | Sync
	return a.Poll(0)
}

// Poll agrees at once.
func (a *Alone) Poll(int) (State, Result, error) {
	return Agreed, Result{All: a.flags, Any: a.flags}, nil
}

// Entries returns nil; it is not called, because no member can differ or refuse.
func (*Alone) Entries() []Entry { return nil }

// Missing returns no member.
func (*Alone) Missing() ([]int, bool) { return nil, true }

// GiveUp returns false: all members have announced.
func (*Alone) GiveUp(uint64, status.Code) bool { return false }

// Closers returns no member.
func (*Alone) Closers(uint64) map[int]status.Code { return nil }

// Settled is always true.
func (*Alone) Settled() bool { return true }

// Close does nothing.
func (*Alone) Close() error { return nil }
