// Package server is a parameter server: the tables that this rank holds for the trainers, and when
// their gradients are applied.
//
// A step of a trainer is one push of all its tables. In synchronous mode an update is applied when
// the same step of every active trainer is there: the gradients of an id are added in the order of
// the trainers' ranks, so the result does not depend on who came first. In asynchronous mode every
// push is applied at once. With bounded staleness (bounded.go) a trainer that is far ahead of another
// one also waits before it pulls. With delay compensation (delay.go) a gradient is changed by what
// others have done to its rows. A trainer that has completed no longer counts.
//
// # Cuts
//
// A cut (package checkpoint) has each push with all its tables on all servers or not at all, and
// with it all that its trainer pushed before. Trainers push while one is made, from other threads.
// So the servers agree on a Point:
//
//  1. Hold. Every server lets no update go on, waits for those that it carries out, which takes no
//     more than computing, and says how far it has come: how many steps of all trainers have ended,
//     and of each trainer the number of the last update that did not wait for other trainers: a
//     write, or a push in asynchronous mode. A trainer numbers its updates in the order in which it
//     sends them, and sends each to all servers.
//  2. The trainer that leads takes the greatest of each number (Point.Join). What one server has
//     carried out, all others have got or will get without any trainer doing anything more: a
//     server applies a step only when all trainers have sent it, and to send to the other servers
//     waits for nobody. A push that waits for a trainer is applied nowhere, so nobody waits for it:
//     the trainer may be in ps.save.
//  3. Reach. Every server lets the updates up to this Point through, and waits for them. Now all
//     stand at the same Point. Each of them copies its rows, and calls Release, whatever the others
//     do: what it applies then is after the Point, and those that still copy hold it.
//
// Updates that come during a hold are kept, in the order of each trainer, and pulls go on. A hold
// ends also when the trainer that leads dies, or does not come back by its deadline. A trainer that
// dies itself in asynchronous mode, while it sends a push, may leave it on some of the servers.
//
// # All or nothing
//
// A push is refused before anything of it is applied: a server prepares all tables first, which
// takes the memory for rows out of their limits (table.Prepare). Where several servers have tables
// with limits, the trainer has them make the rows first, unless it pulled them (request.Reserve):
// else one server might refuse what another one has applied.
//
// All methods may be called from any goroutine.
package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Limits of what trainers may declare.
const (
	MostTables = 1 << 16
	MostName   = 256 // bytes
)

// Config says what a server is.
type Config struct {
	Index    int   // among the servers
	Servers  int   // how many there are
	Trainers []int // their ranks, in ascending order
	Rule     Rule  // with which it begins
	Threads  int   // how many may share a large batch of one table
	// Functions are the names of the program's functions for KVs.
	Functions []string
}

// Rule says when pushes are applied, and what to.
type Rule struct {
	Mode string // as Statistics tells it
	Sync bool
	// Bounded says that a trainer may not pull while it is more than Slack steps ahead of another
	// one (bounded.go). It is for asynchronous training.
	Bounded bool
	Slack   int64
	// Lambda is how much gradients are compensated for their delay (delay.go); 0: not at all. Of
	// each sparse table Backups rows are kept for each trainer. It is for asynchronous training.
	// With Decay above 0 it is divided by the root of a mean of the squares of gradients.
	Lambda  float64
	Decay   float64
	Backups int64
}

// Server holds tables for trainers.
type Server struct {
	Config
	began time.Time
	rule  atomic.Pointer[Rule]

	Tables Tables

	mu       sync.Mutex
	trainers trainers
	barriers barriers
	failed   error         // why no request is taken any longer
	done     chan struct{} // closed when no trainer is active, or the server has failed
	end      sync.Once     // closes done
	steps    int64         // steps of all trainers that have ended, applied or not; 0 where pushes go alone
	applying bool          // one of them is applied
	running  int           // what is carried out at this moment: updates, and a step of all trainers
	hold     *hold         // nil: updates are carried out as they come
	ahead    []*update     // pulls of trainers that are too many steps ahead, in their order

	kvs   []*kv
	Calls KVCalls // of these

	Version atomic.Int64 // updates that were applied; of a cut, after tables were restored
	counted counters
}

