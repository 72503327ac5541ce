package registry

import (
	"sync"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/collective"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// prepared has the prepared operations; the number of one is 1 more than its place. A call reads its place without a
// lock. Places are used again: whoever has a number gives it back once.
var prepared struct {
	mu     sync.Mutex
	taken  int // no place before it is free
	places atomic.Pointer[[]atomic.Pointer[collective.Prepared]]
}

// AddPrepared enters a prepared operation, and returns its number.
func AddPrepared(p *collective.Prepared) (number uint64) {
	prepared.mu.Lock()
	defer prepared.mu.Unlock()
	var places []atomic.Pointer[collective.Prepared]
	if now := prepared.places.Load(); now != nil {
		places = *now
	}
	for prepared.taken < len(places) && places[prepared.taken].Load() != nil {
		prepared.taken++
	}
	if prepared.taken == len(places) {
		more := make([]atomic.Pointer[collective.Prepared], max(16, 2*len(places)))
		for i := range places {
			more[i].Store(places[i].Load())
		}
		places = more
		prepared.places.Store(&more)
	}
	places[prepared.taken].Store(p)
	prepared.taken++
	return uint64(prepared.taken)
}

// preparedOf returns the prepared operation with a number, nil if there is none.
func preparedOf(number uint64) *collective.Prepared {
	places := prepared.places.Load()
	if places == nil || number == 0 || number > uint64(len(*places)) {
		return nil
	}
	return (*places)[number-1].Load()
}

// Prepared returns the prepared operation that a call names.
func Prepared(d *op.Desc) (*collective.Prepared, error) {
	if err := Healthy(); err != nil {
		return nil, err
	}
	p := preparedOf(d.Prepared)
	if p == nil {
		return nil, status.New(status.Argument, "%s: there is no prepared operation %d", d.Code, d.Prepared)
	}
	return p, nil
}

// ForgetPrepared forgets a prepared operation, no call of which is under way.
func ForgetPrepared(number uint64) {
	prepared.mu.Lock()
	defer prepared.mu.Unlock()
	if preparedOf(number) == nil {
		return
	}
	(*prepared.places.Load())[number-1].Store(nil)
	prepared.taken = min(prepared.taken, int(number-1))
}
