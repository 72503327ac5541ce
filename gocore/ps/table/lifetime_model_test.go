package table

import (
	"cmp"
	"slices"
)

// modelRow is a row of momentum's.
type modelRow struct {
	w, m  []float32
	stamp int64
}

// model is a table of momentum whose ids come and go, as maps of Go. What it does is what
// lifetime.c says, in the plainest way: rows that are too old are removed before anything else.
type model struct {
	Config
	initial                   func(id int64) []float32
	rows                      map[int64]*modelRow
	counts                    map[int64]int64
	clock                     int64
	dropped, expired, evicted int64
}

func newModel(c Config, initial func(int64) []float32) *model {
	return &model{Config: c, initial: initial, rows: map[int64]*modelRow{}, counts: map[int64]int64{}}
}

func (m *model) made(id, now int64) *modelRow {
	r := &modelRow{slices.Clone(m.initial(id)), make([]float32, m.Dim), now}
	m.rows[id] = r
	return r
}

func (m *model) old(stamp int64) bool { return m.ExpireAfter > 0 && m.clock-stamp > m.ExpireAfter }

func (m *model) expire() {
	for id, r := range m.rows {
		if m.old(r.stamp) {
			delete(m.rows, id)
			m.expired++
		}
	}
}

// byUse returns ids in the order in which they make place.
func (m *model) byUse(may func(id int64) bool) []int64 {
	var ids []int64
	for id := range m.rows {
		if may(id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int64) int { return cmp.Or(cmp.Compare(m.rows[a].stamp, m.rows[b].stamp), cmp.Compare(a, b)) })
	return ids
}

func (m *model) evict(ids []int64) {
	for _, id := range ids {
		delete(m.rows, id)
		m.evicted++
	}
}

// admit returns those ids of a push that get a row.
func (m *model) admit(order []int64, has func(int64) bool) []int64 {
	var admitted []int64
	for _, id := range order {
		if m.rows[id] != nil {
			continue
		}
		if m.AdmitAfter > 1 {
			m.counts[id]++
			if m.counts[id] < m.AdmitAfter {
				m.dropped++
				continue
			}
		}
		admitted = append(admitted, id)
	}
	room := m.MaxRows - int64(len(m.rows))
	if lacking := int64(len(admitted)) - room; m.MaxRows > 0 && lacking > 0 {
		may := m.byUse(func(id int64) bool { return !has(id) })
		m.evict(may[:min(int64(len(may)), lacking+m.MaxRows/16)])
		room = min(int64(len(admitted)), m.MaxRows-int64(len(m.rows)))
		m.dropped += int64(len(admitted)) - room
		admitted = admitted[:room]
	}
	return admitted
}

// push is a push of step, 0: the next.
func (m *model) push(ids []int64, g []float32, step int64) {
	m.expire()
	m.clock = max(m.clock, step)
	if step == 0 {
		m.clock++
	}
	var order []int64
	sums := map[int64][]float32{}
	for i, id := range ids {
		mine := g[int64(i)*m.Dim:][:m.Dim]
		if sums[id] == nil {
			order, sums[id] = append(order, id), slices.Clone(mine)
			continue
		}
		for j := range mine {
			sums[id][j] += mine[j]
		}
	}
	for _, id := range m.admit(order, func(id int64) bool { return sums[id] != nil }) {
		m.made(id, m.clock)
	}
	for _, id := range order {
		if r := m.rows[id]; r != nil {
			r.stamp = m.clock
			for j, x := range sums[id] {
				r.m[j] = float32(0.5*r.m[j]) + x
				r.w[j] -= r.m[j]
			}
		}
	}
}

// write sets rows; stamps and states may be nil.
func (m *model) write(ids []int64, w, states []float32, stamps []int64) {
	m.expire()
	set := func(r *modelRow, i int) {
		copy(r.w, w[int64(i)*m.Dim:])
		if states != nil {
			copy(r.m, states[int64(i)*m.Dim:])
		}
		r.stamp = m.clock
		if stamps != nil {
			r.stamp = min(m.clock, stamps[i])
		}
	}
	fresh := map[int64]*modelRow{}
	for i, id := range ids {
		if r := m.rows[id]; r != nil {
			set(r, i)
			if m.old(r.stamp) {
				delete(m.rows, id)
				m.expired++
			}
			continue
		}
		fresh[id] = &modelRow{make([]float32, m.Dim), make([]float32, m.Dim), 0}
		set(fresh[id], i)
	}
	for id, r := range fresh {
		if !m.old(r.stamp) {
			m.rows[id] = r
		}
	}
	if over := int64(len(m.rows)) - m.MaxRows; m.MaxRows > 0 && over > 0 {
		m.evict(m.byUse(func(int64) bool { return true })[:over])
	}
}
