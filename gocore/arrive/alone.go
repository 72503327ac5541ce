package arrive

import "github.com/paddlempi/paddlempi/gocore/status"

// Alone is the arrival of a group of one: everyone is always here.
type Alone struct{ flags Flags }

// Announce agrees at once.
func (a *Alone) Announce(_ uint64, _ *Signature, flags Flags, _ int) (State, Result, error) {
	a.flags = flags | Sync
	return a.Poll(0)
}

// Poll agrees at once.
func (a *Alone) Poll(int) (State, Result, error) {
	return Agreed, Result{All: a.flags, Any: a.flags}, nil
}

// Entries is never needed: nobody differs.
func (*Alone) Entries() []Entry { return nil }

// Missing: nobody.
func (*Alone) Missing() ([]int, bool) { return nil, true }

// GiveUp has nothing to give up: everyone is here.
func (*Alone) GiveUp(uint64, status.Code) bool { return false }

// Closers: nobody.
func (*Alone) Closers(uint64) map[int]status.Code { return nil }

// Settled always.
func (*Alone) Settled() bool { return true }

// Close does nothing.
func (*Alone) Close() error { return nil }
