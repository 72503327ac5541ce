package client

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/ps/link"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
)

// arranged is staging memory in which the ids and rows of a server lie together. It is needed where
// several tables go to several servers: in the memory of a travel they lie by tables.
type arranged struct {
	ids, values *link.Memory
	firsts      []int64 // where the ids of each server begin; before them is room to name the tables
	lasts       []int64 // and where they end
	ats, ends   []int64 // where the rows of each server begin and end, in bytes
}

func arrange(t *travel, servers int, links connections) (a *arranged, err error) {
	a = &arranged{firsts: make([]int64, servers), lasts: make([]int64, servers), ats: make([]int64, servers), ends: make([]int64, servers)}
	var at, end int64
	for s := range servers {
		at = request.Align(at)
		a.ats[s], a.firsts[s] = at, end+t.list
		end += t.list
		for _, r := range t.tables {
			if n := int64(r.plan.Starts[s+1] - r.plan.Starts[s]); n > 0 {
				end += n
				at = request.Align(at) + n*r.rowBytes
			}
		}
		a.ends[s], a.lasts[s] = at, end
	}
	if a.ids, err = links.Memory(max(1, end) * 8); err != nil {
		return nil, err
	}
	if a.values, err = links.Memory(max(1, at)); err != nil {
		a.ids.Free()
		return nil, err
	}
	return a, nil
}

func (a *arranged) free() {
	a.ids.Free()
	a.values.Free()
}

// blocks calls f for what every server has of every table: the ids by tables and by servers, and
// the rows.
func (a *arranged) blocks(t *travel, f func(ids, idsHere []int64, rows, rowsHere []byte)) {
	all := unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(a.ids.Bytes()))), a.lasts[len(a.lasts)-1])
	for s := range a.ats {
		first, at := a.firsts[s], a.ats[s]
		for i := range t.tables {
			r := &t.tables[i]
			from, to, row := int64(r.plan.Starts[s]), int64(r.plan.Starts[s+1]), r.rowBytes
			n := to - from
			if n == 0 {
				continue
			}
			at = request.Align(at)
			f(r.plan.Unique[from:to], all[first:first+n], t.values.Bytes()[r.at+from*row:r.at+to*row], a.values.Bytes()[at:at+n*row])
			first, at = first+n, at+n*row
		}
	}
}

// collect copies the ids, and the rows if they travel to the servers.
func (a *arranged) collect(t *travel, rows bool) {
	a.blocks(t, func(from, to []int64, fromRows, toRows []byte) {
		copy(to, from)
		if rows {
			copy(toRows, fromRows)
		}
	})
}

// spread copies the rows back that have come from the servers.
func (a *arranged) spread(t *travel) {
	a.blocks(t, func(_, _ []int64, rows, here []byte) { copy(rows, here) })
}