// Tables are the tables of a server.
type Tables struct {
	server int // its index
	mu     sync.Mutex
	list   []*served
	byName map[string]uint32

	// delay is held while a push is compensated for its delay and applied: the row of the formula is
	// the one that is updated.
	delay sync.Mutex
}

// served is a table and what was asked of it.
type served struct {
	table  *table.Table
	server int // which has it
	meta   Meta
	text   []byte        // meta in JSON
	rate   atomic.Uint64 // bits of the learning rate; NaN: the table's
	pulled atomic.Int64  // rows
	pushed atomic.Int64  // rows

	backups map[int]*backup // by the ranks of trainers; Tables.delay guards it
	means   *table.Table    // of the squares of gradients; nil: none are kept. Tables.delay guards it
}

// state of a trainer.
type state int

const (
	active state = iota
	completed
	lost
)

func (s state) String() string { return [...]string{"active", "completed", "lost"}[s] }

// trainer is what the server knows of a trainer.
type trainer struct {
	state
	steps     int64   // pushes that were applied, or wait for the other trainers'
	base      int64   // steps when the rule was set
	waiting   *update // a synchronous push that waits for the other trainers'
	applying  *update // the same, while its step is applied
	number    int64   // of its last update that did not wait for other trainers
	seen      time.Time
	member    Member
	staleness staleness
}

// trainers are those of a server by their ranks. The Server's mu guards them.
type trainers map[int]*trainer

// active returns the ranks of those that have neither completed nor died, in ascending order.
func (ts trainers) active() (ranks []int) {
	for rank, t := range ts {
		if t.state == active {
			ranks = append(ranks, rank)
		}
	}
	slices.Sort(ranks)
	return ranks
}

func (ts trainers) allLost() bool {
	for _, t := range ts {
		if t.state != lost {
			return false
		}
	}
	return true
}

// Member is a rank that has registered.
type Member struct {
	Rank int    `json:"rank"`
	PID  int    `json:"pid"`
	Host string `json:"host"`
}

// New makes a server without tables.
func New(c Config) *Server {
	c.Trainers = slices.Clone(c.Trainers)
	slices.Sort(c.Trainers)
	s := &Server{Config: c, began: time.Now(), trainers: trainers{}, barriers: barriers{}}
	s.Tables.server, s.Tables.byName = c.Index, map[string]uint32{}
	s.rule.Store(&c.Rule)
	s.Calls.version, s.Calls.called = &s.Version, map[int64]*KVCall{}
	s.done, s.Calls.came = make(chan struct{}), make(chan struct{}, 1)
	for _, rank := range c.Trainers {
		s.trainers[rank] = &trainer{}
	}
	return s
}

// Register notes who a trainer is. Another process with the rank of an earlier one is refused.
func (s *Server) Register(m Member) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.trainerLocked(m.Rank)
	if err != nil {
		return err
	}
	if t.member.PID != 0 && t.member != m {
		return status.New(status.Argument, "server %d: rank %d on %s (process %d) registers as a trainer that is there already: process %d on %s",
			s.Index, m.Rank, m.Host, m.PID, t.member.PID, t.member.Host).WithRanks(m.Rank)
	}
	t.member, t.seen = m, time.Now()
	return nil
}

// trainerLocked returns an active trainer. The caller holds mu.
func (s *Server) trainerLocked(rank int) (*trainer, error) {
	t := s.trainers[rank]
	switch {
	case s.failed != nil:
		return nil, s.failed
	case t == nil:
		return nil, status.New(status.Argument, "server %d: rank %d is no trainer; trainers are ranks %v", s.Index, rank, s.Trainers).WithRanks(rank)
	case t.state != active:
		return nil, status.New(status.Argument, "server %d: rank %d has %v; it can ask nothing more", s.Index, rank, t.state).WithRanks(rank)
	}
	return t, nil
}

