package shm

import (
	"fmt"
	"slices"

	"github.com/paddlempi/paddlempi/tools/explorer"
)

// This file is the protocol of arrive/slots.c and chunks.c, told to an explorer that knows release
// and acquire. It goes through all executions of a few ranks, chunks and collectives. A rank's
// tensor and payload are plain memory, so whoever touches them too early is a data race.
//
// What is shown, in every execution:
//   - A rank that sees its collective done reads the result in its tensor, made once, of the inputs
//     of this very collective. It may then write the tensor.
//   - A rank whose call has failed may write its tensor: no rank reads or writes it any more.
//   - The payloads that a rank reads belong to the collective.
//   - No collective is done for one rank and given up for another.
//   - A rank that finds a collective closed knows who has closed it. Nobody seems to have closed one at
//     which all have come.
//   - A rank waits for ever only if another one has failed or died.

// orders are the memory orders of the protocol.
type orders struct {
	announce, poll  explorer.Order // pa_announce, pa_poll
	claim, claimed  explorer.Order // take: the swap, and the load before it
	done, look      explorer.Order // sm_work, sm_state
	closing         explorer.Order // pa_close: the swap
	finish, passing explorer.Order // the ring: the word finished
	blind, allBlind explorer.Order // sm_blind, all_blind
}

var asWritten = orders{
	announce: explorer.Release, poll: explorer.Acquire,
	claim: explorer.AcqRel, claimed: explorer.Acquire,
	done: explorer.Release, look: explorer.Acquire,
	closing: explorer.AcqRel,
	finish:  explorer.Release, passing: explorer.Acquire,
	blind: explorer.AcqRel, allBlind: explorer.Acquire,
}

// protocol is a program to explore. Rank sets are bits.
type protocol struct {
	ranks, chunks, collectives int
	// slots is the number of slots. ahead is how many collectives a rank announces before it has
	// ended the oldest. If it is more than one, or ring is set, the slots are a ring: a slot is used
	// again when all ranks have finished with it, as their words say. Otherwise a rank announces the
	// next collective when the one before is over for it.
	slots, ahead int
	ring         bool

	refuses  int  // ranks that may refuse a collective that they have announced ahead
	leaves   int  // ranks that may give up at any moment of the arrival
	givesUp  int  // ranks that may give up at any moment after it
	dies     int  // ranks that may die between a claim and its end
	abandons int  // ranks that give up and may then leave chunks on which others work
	blind    int  // ranks that cannot map the tensors
	looks    int  // ranks that look who has closed a collective
	helper   bool // rank 0 has a second thread, which comes late with the first collective
	order    orders

	everything bool // the explorer goes without its reduction

	// Defects.
	unsequenced   bool // the words have no sequence number; rank 0 clears them before it announces
	noFinished    bool // the ring does not look at the words finished
	hasty         bool // who gives up does not wait for the chunks that others work on
	buriesLiving  bool // a rank that waits buries another one that is alive
	blindWorks    bool // a rank that has counted itself as blind works all the same
	closesTooMuch bool // who gives up closes the next collective in any case
	overrules     bool // the owner of a chunk stores "done" without a look at its word
	refusesAlone  bool // who refuses late does not mark another rank's slot
	saysEarly     bool // who gives up says that it has closed a collective before it has
	saysLate      bool // who gives up does not say that it tries to
}

const (
	free = iota
	claimed
	done
	closed
	left // claimed, and a rank that has given up does not wait for it

	// Added to the sequence number of a slot that was closed; that another rank has marked, because it
	// refuses; and in which the rank has announced after that.
	closedSlot  = 1000
	refusedSlot = 2000
	hereSlot    = 3000
)

// isHere tells whether a slot says that its rank has announced seq.
func isHere(v, seq int) bool { return v == seq || v == seq+hereSlot }

func word(seq, owner, state int) int { return seq*100 + owner*10 + state }
func seqOf(w int) int                { return w / 100 }
func stateOf(w int) int              { return w % 10 }

