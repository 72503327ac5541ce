package arrive

// Alone is the arrival of a group of one: everyone is always here.
type Alone struct{}

// Announce does nothing.
func (Alone) Announce(uint64, Signature, Flags) error { return nil }

// Poll agrees at once.
func (Alone) Poll(int) (State, Result, error) { return Agreed, Result{All: Sync | Even}, nil }

// Entries is never needed: nobody differs.
func (Alone) Entries() []Entry { return nil }

// Missing: nobody.
func (Alone) Missing() ([]int, bool) { return nil, true }

// Close does nothing.
func (Alone) Close() error { return nil }