// Meta says what a table is. Every trainer declares the same.
type Meta struct {
	Name   string       `json:"name"`
	Kind   string       `json:"kind"`   // sparse or dense; for statistics
	By     string       `json:"by"`     // how ids are dealt to servers: hash, modulo
	Offset int          `json:"offset"` // is added to an id before its server is found
	Dims   []int64      `json:"dims"`   // of a dense parameter whose blocks the rows are; nil: they are none
	Layout string       `json:"layout"` // the shapes of what lies in a dense parameter; a cut has it
	Config table.Config `json:"config"`
}

// Declare makes the table that a trainer names, unless it is there, and returns its number.
func (s *Server) Declare(from int, m Meta) (uint32, error) {
	if m.Name == "" || len(m.Name) > MostName {
		return 0, status.New(status.Argument, "declare: the name of a table has %d bytes; it must have 1 to %d", len(m.Name), MostName)
	}
	text, err := json.Marshal(m)
	if err != nil {
		return 0, status.New(status.Argument, "declare %q: %v", m.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.trainerLocked(from); err != nil {
		return 0, err
	}
	return s.Tables.declare(from, m, text, s.Config)
}

// declare makes a table, as Declare says. text is m in JSON.
func (ts *Tables) declare(from int, m Meta, text []byte, on Config) (uint32, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if id, there := ts.byName[m.Name]; there {
		if was := ts.list[id].text; !bytes.Equal(was, text) {
			return 0, status.New(status.Mismatch, "declare: rank %d declares table %q otherwise than another trainer: %s", from, m.Name, differences(text, was)).WithRanks(from)
		}
		return id, nil
	}
	if len(ts.list) == MostTables {
		return 0, status.New(status.Argument, "declare %q: there are %d tables, and no server takes more", m.Name, MostTables)
	}
	if err := m.Fits(on.Servers); err != nil {
		return 0, err
	}
	config := m.Config
	config.MaxRows = route.Share(config.MaxRows, on.Index, max(1, on.Servers))
	t, err := table.New(config)
	if err != nil {
		return 0, fmt.Errorf("declare %q: %w", m.Name, err)
	}
	t.Threads = on.Threads
	made := &served{table: t, server: on.Index, meta: m, text: text}
	made.rate.Store(math.Float64bits(math.NaN()))
	id := uint32(len(ts.list))
	ts.list = append(ts.list, made)
	ts.byName[m.Name] = id
	return id, nil
}

// differences says in which fields two declarations of a table, in JSON, differ.
func differences(mine, theirs []byte) string {
	var list []string
	var compare func(name string, a, b any)
	compare = func(name string, a, b any) {
		fields, nested := a.(map[string]any)
		others, both := b.(map[string]any)
		if !nested || !both {
			if !reflect.DeepEqual(a, b) {
				list = append(list, fmt.Sprintf("%s=%v instead of %v", name, orNone(a), orNone(b)))
			}
			return
		}
		all := maps.Clone(fields) // a field may be absent in one of the two
		maps.Copy(all, others)
		for _, key := range slices.Sorted(maps.Keys(all)) {
			inner := key
			if name != "" && name != "config" {
				inner = name + "." + key
			}
			compare(inner, fields[key], others[key])
		}
	}
	read := func(text []byte) (all any) {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()      // a seed has 64 bits
		_ = d.Decode(&all) // it is of Marshal
		return all
	}
	compare("", read(mine), read(theirs))
	return strings.Join(list, ", ")
}

// orNone is a value of a declaration; of a field that is absent, a word.
func orNone(value any) any {
	if value == nil {
		return "none"
	}
	return value
}

// SetLearningRate sets the rate of a table's updates from now on, for pushes that name none.
func (ts *Tables) SetLearningRate(name string, rate float64) error {
	if !(rate >= 0) || math.IsInf(rate, 0) {
		return status.New(status.Argument, "learning_rate=%v of table %q is not a finite number of at least 0", rate, name)
	}
	t, err := ts.named(name)
	if err == nil {
		t.rate.Store(math.Float64bits(rate))
	}
	return err
}

// RestoreLearningRate makes the rate of a table that of a cut; nil: that with which it was
// declared, as if none had been set.
func (ts *Tables) RestoreLearningRate(name string, rate *float64) {
	if t, err := ts.named(name); err == nil {
		now := math.NaN()
		if rate != nil {
			now = *rate
		}
		t.rate.Store(math.Float64bits(now))
	}
}

func (ts *Tables) named(name string) (*served, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if id, there := ts.byName[name]; there {
		return ts.list[id], nil
	}
	return nil, status.New(status.Argument, "server %d has no table %q", ts.server, name)
}

// Declared is a table and what was declared of it.
type Declared struct {
	Meta
	Table        *table.Table
	LearningRate *float64 // that of SetLearningRate; nil: none was set
}

// All returns all tables, in the order of their declaration.
func (ts *Tables) All() []Declared {
	served := ts.served()
	list := make([]Declared, len(served))
	for i, t := range served {
		list[i] = Declared{Meta: t.meta, Table: t.table}
		if rate := math.Float64frombits(t.rate.Load()); !math.IsNaN(rate) {
			list[i].LearningRate = &rate
		}
	}
	return list
}

// Free gives the memory of all tables back. No request may be under way.
func (ts *Tables) Free() {
	ts.ForgetBackups()
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.list {
		t.table.Free()
	}
	ts.list = nil
}

// served returns the tables. The caller does not change the list.
func (ts *Tables) served() []*served {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.list
}

// Complete notes that a trainer has finished. It may have completed before. A push of it that still
// waits for the other trainers', such as one that was given up, stays a part of its step.
func (s *Server) Complete(from int) error {
	s.mu.Lock()
	if t := s.trainers[from]; t != nil && t.state == completed && s.failed == nil {
		s.mu.Unlock()
		return nil
	}
	t, err := s.trainerLocked(from)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	t.state = completed
	s.someLeft()
	s.Tables.forgetBackupsOf(from)
	return nil
}

// Lost notes that a trainer has died. Synchronous training ends with its name. Asynchronous
// training goes on without it, unless nobody is left and nobody has completed: then it ends with
// the name, too.
func (s *Server) Lost(rank int, why error) {
	s.mu.Lock()
	t := s.trainers[rank]
	if t == nil || t.state != active {
		s.mu.Unlock()
		return
	}
	t.state = lost
	if s.rule.Load().Sync || s.trainers.allLost() {
		s.mu.Unlock()
		s.Fail(why)
		return
	}
	s.someLeft()
	s.Release(rank)
	s.Tables.forgetBackupsOf(rank)
}

// someLeft lets those go on that wait for all active trainers. The caller holds mu; someLeft gives
// it back.
func (s *Server) someLeft() {
	for name := range s.barriers {
		s.barriers.openIfAll(name, s.trainers)
	}
	s.hold.wake()
	ready, closer := s.readyLocked(), s.closerLocked()
	s.mu.Unlock()
	s.pullAll(closer)
	s.apply(ready) // before the end: the last step may be of trainers that have all completed
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.trainers.active()) == 0 {
		s.end.Do(func() { close(s.done) })
	}
}

// Fail ends the server: what waits and every later request gets the error.
func (s *Server) Fail(why error) {
	s.mu.Lock()
	if s.failed != nil {
		s.mu.Unlock()
		return
	}
	s.failed = why
	var waiting []*update
	for _, t := range s.trainers {
		if t.waiting != nil {
			waiting = append(waiting, t.waiting)
			t.waiting = nil
		}
	}
	waiting = append(waiting, s.ahead...)
	s.ahead = nil
	for name, b := range s.barriers {
		close(b.open)
		delete(s.barriers, name)
	}
	if s.hold != nil {
		waiting = append(waiting, s.hold.failLocked()...)
		s.hold.wake()
	}
	s.end.Do(func() { close(s.done) })
	s.mu.Unlock()
	s.drain() // nothing is left: the hold ends
	for _, u := range waiting {
		for _, later := range u.then { // nobody adds to it any more
			later.done(request.Answer{}, why)
		}
		u.done(request.Answer{}, why)
	}
	s.Calls.end(why)
}

// Done is closed when no trainer is active any longer, or the server has failed: Err says why.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err returns why the server has failed; nil if it has not.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Active returns the ranks of the trainers that have neither completed nor died, in ascending
// order.
func (s *Server) Active() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trainers.active()
}