// ends of a call
const (
	wasDone = iota + 1
	wasClosed
	wasBlind
	neverBegan // closed before all had announced it
	died
	wasLeft // closed, while another rank works on a chunk: the tensors are kept, and not used
	wasRefused
)

// Atomic locations.
func (p *protocol) slot(seq int) int       { return seq % p.slots }
func (p *protocol) seqAt(r, seq int) int   { return r*p.slots + p.slot(seq) }
func (p *protocol) chunkAt(c, seq int) int { return p.ranks*p.slots + p.slot(seq)*p.chunks + c }
func (p *protocol) blindAt(seq int) int    { return (p.ranks+p.chunks)*p.slots + p.slot(seq) }
func (p *protocol) finishedAt(r int) int   { return (p.ranks+p.chunks+1)*p.slots + r }
func (p *protocol) deadAt(r int) int       { return (p.ranks+p.chunks+1)*p.slots + p.ranks + r }
func (p *protocol) begunAt() int           { return (p.ranks+p.chunks+1)*p.slots + 2*p.ranks }
func (p *protocol) lateAt(r, seq int) int  { return p.begunAt() + 1 + r*p.slots + p.slot(seq) }
func (p *protocol) closedAt(r int) int     { return p.begunAt() + 1 + p.ranks*p.slots + r }
func (p *protocol) closingAt(r int) int    { return p.closedAt(p.ranks) + r }
func (p *protocol) atomics() int {
	if p.looks == 0 {
		return p.closedAt(0)
	}
	return p.closedAt(2 * p.ranks)
}

// Plain locations. Every outstanding collective of a rank has a tensor of its own.
func (p *protocol) payload(r, seq int) int { return r*p.slots + p.slot(seq) }
func (p *protocol) tensor(r, c, seq int) int {
	return p.ranks*p.slots + (seq%p.ahead*p.ranks+r)*p.chunks + c
}
func (p *protocol) plains() int { return p.ranks*p.slots + p.ahead*p.ranks*p.chunks }

func input(seq, r int) int { return 100*seq + r }
func result(seq int) int   { return 100*seq + 50 }

func has(set, r int) bool { return set>>r&1 != 0 }

func (p *protocol) name(loc int) string {
	for r := range p.ranks {
		switch loc {
		case p.finishedAt(r):
			return fmt.Sprintf("finished of %d", r)
		case p.deadAt(r):
			return fmt.Sprintf("whether %d is dead", r)
		case p.closedAt(r):
			return fmt.Sprintf("closed of %d", r)
		case p.closingAt(r):
			return fmt.Sprintf("closing of %d", r)
		}
		for s := range p.slots {
			if loc == p.seqAt(r, s) {
				return fmt.Sprintf("seq of %d in slot %d", r, s)
			}
		}
	}
	for s := range p.slots {
		for c := range p.chunks {
			if loc == p.chunkAt(c, s) {
				return fmt.Sprintf("chunk %d of slot %d", c, s)
			}
		}
		if loc == p.blindAt(s) {
			return fmt.Sprintf("blind ranks of slot %d", s)
		}
	}
	return "begun"
}

// member is a thread of a rank.
type member struct {
	*protocol
	*explorer.Thread
	me int
}

