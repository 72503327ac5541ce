package client

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/ps/link"
)

// arranged is staging memory in which the ids and rows of a server lie together. It is needed where several
// tables go to several servers: in the memory of a travel they lie by tables.
type arranged struct {
	ids, values *link.Memory
	firsts, ats []int64 // where those of each server begin, and the end: in ids, and in bytes
}

func (c *Client) arrange(t *travel, ids, bytes int64) (a *arranged, err error) {
	a = &arranged{firsts: make([]int64, c.servers+1), ats: make([]int64, c.servers+1)}
	for s := range c.servers {
		a.firsts[s+1], a.ats[s+1] = a.firsts[s], a.ats[s]
		for _, p := range t.parts {
			n := int64(p.plan.Starts[s+1] - p.plan.Starts[s])
			a.firsts[s+1] += n
			a.ats[s+1] += n * p.table.Dim * 4
		}
	}
	if a.ids, err = c.links.Memory(max(1, ids) * 8); err != nil {
		return nil, err
	}
	if a.values, err = c.links.Memory(max(1, bytes)); err != nil {
		a.ids.Free()
		return nil, err
	}
	return a, nil
}

func (a *arranged) free() {
	a.ids.Free()
	a.values.Free()
}

// blocks calls f for what every server has of every part: the ids by tables and by servers, and the rows.
func (a *arranged) blocks(t *travel, f func(ids, idsHere []int64, rows, rowsHere []byte)) {
	all := unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(a.ids.Bytes()))), a.firsts[len(a.firsts)-1])
	for s := range len(a.firsts) - 1 {
		first, at := a.firsts[s], a.ats[s]
		for i := range t.parts {
			p := &t.parts[i]
			from, to, row := int64(p.plan.Starts[s]), int64(p.plan.Starts[s+1]), p.table.Dim*4
			n := to - from
			f(p.plan.Unique[from:to], all[first:first+n], t.values.Bytes()[p.at+from*row:p.at+to*row], a.values.Bytes()[at:at+n*row])
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
