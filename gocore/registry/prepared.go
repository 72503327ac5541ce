package registry

import (
	"slices"
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
	free   []uint64 // places
	places atomic.Pointer[[]atomic.Pointer[collective.Prepared]]
}

// morePlaces is by how many places the list grows at least.
const morePlaces = 16

// AddPrepared enters a prepared operation, and returns its number.
func AddPrepared(p *collective.Prepared) (number uint64) {
	prepared.mu.Lock()
	defer prepared.mu.Unlock()
	places := prepared.places.Load()
	if len(prepared.free) == 0 {
		places = growPlaces(places)
		prepared.places.Store(places)
	}
	last := len(prepared.free) - 1
	place := prepared.free[last]
	prepared.free = prepared.free[:last]
	(*places)[place].Store(p)
	return place + 1
}

// growPlaces returns a longer list, and notes which places are free. The caller holds prepared.mu.
func growPlaces(old *[]atomic.Pointer[collective.Prepared]) *[]atomic.Pointer[collective.Prepared] {
	n := 0
	if old != nil {
		n = len(*old)
	}
	places := make([]atomic.Pointer[collective.Prepared], n+max(n, morePlaces))
	for i := range n {
		places[i].Store((*old)[i].Load())
	}
	for i := n; i < len(places); i++ {
		prepared.free = append(prepared.free, uint64(i))
	}
	slices.Reverse(prepared.free) // the first places first
	return &places
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
	prepared.free = append(prepared.free, number-1)
}