// run is the life of a rank: it announces collectives and ends them, in order.
func (m member) run() {
	from := m.Marked(0, 0)
	announced, ended := from[0], from[1]
	for {
		m.Mark(announced, ended)
		if announced < m.collectives && (announced == ended || announced-ended < m.ahead && m.mayAnnounce(announced+1)) {
			announced++
			m.announce(announced)
			if has(m.refuses, m.me) && announced > ended+1 && m.Choose(2) == 1 && m.refuse(announced) {
				m.use(announced)
			}
			continue
		}
		if ended == m.collectives {
			return
		}
		seq := ended + 1
		end := m.complete(seq)
		if end == died {
			return
		}
		if end == wasLeft {
			m.Note(10*seq + wasClosed)
			return
		}
		m.Note(10*seq + end)
		if end == neverBegan || end == wasClosed {
			for k := seq; k <= announced; k++ {
				m.use(k) // after the calls have raised
			}
			m.breakGroup(announced, end)
			return
		}
		for c := range m.chunks {
			if end == wasRefused {
				break
			}
			want := result(seq)
			if end == wasBlind {
				want = input(seq, m.me)
			}
			if got := m.Read(m.tensor(m.me, c, seq)); got != want {
				m.Fail("rank %d: chunk %d of collective %d holds %d, not %d", m.me, c, seq, got, want)
			}
		}
		if m.ring {
			m.Store(m.finishedAt(m.me), seq, m.order.finish)
		}
		ended = seq
	}
}

// breakGroup closes the collectives that this rank will not take part in. It must not close one
// whose slot another rank may still use: so it closes the next one only if all have announced the one
// before, and in the ring only if all have finished with the slot.
func (m member) breakGroup(announced, end int) {
	next := announced + 1
	switch {
	case m.closesTooMuch:
	case !m.ring && end == neverBegan:
		return
	case m.ring:
		for r := range m.ranks {
			if m.Load(m.finishedAt(r), explorer.Acquire) < next-m.slots {
				return
			}
		}
	}
	m.closeSlots(next)
}

// use is what the caller does with its tensor when the call is over.
func (m member) use(seq int) {
	for c := range m.chunks {
		m.Write(m.tensor(m.me, c, seq), 0)
	}
}

// mayAnnounce is pa_may_announce.
func (m member) mayAnnounce(seq int) bool {
	for r := range m.ranks {
		if seq >= m.slots && !m.noFinished && m.Load(m.finishedAt(r), m.order.passing) < seq-m.slots+1 {
			return false
		}
	}
	return true
}

func (m member) announce(seq int) {
	for c := range m.chunks {
		m.Write(m.tensor(m.me, c, seq), input(seq, m.me))
	}
	m.Write(m.payload(m.me, seq), seq)
	if m.refuses != 0 {
		m.Store(m.lateAt(m.me, seq), 0, explorer.Relaxed)
	}
	if m.unsequenced && m.me == 0 {
		for c := range m.chunks {
			m.Store(m.chunkAt(c, seq), word(0, 0, free), explorer.Relaxed)
		}
	}
	old := m.Load(m.seqAt(m.me, seq), explorer.Relaxed)
	for ok := false; !ok && old != seq+closedSlot; {
		here := seq
		if old == seq+refusedSlot {
			here = seq + hereSlot
		}
		old, ok = m.Swap(m.seqAt(m.me, seq), old, here, m.order.announce, explorer.Relaxed)
	}
}

// refuse is pa_refuse.
func (m member) refuse(seq int) bool {
	m.Store(m.lateAt(m.me, seq), 1, explorer.Relaxed)
	for r := range m.ranks {
		old := m.Load(m.seqAt(r, seq), explorer.Acquire)
		for ok := false; !isHere(old, seq) && old != seq+closedSlot; {
			if m.refusesAlone {
				return true
			}
			if old, ok = m.Swap(m.seqAt(r, seq), old, seq+refusedSlot, explorer.AcqRel, explorer.Acquire); ok {
				return true
			}
		}
		if old == seq+hereSlot {
			return true
		}
	}
	return false
}

// closeSlots is pa_close. What it says of itself is left out if nobody looks.
func (m member) closeSlots(seq int) (was bool) {
	say := func(loc, v int) {
		if m.looks != 0 {
			m.Store(loc, v, explorer.Release)
		}
	}
	switch {
	case m.saysEarly:
		say(m.closedAt(m.me), seq)
	case !m.saysLate:
		say(m.closingAt(m.me), seq)
	}
	for r := range m.ranks {
		old := m.Load(m.seqAt(r, seq), explorer.Acquire)
		for ok := false; !ok && !isHere(old, seq) && old != seq+closedSlot; {
			old, ok = m.Swap(m.seqAt(r, seq), old, seq+closedSlot, m.order.closing, explorer.Acquire)
		}
		was = was || !isHere(old, seq)
	}
	switch {
	case was && m.looks != 0 && m.Load(m.closedAt(m.me), explorer.Relaxed) == 0: // as pa_stop does
		say(m.closedAt(m.me), seq)
	case m.saysEarly && !was:
		say(m.closedAt(m.me), 0)
	}
	if !m.saysEarly && !m.saysLate {
		say(m.closingAt(m.me), 0)
	}
	return was
}

