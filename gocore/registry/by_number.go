package registry

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// ByNumber has what calls find by a number. A number is given once in a process, so that the number of
// what has ended is recognised. Readers take no lock: a change replaces the map.
type ByNumber[T any] struct {
	mu   sync.Mutex   // held by a change
	last atomic.Int64 // the number that was given last; the first is 1
	live atomic.Pointer[map[int64]T]
}

// Get returns what has a number.
func (t *ByNumber[T]) Get(id int64) (one T, ok bool) {
	if live := t.live.Load(); live != nil {
		one, ok = (*live)[id]
	}
	return one, ok
}

// All returns what has numbers, in their order.
func (t *ByNumber[T]) All() (all []T) {
	if live := t.live.Load(); live != nil {
		for _, id := range slices.Sorted(maps.Keys(*live)) {
			all = append(all, (*live)[id])
		}
	}
	return all
}

// Add enters one under the next number, and returns that.
func (t *ByNumber[T]) Add(one T) (id int64) {
	id = t.last.Add(1)
	t.Put(id, one)
	return id
}

// Put enters one under a number that it has already.
func (t *ByNumber[T]) Put(id int64, one T) {
	t.change(func(live map[int64]T) { live[id] = one })
}

// Forget takes out what has a number.
func (t *ByNumber[T]) Forget(id int64) {
	t.change(func(live map[int64]T) { delete(live, id) })
}

// forgetIf takes out those for which is returns true.
func (t *ByNumber[T]) forgetIf(is func(T) bool) {
	t.change(func(live map[int64]T) {
		maps.DeleteFunc(live, func(_ int64, one T) bool { return is(one) })
	})
}

// takeLast takes out what has the greatest number.
func (t *ByNumber[T]) takeLast() (one T, ok bool) {
	t.change(func(live map[int64]T) {
		if ok = len(live) > 0; ok {
			last := slices.Max(slices.Collect(maps.Keys(live)))
			one = live[last]
			delete(live, last)
		}
	})
	return one, ok
}

func (t *ByNumber[T]) change(by func(map[int64]T)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	live := map[int64]T{}
	if now := t.live.Load(); now != nil {
		live = maps.Clone(*now)
	}
	by(live)
	t.live.Store(&live)
}
