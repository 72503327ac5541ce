package master

import "time"

// Interval is how often Tick is called.
const Interval = 100 * time.Millisecond

// slack is how much later than Interval a Tick may come before the process counts as stopped: a
// busy machine does that.
const slack = 4 * Interval

// Clock ends the leases of queues in time. It must not be used by several threads at once.
type Clock struct {
	last time.Time
}

// Tick ends the leases that have run out. If it was called late, this process was stopped or had no
// CPU, and has not seen the progress of trainers meanwhile: all leases last so much longer. It
// returns by how much.
func (c *Clock) Tick(now time.Time, queues []*Queue) (gap time.Duration) {
	if !c.last.IsZero() {
		if gap = now.Sub(c.last) - Interval; gap <= slack {
			gap = 0
		}
	}
	c.last = now
	for _, q := range queues {
		if gap > 0 {
			q.extend(gap)
		}
		q.expire(now)
	}
	return gap
}