// hasClosed is pa_closer.
func (m member) hasClosed(r, seq int) bool {
	closing := m.Load(m.closingAt(r), explorer.Acquire)
	if closed := m.Load(m.closedAt(r), explorer.Acquire); closed != 0 && closed <= seq {
		return true
	}
	for k := 0; closing == seq && k < m.ranks; k++ {
		if m.Load(m.seqAt(k, seq), explorer.Acquire) == seq+closedSlot {
			return true
		}
	}
	return false
}

// look checks who seems to have closed a collective.
func (m member) look(seq int, isClosed bool) {
	if !has(m.looks, m.me) {
		return
	}
	who := slices.DeleteFunc([]int{0, 1, 2}[:m.ranks], func(r int) bool { return !m.hasClosed(r, seq) })
	if isClosed != (len(who) > 0) {
		m.Fail("rank %d: collective %d is closed (%v), by ranks %v", m.me, seq, isClosed, who)
	}
}

// await waits for a value. ok is false if this rank gives up instead, which it may.
func (m member) await(loc int, o explorer.Order, mayGiveUp bool, until func(int) bool) (v int, ok bool) {
	if mayGiveUp {
		return m.AwaitOr(loc, o, until)
	}
	return m.Await(loc, o, until), true
}

// complete waits until all ranks have announced the collective, and carries it out.
func (m member) complete(seq int) (end int) {
	refused := false
	for r, mayGiveUp := 0, has(m.leaves, m.me); r < m.ranks; {
		v, ok := m.await(m.seqAt(r, seq), m.order.poll, mayGiveUp, func(v int) bool { return isHere(v, seq) || v == seq+closedSlot })
		refused = refused || ok && v == seq+hereSlot
		switch {
		case !ok && m.closeSlots(seq):
			return neverBegan
		case ok && !isHere(v, seq):
			m.look(seq, true)
			return neverBegan
		case !ok:
			mayGiveUp = false // all have announced it
		default:
			r++
		}
	}
	for r := range m.ranks {
		if got := m.Read(m.payload(r, seq)); got != seq {
			m.Fail("rank %d: the payload of rank %d in collective %d is of %d", m.me, r, seq, got)
		}
	}
	m.look(seq, false)
	if refused {
		late := 0
		for r := range m.ranks {
			late += m.Load(m.lateAt(r, seq), explorer.Relaxed)
		}
		if late == 0 {
			m.Fail("rank %d: collective %d was refused by no rank", m.me, seq)
		}
		return wasRefused
	}
	if m.helper && m.me == 0 && seq == 1 {
		m.Store(m.begunAt(), 1, explorer.Release)
	}
	if has(m.blind, m.me) {
		m.countBlind(seq)
	}
	if !has(m.blind, m.me) || m.blindWorks {
		for i := range m.chunks {
			if has(m.givesUp, m.me) && m.Choose(2) == 1 { // before it has claimed the rest
				if end := m.giveUp(seq); end != 0 {
					return end
				}
				break
			}
			c := (m.me*m.chunks/m.ranks + i) % m.chunks
			if m.take(seq, c, claimed) {
				if has(m.dies, m.me) && m.Choose(2) == 1 {
					m.Store(m.deadAt(m.me), 1, explorer.Release)
					return died
				}
				m.work(seq, c)
				m.finish(seq, c)
			}
		}
	}
	return m.wait(seq)
}

