package world

import "sync/atomic"

// Overlap knows whether collectives over nodes are under way at once in this process. The zero value is ready for use.
type Overlap struct {
	now   atomic.Int32
	begun atomic.Uint64
}

// Begin notes that one begins, and returns what End has to be given.
func (o *Overlap) Begin() (mark uint64) {
	mark = o.begun.Add(1)
	if o.now.Add(1) > 1 {
		return 0
	}
	return mark
}

// End notes that it is over, and tells whether it was alone all the time.
func (o *Overlap) End(mark uint64) (alone bool) {
	o.now.Add(-1)
	return mark == o.begun.Load()
}
