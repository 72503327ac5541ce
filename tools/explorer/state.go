package explorer

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
)

const (
	locations = 48 // atomic and plain ones together
	threads   = 6
)

// view is what a thread knows. For an atomic location it is the place of the oldest message that the
// thread may read. For a plain location it is a set of bits: knowsWrite if the last write happens
// before the thread's next step, and knowsRead << t if the last read of thread t since then does.
type view [locations]uint8

const (
	knowsWrite = 1
	knowsRead  = 2
)

// message is a value in the modification order of an atomic location.
type message struct {
	value int32
	rmw   bool // no message may come between it and the one before
	view  view // what an acquire load takes over
}

type plain struct {
	value   int32
	readers uint8 // knowsRead bits of the threads that have read it since the last write
}

type thread struct {
	alive   bool
	view    view
	next    operation
	mark    []int
	history []int32 // results since mark
	notes   []int32
}

type state struct {
	atomics [][]message
	plains  []plain
	threads []thread
}

func newState(p *Program) *state {
	s := &state{atomics: make([][]message, p.Atomics), plains: make([]plain, p.Plains), threads: make([]thread, len(p.Threads))}
	// Everybody knows the first values.
	var all view
	for i := range p.Plains {
		all[p.Atomics+i] = knowsWrite
	}
	for i := range s.atomics {
		s.atomics[i] = []message{{view: all}}
	}
	for t := range s.threads {
		s.threads[t] = thread{alive: true, view: all}
	}
	return s
}

func (s *state) clone() *state {
	c := &state{atomics: make([][]message, len(s.atomics)), plains: slices.Clone(s.plains), threads: slices.Clone(s.threads)}
	for i := range s.atomics {
		c.atomics[i] = slices.Clone(s.atomics[i])
	}
	for t := range c.threads {
		th := &c.threads[t]
		th.history, th.notes = slices.Clone(th.history), slices.Clone(th.notes) // mark is never changed in place
	}
	return c
}

// views calls f for every view.
func (s *state) views(f func(*view)) {
	for t := range s.threads {
		f(&s.threads[t].view)
	}
	for i := range s.atomics {
		for k := range s.atomics[i] {
			f(&s.atomics[i][k].view)
		}
	}
}

// join takes over what another view knows.
func (s *state) join(v, other *view) {
	n := len(s.atomics)
	for i := range n {
		v[i] = max(v[i], other[i])
	}
	for i := n; i < n+len(s.plains); i++ {
		v[i] |= other[i]
	}
}

// choice is one way in which an operation may go.
type choice struct {
	at   int  // the message that is read, the place of a store, or the number chosen
	fail bool // a compare-and-swap finds another value
	give bool // an Await gives up
}

// choices returns all ways in which thread t can go on.
func (s *state) choices(t int) (list []choice) {
	th := &s.threads[t]
	if !th.alive {
		return nil
	}
	o := &th.next
	if o.kind == choose {
		for i := range int(o.value) {
			list = append(list, choice{at: i})
		}
		return list
	}
	messages, from := s.atomics[o.loc], int(th.view[o.loc])
	attached := func(i int) bool { return i < len(messages) && messages[i].rmw }
	for i := from; i < len(messages); i++ {
		m := &messages[i]
		switch o.kind {
		case load:
			list = append(list, choice{at: i})
		case await:
			if o.until(int(m.value)) {
				list = append(list, choice{at: i})
			}
		case store:
			if !attached(i + 1) {
				list = append(list, choice{at: i + 1})
			}
		case swap:
			if m.value != o.old {
				list = append(list, choice{at: i, fail: true})
			} else if !attached(i + 1) {
				list = append(list, choice{at: i})
			}
		}
	}
	if o.orElse {
		list = append(list, choice{give: true})
	}
	return list
}

// apply carries out the operation of thread t, and appends its results to the history.
func (s *state) apply(t int, c choice) {
	th := &s.threads[t]
	o := th.next
	result := func(v ...int32) { th.history = append(th.history, v...) }
	switch {
	case o.kind == choose:
		result(int32(c.at))
	case c.give:
		result(0, 1)
	case o.kind == store:
		s.insert(t, o.loc, c.at, message{value: o.value}, o.order, nil)
	case o.kind == swap && !c.fail:
		result(o.old, 1)
		from := s.take(t, o.loc, c.at, o.order)
		s.insert(t, o.loc, c.at+1, message{value: o.value, rmw: true}, o.order, &from)
	case o.kind == swap:
		m := s.take(t, o.loc, c.at, o.onFailure)
		result(m.value, 0)
	default:
		m := s.take(t, o.loc, c.at, o.order)
		result(m.value)
		if o.orElse {
			result(0)
		}
	}
	if o.kind == store {
		result(0)
	}
}