// finish ends the work on a chunk (sm_work). If a rank has left the chunk, it is closed.
func (m member) finish(seq, c int) {
	if !m.overrules {
		old := m.word(seq, claimed)
		if _, ok := m.Swap(m.chunkAt(c, seq), old, m.word(seq, done), m.order.done, explorer.Relaxed); !ok {
			m.Store(m.chunkAt(c, seq), m.word(seq, closed), m.order.done)
		}
		return
	}
	m.Store(m.chunkAt(c, seq), m.word(seq, done), m.order.done)
}

func (m member) word(seq, state int) int {
	if m.unsequenced {
		seq = 0
	}
	return word(seq, m.me, state)
}

// isOf tells whether a word was used by a collective.
func (m member) isOf(w, seq int) bool {
	if m.unsequenced {
		return stateOf(w) != free
	}
	return seqOf(w) == seq
}

// take claims a chunk, or closes it.
func (m member) take(seq, c, state int) bool {
	old := m.Load(m.chunkAt(c, seq), m.order.claimed)
	if m.unsequenced && stateOf(old) != free || !m.unsequenced && seqOf(old) >= seq {
		return false
	}
	_, ok := m.Swap(m.chunkAt(c, seq), old, m.word(seq, state), m.order.claim, explorer.Acquire)
	return ok
}

// work reduces a chunk in place.
func (m member) work(seq, c int) {
	for r := range m.ranks {
		if got := m.Read(m.tensor(r, c, seq)); got != input(seq, r) {
			m.Fail("rank %d: the input of rank %d to chunk %d of collective %d is %d", m.me, r, c, seq, got)
		}
	}
	for r := range m.ranks {
		m.Write(m.tensor(r, c, seq), result(seq))
	}
}

// countBlind is sm_blind.
func (m member) countBlind(seq int) {
	old := m.Load(m.blindAt(seq), explorer.Acquire)
	for ok := false; !ok; {
		next := word(seq, 0, 1)
		if seqOf(old) == seq {
			next = old + 1
		}
		old, ok = m.Swap(m.blindAt(seq), old, next, m.order.blind, explorer.Acquire)
	}
}

// wait is sm_state, repeated, with the ways to give up.
func (m member) wait(seq int) int {
	if m.blind == 1<<m.ranks-1 {
		// There is nothing else to wait for.
		w, ok := m.await(m.blindAt(seq), m.order.allBlind, has(m.givesUp, m.me), func(w int) bool { return w == word(seq, 0, m.ranks) })
		if ok && w != 0 {
			return wasBlind
		}
		return m.giveUp(seq)
	}
	if has(m.blind, m.me) {
		if w := m.Load(m.blindAt(seq), m.order.allBlind); w == word(seq, 0, m.ranks) {
			m.Fail("rank %d: only %b are blind", m.me, m.blind)
		}
	}
	// If a rank may be dead, the others look after it from time to time.
	for c, mayGiveUp := 0, has(m.givesUp, m.me) || m.dies != 0 || m.buriesLiving; c < m.chunks; {
		over := func(w int) bool { return m.isOf(w, seq) && stateOf(w) != claimed && stateOf(w) != free }
		w, ok := m.await(m.chunkAt(c, seq), m.order.look, mayGiveUp, over)
		if ok && stateOf(w) == done {
			c++
			continue
		}
		if !ok {
			m.bury(seq)
		}
		if end := m.giveUp(seq); end != 0 {
			return end
		}
		mayGiveUp = false
	}
	return wasDone
}

