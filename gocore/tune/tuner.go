package tune

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// Mode says when a group measures.
type Mode int

// The modes.
const (
	Once   Mode = iota // until every way of a class was tried
	Off                // never: the first way is taken
	Always             // also later, now and then, so that a network that changes is noticed
)

const (
	rounds = 3 // how often each way of a class is tried
	// finals is how often those are tried whose times are near the shortest one: up to near times as long. A wrong choice among
	// them costs as little as these trials do, but for ever.
	finals = 9
	near   = 1.25
	again  = 128 // of so many calls of a class that is tuned, one is a trial (Always)
	// margin is how much faster than the first way another one has to be.
	margin = 0.95
	// hopeless is how many times the time of the usual way another one takes, twice, that is not tried again, in this class and in the next
	// longer one, for forgiven calls; atOnce: once.
	hopeless = 2
	atOnce   = 3
	forgiven = 8 * again
	// inTurn is how many messages one after the other are no reason to leave a way out for longer calls.
	inTurn = 6
	// patience is how many trials for each that counts a class gets: where other collectives disturb them, most count for nothing.
	patience = 2
	// Most is the most ways of a class.
	Most = 6
)

// Class is calls for which one choice is made.
type Class struct {
	Code   op.Code
	Half   bool // 16-bit floats are summed up
	Length int  // bits of the length of a call in bytes
}

// ClassOf returns the class of a call of bytes bytes.
func ClassOf(code op.Code, half bool, bytes int64) Class {
	return Class{code, half, bits.Len64(uint64(bytes))}
}

// Tuner is what a group knows of its ways. All its members call Word, Propose and Heard in the order of the group's collectives, so
// that it is the same on all. All methods are safe for concurrent use.
type Tuner struct {
	mode    Mode
	table   *Table        // with what its classes begin
	latency time.Duration // see learn

	mu      sync.Mutex
	classes map[Class]*class
	next    proposal // of the collective that is announced now
	trial   *class   // whose time is told with the next announcement; nil: none is
	way     int      // that is tried
	words   Words    // what this member tells of it

	last atomic.Pointer[string]
}

// proposal is the way that all members take in a call, if they agree on that call.
type proposal struct {
	of    Class
	ways  []string // nil: there is nothing to choose
	way   int
	trial bool
}

// class is what is known of one class.
type class struct {
	ways  []string
	calls int
	tries int // trials since it was tuned last
	begun [Most]int
	base  time.Duration
	from  int                   // the way whose time it was
	times [Most][]time.Duration // of each way, the newest last
	out   [Most]bool            // it took too long
	best  int
	tuned bool
	given bool // by a table, and not measured since
}

// New returns the tuner of a group. All members give the same table, nil if there is none, and the same time that a short message takes
// from one to another, 0 if it is not known.
func New(mode Mode, table *Table, latency time.Duration) *Tuner {
	return &Tuner{mode: mode, table: table, latency: latency, classes: map[Class]*class{}}
}

// Words returns what this member tells with its next announcement.
func (t *Tuner) Words() Words {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = proposal{}
	if t.trial == nil {
		return Words{}
	}
	return t.words
}