// take reads a message.
func (s *state) take(t, loc, at int, o Order) message {
	th := &s.threads[t]
	th.view[loc] = uint8(at)
	m := s.atomics[loc][at]
	if o&Acquire != 0 {
		s.join(&th.view, &m.view)
	}
	return m
}

// insert stores a message. from is the message that a read-modify-write has read: its view goes on
// with the new one, as in a release sequence.
func (s *state) insert(t, loc, at int, m message, o Order, from *message) {
	s.views(func(v *view) {
		if int(v[loc]) >= at {
			v[loc]++
		}
	})
	th := &s.threads[t]
	th.view[loc] = uint8(at)
	if from != nil {
		m.view = from.view
	}
	if o&Release != 0 {
		s.join(&m.view, &th.view)
	}
	m.view[loc] = uint8(at)
	s.atomics[loc] = slices.Insert(s.atomics[loc], at, m)
}

// read and write touch a plain location. They return false if that is a race.
func (s *state) read(t, at int) bool {
	i, bit := len(s.atomics)+at, uint8(knowsRead)<<t
	if s.threads[t].view[i]&knowsWrite == 0 {
		return false
	}
	s.views(func(v *view) { v[i] &^= bit })
	s.threads[t].view[i] |= bit
	s.plains[at].readers |= bit
	return true
}

func (s *state) write(t, at int, value int32) bool {
	i := len(s.atomics) + at
	if need := s.plains[at].readers | knowsWrite; s.threads[t].view[i]&need != need {
		return false
	}
	s.views(func(v *view) { v[i] = 0 })
	s.threads[t].view[i] = knowsWrite
	s.plains[at] = plain{value: value}
	return true
}

// collect drops the messages that no thread can read any more.
func (s *state) collect() {
	for loc := range s.atomics {
		oldest := len(s.atomics[loc]) - 1
		for t := range s.threads {
			if s.threads[t].alive {
				oldest = min(oldest, int(s.threads[t].view[loc]))
			}
		}
		s.atomics[loc][oldest].rmw = false
		if oldest == 0 {
			continue
		}
		s.atomics[loc] = s.atomics[loc][oldest:]
		s.views(func(v *view) { v[loc] -= min(v[loc], uint8(oldest)) })
	}
	for t := range s.threads {
		if !s.threads[t].alive {
			s.threads[t].view = view{}
		}
	}
}

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// key returns 128 bits that tell states apart.
func (s *state) key() [2]uint64 {
	b := make([]byte, 0, 4096)
	width := len(s.atomics) + len(s.plains)
	number := func(v int32) { b = binary.LittleEndian.AppendUint32(b, uint32(v)) }
	for i := range s.atomics {
		b = append(b, byte(len(s.atomics[i])))
		for k := range s.atomics[i] {
			m := &s.atomics[i][k]
			number(m.value)
			if m.rmw {
				b = append(b, 1)
			} else {
				b = append(b, 0)
			}
			b = append(b, m.view[:width]...)
		}
	}
	for i := range s.plains {
		number(s.plains[i].value)
		b = append(b, s.plains[i].readers)
	}
	for t := range s.threads {
		th := &s.threads[t]
		if th.alive {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
		b = append(b, th.view[:width]...)
		b = append(b, byte(len(th.mark)), byte(len(th.history)), byte(len(th.notes)))
		for _, v := range th.mark {
			number(int32(v))
		}
		for _, v := range th.history {
			number(v)
		}
		for _, v := range th.notes {
			number(v)
		}
	}
	return [2]uint64{maphash.Bytes(seeds[0], b), maphash.Bytes(seeds[1], b)}
}

func (s *state) ended() (notes [][]int, blocked []int) {
	for t := range s.threads {
		var list []int
		for _, v := range s.threads[t].notes {
			list = append(list, int(v))
		}
		notes = append(notes, list)
		if s.threads[t].alive {
			blocked = append(blocked, t)
		}
	}
	return notes, blocked
}