// giveUp closes the chunks that nobody has claimed, as often as it takes (sm_close). It returns 0 if
// there are none.
func (m member) giveUp(seq int) int {
	for {
		isClosed, working := false, -1
		for c := range m.chunks {
			m.take(seq, c, closed)
			w := m.Load(m.chunkAt(c, seq), explorer.Acquire)
			if !m.isOf(w, seq) {
				m.Fail("rank %d: after the close, chunk %d of collective %d holds %d", m.me, c, seq, w)
			}
			isClosed = isClosed || stateOf(w) == closed || stateOf(w) == left
			if stateOf(w) == claimed || stateOf(w) == left {
				working = c
			}
		}
		if working >= 0 && has(m.abandons, m.me) && m.Choose(2) == 1 {
			if isClosed = m.leave(seq) || isClosed; isClosed {
				return wasLeft
			}
			continue
		}
		switch {
		case !isClosed && working < 0:
			return wasDone
		case !isClosed:
			return 0
		case working < 0 || m.hasty:
			return wasClosed
		}
		owner := m.Load(m.chunkAt(working, seq), explorer.Acquire) / 10 % 10
		over := func(w int) bool { return stateOf(w) != claimed && stateOf(w) != left }
		if m.dies == 0 {
			m.Await(m.chunkAt(working, seq), explorer.Acquire, over)
		} else if _, ok := m.AwaitOr(m.chunkAt(working, seq), explorer.Acquire, over); !ok {
			m.Await(m.deadAt(owner), explorer.Acquire, func(v int) bool { return v == 1 })
			m.bury(seq)
		}
	}
}

// leave marks the chunks on which others work (sm_leave). It returns whether there was one.
func (m member) leave(seq int) (was bool) {
	for c := range m.chunks {
		w := m.Load(m.chunkAt(c, seq), explorer.Acquire)
		if stateOf(w) == claimed {
			_, ok := m.Swap(m.chunkAt(c, seq), w, w-claimed+left, explorer.AcqRel, explorer.Acquire)
			was = was || ok
		}
	}
	return was
}

// bury is sm_fail_peer for the ranks that are dead.
func (m member) bury(seq int) {
	for r := range m.ranks {
		if r == m.me || !has(m.dies, r) && !m.buriesLiving || has(m.dies, r) && m.Load(m.deadAt(r), explorer.Acquire) == 0 {
			continue
		}
		for c := range m.chunks {
			for _, state := range []int{claimed, left} {
				m.Swap(m.chunkAt(c, seq), word(seq, r, state), word(seq, r, closed), explorer.AcqRel, explorer.Acquire)
			}
		}
	}
}

// late is a second thread of rank 0, which helps with collective 1 and may come at any time later.
func (m member) late() {
	m.Await(m.begunAt(), explorer.Acquire, func(v int) bool { return v == 1 })
	for c := range m.chunks {
		if m.take(1, c, claimed) {
			m.work(1, c)
			m.finish(1, c)
		}
	}
}

// explore returns the number of states, and what is wrong.
func (p *protocol) explore() (int, error) {
	if p.slots == 0 {
		p.slots = 2
	}
	p.ahead = max(p.ahead, 1)
	p.ring = p.ring || p.ahead > 1
	program := &explorer.Program{Atomics: p.atomics(), Plains: p.plains(), Check: p.check, Name: p.name, Most: 500_000, Everything: p.everything}
	for r := range p.ranks {
		program.Threads = append(program.Threads, func(t *explorer.Thread) { member{p, t, r}.run() })
	}
	if p.helper {
		program.Threads = append(program.Threads, func(t *explorer.Thread) { member{p, t, 0}.late() })
	}
	return explorer.Explore(program)
}

// check looks at how the calls have ended.
func (p *protocol) check(payloads [][]int, blocked []int) error {
	ends := map[int][]int{} // by collective
	failed := p.dies != 0
	for r := range p.ranks {
		for _, n := range payloads[r] {
			ends[n/10] = append(ends[n/10], n%10)
			failed = failed || n%10 == wasClosed || n%10 == neverBegan
		}
	}
	for seq, list := range ends {
		slices.Sort(list)
		if list = slices.Compact(list); len(list) > 1 {
			return fmt.Errorf("collective %d ended in different ways: %v", seq, list)
		}
	}
	if len(blocked) > 0 && !failed {
		return fmt.Errorf("threads %v wait for ever", blocked)
	}
	return nil
}