// Propose returns which of ways, by their names, the call of a class that is announced now takes. There are up to Most, the usual one
// first. measured says that its time is asked for: Done.
func (t *Tuner) Propose(of Class, ways []string) (way int, measured bool) {
	if t.mode == Off || len(ways) < 2 {
		return 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = proposal{of: of, ways: ways}
	if c := t.classes[of]; c != nil && slices.Equal(c.ways, ways) {
		t.next.way, t.next.trial = c.next()
	} else if r, ok := t.table.row(of, ways); ok {
		t.next.way = r.best
	}
	return t.next.way, t.next.trial
}

// Heard takes in the words of all members, combined, that came with an announcement. agreed says that all members have announced
// the same, and none has refused: only then what was proposed is done.
func (t *Tuner) Heard(words Words, agreed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.trial; c != nil {
		t.trial = nil
		if shortest, longest, ok := heard(words, c.base); ok {
			c.learn(t.way, shortest, longest, words, t.latency)
		}
	}
	next := t.next
	if t.next = (proposal{}); next.ways == nil || !agreed {
		return
	}
	c := t.classes[next.of]
	if c == nil || !slices.Equal(c.ways, next.ways) {
		c = t.begin(next.of, next.ways)
		t.classes[next.of] = c
	}
	c.took(next, t.mode)
	if next.trial {
		t.trial, t.way, t.words = c, next.way, Words{void}
	}
}

// begin returns what is known of a class before its first call.
func (t *Tuner) begin(of Class, ways []string) *class {
	c := &class{ways: ways}
	r, ok := t.table.row(of, ways)
	if !ok {
		c.learnFrom(t.shorter(of), t.latency)
		return c
	}
	c.tuned, c.given, c.best = true, true, r.best
	for i, d := range r.times {
		if d > 0 {
			c.times[i] = []time.Duration{d}
			c.out[i] = i > 0 && r.times[0] > 0 && d > hopeless*r.times[0]
		}
	}
	return c
}

// shorter returns the longest class of shorter calls; nil if there is none.
func (t *Tuner) shorter(of Class) *class {
	for of.Length--; of.Length > 0; of.Length-- {
		if c := t.classes[of]; c != nil {
			return c
		}
	}
	return nil
}

// Done tells how long the call took whose announcement was heard last, from that announcement to its end. Without it, and with a time
// of 0, the trial counts for nothing.
func (t *Tuner) Done(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.trial != nil && d > 0 {
		t.words = tell(d, t.trial.base)
	}
}

// learnFrom leaves out the ways that were tried and are hopeless in a class of shorter calls: but not those that may only have had some
// messages more in turn, because these matter less in longer calls.
func (c *class) learnFrom(shorter *class, latency time.Duration) {
	if shorter == nil {
		return
	}
	for i, name := range shorter.ways {
		if k := slices.Index(c.ways, name); k > 0 && len(shorter.times[i]) > 0 {
			usual := shorter.base
			if len(shorter.times[0]) > 0 {
				usual = shorter.middle(0)
			}
			c.out[k] = shorter.out[i] && shorter.middle(i) > usual+inTurn*latency
		}
	}
}

// next returns the way of the next call, and whether it is a trial.
func (c *class) next() (way int, trial bool) {
	if !c.tuned && c.calls > 0 { // in the first call memory is touched for the first time, and connections are made
		return c.leastTried(), true
	}
	return c.best, false
}

// took notes that a call is done as was proposed.
func (c *class) took(next proposal, mode Mode) {
	c.calls++
	switch {
	case next.trial:
		c.begun[next.way]++
		if c.tries++; c.tries == patience*finals*len(c.ways) && !c.tuned {
			c.choose()
		}
	case c.tuned && mode == Always && c.calls%again == 0:
		c.tuned, c.given, c.tries, c.begun = false, false, 0, [Most]int{}
		if c.calls%forgiven == 0 {
			c.out = [Most]bool{}
		}
		for i := range c.ways { // one more of each
			c.times[i] = c.times[i][min(1, len(c.times[i])):]
		}
	}
}

// leastTried returns the way that is tried next: of those that were not tried often enough, the one that was begun least often.
func (c *class) leastTried() (way int) {
	least, wanted := -1, c.wanted()
	for i := range c.ways {
		if len(c.times[i]) < wanted[i] && (least < 0 || c.begun[i] < c.begun[least]) {
			least = i
		}
	}
	return max(0, least)
}

// learn takes in the shortest and the longest time of a way, of any member.
//
// All but the member that came last have waited for it, so the shortest time is what counts. But that member may have found the others'
// messages there, and does not see how long its own takes to them: its time is up to the latency of a message short. If no two members came
// further apart than that, the mean of the shortest and the longest time is right.
func (c *class) learn(way int, shortest, longest time.Duration, words Words, latency time.Duration) {
	shorter, longer := offScale(words)
	if shorter && c.base > 0 && shortest <= latency {
		shortest, shorter = 0, false // or anything up to that
	}
	d := shortest + min((longest-shortest)/2, latency)
	if c.base == 0 {
		c.base, c.from = d, way // told in large steps: it only says where the fine ones begin
		return
	}
	if shorter || longer && way == c.from {
		c.base, c.times, c.out = 0, [Most][]time.Duration{}, [Most]bool{} // it was an accident, or another way is much faster
		return
	}
	c.times[way] = append(c.times[way], d)
	usual := c.base
	if len(c.times[0]) > 0 {
		usual = c.middle(0)
	}
	for i := 1; i < len(c.ways); i++ {
		if n := len(c.times[i]); n > 0 {
			shortest := slices.Min(c.times[i])
			c.out[i] = c.out[i] || n > 1 && shortest > hopeless*usual || shortest > atOnce*usual
		}
	}
	if c.done() {
		c.choose()
	}
}

// choose takes the best way of those that were tried often enough.
func (c *class) choose() {
	c.tuned, c.best = true, 0
	if len(c.times[0]) < rounds {
		return
	}
	for i := 1; i < len(c.ways); i++ {
		if !c.out[i] && len(c.times[i]) >= rounds && c.middle(i) < c.middle(c.best) {
			c.best = i
		}
	}
	if float64(c.middle(c.best)) > margin*float64(c.middle(0)) {
		c.best = 0
	}
}

// done tells whether every way was tried often enough.
func (c *class) done() bool {
	wanted := c.wanted()
	for i := range c.ways {
		if len(c.times[i]) < wanted[i] {
			return false
		}
	}
	return true
}

// wanted returns how often each way has to be tried.
func (c *class) wanted() (times [Most]int) {
	shortest := time.Duration(0)
	for i := range c.ways {
		switch {
		case c.out[i]:
			continue
		case len(c.times[i]) < rounds:
			shortest = -1
		case shortest >= 0 && (shortest == 0 || c.middle(i) < shortest):
			shortest = c.middle(i)
		}
		times[i] = rounds
	}
	if shortest < 0 {
		return times
	}
	nearest := 0
	final := times
	for i := range c.ways {
		if !c.out[i] && float64(c.middle(i)) <= near*float64(shortest) {
			final[i] = finals
			nearest++
		}
	}
	if nearest < 2 {
		return times
	}
	return final
}

// middle returns the median time of a way that was tried.
func (c *class) middle(way int) time.Duration {
	times := slices.Clone(c.times[way])
	slices.Sort(times)
	return times[len(times)/2]
}

// Chosen is what is known of a class.
type Chosen struct {
	Class
	Ways  []string
	Best  int
	Times []time.Duration // median of each way; 0: it was not measured
	Tuned bool            // every way was tried, here or by the table
	Given bool            // the table says so
}

// Took notes the way that the last collective took; nil: it had no choice.
func (t *Tuner) Took(way *string) { t.last.Store(way) }

// Last returns that way; "" if there was no choice. t may be nil.
func (t *Tuner) Last() string {
	if t != nil {
		if way := t.last.Load(); way != nil {
			return *way
		}
	}
	return ""
}

// Chosen returns what is known, in the order of operations and lengths. t may be nil.
func (t *Tuner) Chosen() (list []Chosen) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for of, c := range t.classes {
		row := Chosen{Class: of, Ways: c.ways, Best: c.best, Times: make([]time.Duration, len(c.ways)), Tuned: c.tuned, Given: c.given}
		for i := range row.Times {
			if len(c.times[i]) > 0 {
				row.Times[i] = c.middle(i)
			}
		}
		list = append(list, row)
	}
	slices.SortFunc(list, func(a, b Chosen) int {
		switch {
		case a.Code != b.Code:
			return int(a.Code) - int(b.Code)
		case a.Length != b.Length:
			return a.Length - b.Length
		case a.Half == b.Half:
			return 0
		case a.Half:
			return 1
		}
		return -1
	})
	return list
}
