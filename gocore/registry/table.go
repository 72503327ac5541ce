package registry

import (
	"maps"
	"sync"
	"sync/atomic"
)

// table has what calls find by a number. A number is used once in a process, so that the number of
// what has ended is recognised. Readers take no lock: a change replaces the map.
type table[T any] struct {
	mu   sync.Mutex   // held by a change
	last atomic.Int64 // the number that was given last; the first is 1
	live atomic.Pointer[map[int64]T]
}

// get returns what has a number.
func (t *table[T]) get(id int64) (one T, ok bool) {
	if live := t.live.Load(); live != nil {
		one, ok = (*live)[id]
	}
	return one, ok
}

// put enters one under a number.
func (t *table[T]) put(id int64, one T) {
	t.change(func(live map[int64]T) { live[id] = one })
}

// forget takes out those for which is returns true.
func (t *table[T]) forget(is func(id int64, one T) bool) {
	t.change(func(live map[int64]T) { maps.DeleteFunc(live, is) })
}

func (t *table[T]) change(by func(map[int64]T)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	live := map[int64]T{}
	if now := t.live.Load(); now != nil {
		live = maps.Clone(*now)
	}
	by(live)
	t.live.Store(&live)
}
