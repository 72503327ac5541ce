package gocore

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// prepared has the prepared operations; the number of one is 1 more than its place. A call reads its place without a
// lock. Places are used again: whoever has a number gives it back once.
var prepared struct {
	mu     sync.Mutex
	free   []uint64 // places
	places atomic.Pointer[[]atomic.Pointer[group.Prepared]]
}

// morePlaces is by how many places the list grows at least.
const morePlaces = 16

// Prepare checks an operation that will be submitted again and again. It sets d.Prepared to its number, and d.Group to
// the id of its group, so that 0 cannot come to stand for another world.
func Prepare(d *op.Desc) error {
	g, err := groupOf(d.Group)
	if err != nil {
		return status.New(status.CodeOf(err), "%s: %v", d.Code, err)
	}
	p, err := g.Prepare(d)
	if err != nil {
		return err
	}
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
	d.Group, d.Prepared = g.ID, place+1
	return nil
}

// growPlaces returns a longer list, and notes which places are free. The caller holds prepared.mu.
func growPlaces(old *[]atomic.Pointer[group.Prepared]) *[]atomic.Pointer[group.Prepared] {
	n := 0
	if old != nil {
		n = len(*old)
	}
	places := make([]atomic.Pointer[group.Prepared], n+max(n, morePlaces))
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
func preparedOf(number uint64) *group.Prepared {
	places := prepared.places.Load()
	if places == nil || number == 0 || number > uint64(len(*places)) {
		return nil
	}
	return (*places)[number-1].Load()
}

// submitPrepared submits a call of a prepared operation.
func submitPrepared(d *op.Desc, nested bool) (*work.Handle, work.Result, error) {
	if err := healthy(); err != nil {
		return nil, work.Result{}, err
	}
	p := preparedOf(d.Prepared)
	if p == nil {
		return nil, work.Result{}, status.New(status.Argument, "%s: there is no prepared operation %d", d.Code, d.Prepared)
	}
	return p.Submit(d, nested)
}

// Unprepare forgets a prepared operation, no call of which is under way.
func Unprepare(number uint64) {
	prepared.mu.Lock()
	defer prepared.mu.Unlock()
	if preparedOf(number) == nil {
		return
	}
	(*prepared.places.Load())[number-1].Store(nil)
	prepared.free = append(prepared.free, number-1)
}
