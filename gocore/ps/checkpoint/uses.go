package checkpoint

import (
	"cmp"
	"context"
	"hash/crc32"
	"slices"
	"sort"
	"sync"
)

// This file restores tables whose ids come and go: their last uses, and their sketches.

// use is when a row was used last. Rows of one use are ordered by their ids, as in a table that has
// to remove some.
type use struct{ stamp, id int64 }

func (u use) compare(o use) int {
	return cmp.Or(cmp.Compare(u.stamp, o.stamp), cmp.Compare(u.id, o.id))
}

// notBefore returns those places whose rows were not used before u.
func (u use) notBefore(c *chunk, places []int64) []int64 {
	ids, stamps := c.ids(), c.stampsOf()
	return slices.DeleteFunc(places, func(at int64) bool {
		row := use{id: ids[at]}
		if stamps != nil {
			row.stamp = stamps[at]
		}
		return row.compare(u) < 0
	})
}

// oldest returns, of each table of which the cut has more rows than the sink has room for, the row
// that is used last but for as many as it has room for. Memory: 16 bytes for each row of the sink.
func (m *Manifest) oldest(ctx context.Context, mine func(string, int64) bool, sink Sink) (map[int]use, error) {
	all := uses{of: map[int][]use{}}
	caps := map[int]int64{}
	own := sink.Own(len(m.Parts))
	for t := range m.Tables {
		rows := m.Tables[t].Rows
		if own >= 0 {
			rows = m.Parts[own].Rows[t]
		}
		if most := sink.Cap(t); most > 0 && rows > most {
			caps[t], all.of[t] = most, nil
		}
	}
	if len(caps) == 0 {
		return nil, nil
	}
	names := map[string]bool{}
	for t := range caps {
		names[m.Tables[t].Name] = true
	}
	capped := func(table string, id int64) bool { return names[table] && (mine == nil || mine(table, id)) }
	for server := range m.Parts {
		if err := m.restorePart(ctx, server, capped, nil, &all); err != nil {
			return nil, err
		}
	}
	oldest := map[int]use{}
	for t, most := range caps {
		if rows := all.of[t]; int64(len(rows)) > most {
			sort.Slice(rows, func(a, b int) bool { return rows[a].compare(rows[b]) < 0 })
			oldest[t] = rows[int64(len(rows))-most]
		}
	}
	return oldest, nil
}

// uses is a Sink that collects the last uses of the rows of some tables.
type uses struct {
	sync.Mutex
	of map[int][]use
}

func (*uses) Begin([]Table) error      { return nil }
func (*uses) Own(int) int              { return -1 }
func (*uses) Cap(int) int64            { return 0 }
func (*uses) Sketch(int, []byte) error { return nil }

func (u *uses) Rows(table int, ids []int64, _ []byte, _ []float32, stamps []int64) error {
	u.Lock()
	defer u.Unlock()
	for i, id := range ids {
		row := use{id: id}
		if stamps != nil {
			row.stamp = stamps[i]
		}
		u.of[table] = append(u.of[table], row)
	}
	return nil
}

// sketches reads the sketches of the part, and gives the sink each as a whole.
func (r *reader) sketches(ctx context.Context, entries []entry, offsets []int64, sink Sink) error {
	whole := map[uint32][]byte{}
	for i, e := range entries {
		table, is := e.sketchOf()
		if !is {
			continue
		}
		if err := given(ctx); err != nil {
			return err
		}
		piece := make([]byte, e.size(r.m.Tables))
		if err := r.at(piece, offsets[i]); err != nil {
			return err
		}
		if crc32.ChecksumIEEE(piece) != e.ids {
			return r.damaged("the checksum of the sketch at byte %d is wrong", offsets[i])
		}
		if len(whole[table])+int(e.rows) > mostSketch {
			return r.damaged("the sketch of table %q has more than %d bytes", r.m.Tables[table].Name, mostSketch)
		}
		whole[table] = append(whole[table], piece[:e.rows]...)
	}
	if own := sink.Own(len(r.m.Parts)); own >= 0 && own != r.server {
		return nil
	}
	for table, sketch := range whole {
		if err := sink.Sketch(int(table), sketch); err != nil {
			return err
		}
	}
	return nil
}
