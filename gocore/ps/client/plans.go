package client

import (
	"slices"
	"sync"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
)

// mostPlans is how many plans a table keeps: that of the batch that is trained, and that of the
// next one, which was prefetched.
const mostPlans = 2

// plans are those of a table's last batches. A push has the ids of an earlier pull, as a rule, and
// a dense parameter has the same ones every time, so its plan need not be made again. The zero
// value is empty. All methods are safe for concurrent use.
type plans struct {
	mu     sync.Mutex
	list   []kept // the newest last
	closed bool
}

// kept is a plan, and the epoch in which the servers had all of its rows.
type kept struct {
	*route.Plan
	madeAt int64
}

// take removes the plan of a batch and returns it, with the epoch that it was put with; nil and -1
// if there is none.
func (p *plans) take(ids *op.Buf) (*route.Plan, int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.list) - 1; i >= 0; i-- {
		if plan := p.list[i]; plan.Of(ids) {
			p.list = slices.Delete(p.list, i, i+1)
			return plan.Plan, plan.madeAt
		}
	}
	return nil, -1
}

// put keeps a plan, which must not be used any more, and frees the oldest one if there are too
// many.
func (p *plans) put(plan *route.Plan, madeAt int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, kept{plan, madeAt})
	if len(p.list) > mostPlans || p.closed {
		p.list[0].Free()
		p.list = slices.Delete(p.list, 0, 1)
	}
}

// close frees the plans. Those that are put later are freed at once.
func (p *plans) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, plan := range p.list {
		plan.Free()
	}
	p.list = nil
}
