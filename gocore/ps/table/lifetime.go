package table

// #include "table.h"
import "C"

import (
	"math"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// MostAdmitAfter is the largest AdmitAfter: a counter of the sketch has 8 bits.
const MostAdmitAfter = math.MaxUint8

// ComeAndGo tells whether ids do: whether AdmitAfter, ExpireAfter or MaxRows is on.
func (c *Config) ComeAndGo() bool {
	return c.AdmitAfter > 1 || c.ExpireAfter > 0 || c.MaxRows > 0
}

func (c *Config) checkLifetime() error {
	if c.AdmitAfter < 0 || c.AdmitAfter > MostAdmitAfter {
		return status.New(status.Argument, "table: admit_after=%d is not from 0 to %d", c.AdmitAfter, MostAdmitAfter)
	}
	if c.ExpireAfter < 0 {
		return status.New(status.Argument, "table: expire_after=%d is below 0", c.ExpireAfter)
	}
	if c.MaxRows < 0 {
		return status.New(status.Argument, "table: max_rows=%d is below 0", c.MaxRows)
	}
	if c.AdmitAfter > 1 && c.MemoryLimit > 0 && c.MemoryLimit < 2*C.PT_SKETCH_BYTES {
		return status.New(status.Argument, "table: memory_limit=%d is too little with admit_after: to count ids takes %d bytes, so give %d at least",
			c.MemoryLimit, C.PT_SKETCH_BYTES, 2*C.PT_SKETCH_BYTES)
	}
	return nil
}

// addLifetime fills in what Info has of ids that come and go.
func (t *Table) addLifetime(i *Info) {
	if !t.ComeAndGo() {
		return
	}
	var counts C.pt_counts
	C.pt_count_of(t.t, &counts)
	i.Dropped, i.Expired, i.Evicted = int64(counts.dropped), int64(counts.expired), int64(counts.evicted)
	if t.AdmitAfter > 1 {
		i.SketchBytes = C.PT_SKETCH_BYTES
	}
}

// oldest returns the oldest last use that a row may have when the clock is so far.
func (t *Table) oldest(clock int64) C.int64_t {
	if t.ExpireAfter == 0 {
		return math.MinInt64
	}
	return C.int64_t(clock - t.ExpireAfter)
}

// at says that a call finds the rows that were there at the clock before, and uses them now. So a
// push finds what a pull before it has found.
func (t *Table) at(b *C.pt_batch, before, now int64) {
	b.oldest, b.now = t.oldest(before), C.int64_t(now)
}
