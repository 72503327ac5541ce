package memory

import (
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// mostKept is how many bytes of messages that nobody has received yet a process keeps, beside what the rings hold, and besideKept
// is what each of them takes beside its bytes.
const (
	mostKept   = 64 << 20
	besideKept = 192
)

// probeLasts is how long a probe that has found nothing is taken for one that waits.
const probeLasts = 50 * time.Millisecond

// Bound implements transport.Bounder. Call it before the first message.
func (c *Comm) Bound() { c.bounded = true }

// bounds shows to the other ranks whether this process keeps so much that no message of the application may come. Those of this core
// come all the same, which somebody may wait for.
func (o *endpoint) bounds() {
	if o.kept < mostKept && o.fulls == 0 {
		return
	}
	o.fulls = 0
	for from := range o.in {
		in, full := &o.in[from], uint32(0)
		if o.kept >= mostKept && from != o.rank && !in.wants() {
			full = 1
			o.fulls++
		}
		if atomic.LoadUint32((*uint32)(in.full)) != full {
			atomic.StoreUint32((*uint32)(in.full), full)
			work.Ring()
		}
	}
}

// wants tells whether a call of this process waits for what comes from the rank: for a message, the rest of one, or an answer.
func (in *inbox) wants() bool {
	return in.waiting+in.o.waiting > 0 || in.open.r != nil || len(in.longs) > 0 || len(in.o.asked) > 0 ||
		time.Since(in.probed) < probeLasts || time.Since(in.o.probed) < probeLasts
}

// probes notes that a probe has found no message from a member, or from any.
func (o *endpoint) probes(c *Comm, from int32) {
	if o.kept < mostKept {
		return
	}
	if from == transport.AnySource {
		o.probed = time.Now()
	} else {
		o.in[c.members[from]].probed = time.Now()
	}
}
