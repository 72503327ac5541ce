// Package link carries requests of trainers to servers, and the answers.
//
// There are three ways. Within a process the server gets the trainer's memory itself (local.go). On
// a node whose processes map each other's heaps it works in the trainer's memory too (shared.go,
// ring.go); both sides sleep on futexes. Between nodes bytes go by MPI (remote.go, post.go,
// wire.go): small requests are one message, and the rest of large ones goes straight from and into
// the regions.
//
// A rank that is damaged may write anything into a ring, and send anything. Both sides check what
// they read, and end the pair with an error that names the rank; the other pairs go on.
package link

import (
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

const (
	// Credits is the number of requests of one trainer to one server that may be under way. Start
	// waits for a free one.
	Credits = 16
	// MaxHeader is the most bytes of a request's header, and of an answer's.
	MaxHeader = 64 << 10
	// MaxRegion is the most bytes of each of a request's regions.
	MaxRegion = 16 << 30
)

// closeLimit is how long Close waits for what is under way.
const closeLimit = time.Second

// Ranks is what this package needs of a process group. comm.Members has it, and describes it.
type Ranks interface {
	Me() (rank, size int)
	WorldRank(member int) int
	HeapOf(member int) *heap.View
	Separate(what string, timeout time.Duration, meanwhile func(tell func(words []int64) ([][]int64, error)) error) (transport.Comm, error)
	Engine() *work.Engine
	Crowded() bool
	Use() (done func())
	Trouble(what string, member int) error
}

// Links are the connections of this rank to the servers, and on a server those to the trainers. All
// methods are safe for concurrent use.
type Links struct {
	g       Ranks
	me      int
	comm    transport.Comm // nil if no two ranks need MPI
	own     *heap.Heap     // where Memory comes from; nil if no server maps it
	outlets []*outlet      // by the server's index
	inlets  []*inlet       // by the trainer's rank; nil unless this rank is a server
	post    *post          // on a server, its requests by MPI; nil if there are none
	handler func(*Incoming)
	moved   [ways]atomic.Uint64
	byMPI   bool // some pair of the group, perhaps not of this rank, uses MPI

	closed  atomic.Bool
	closing chan struct{}
	threads sync.WaitGroup

	mu      sync.Mutex
	serving bool
	ended   error // of Close; nil before
}

// Open connects all members of a group with those that are servers, whose ranks in the group are
// given. It is collective: every member gives the same servers. Every rank is a trainer unless it
// never calls Start.
func Open(g Ranks, servers []int, timeout time.Duration) (*Links, error) {
	me, size := g.Me()
	l := &Links{g: g, me: me, closing: make(chan struct{}), outlets: make([]*outlet, len(servers))}
	mistake := checkServers(servers, size)
	defer g.Use()()
	var err error
	l.comm, err = g.Separate("the links to parameter servers", timeout, func(tell func([]int64) ([][]int64, error)) error {
		if err := l.agree(servers, mistake, tell); err != nil {
			return err
		}
		return l.connect(servers, tell)
	})
	if err == nil && l.comm != nil && !l.byMPI {
		err = l.comm.Free()
		l.comm = nil
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

func checkServers(servers []int, size int) error {
	if len(servers) == 0 {
		return status.New(status.Argument, "the list of servers is empty")
	}
	for i, s := range servers {
		if s < 0 || s >= size {
			return status.New(status.Argument, "servers=%v: %d is no rank of the group, which has %d", servers, s, size)
		}
		if slices.Contains(servers[:i], s) {
			return status.New(status.Argument, "servers=%v: %d occurs twice", servers, s)
		}
	}
	return nil
}

// agree compares the servers that the members give. mistake is what is wrong with those of this
// one.
func (l *Links) agree(servers []int, mistake error, tell func([]int64) ([][]int64, error)) error {
	h := fnv.New64a()
	for _, s := range servers {
		h.Write([]byte{byte(s), byte(s >> 8), byte(s >> 16), byte(s >> 24)})
	}
	mine := []int64{1, int64(len(servers)), int64(h.Sum64())}
	if mistake != nil {
		mine = make([]int64, len(mine))
	}
	all, err := tell(mine)
	if mistake != nil || err != nil {
		if mistake != nil {
			return mistake
		}
		return err
	}
	var wrong, differ []int
	for r, words := range all {
		switch {
		case words[0] == 0:
			wrong = append(wrong, l.g.WorldRank(r))
		case !slices.Equal(words, mine):
			differ = append(differ, l.g.WorldRank(r))
		}
	}
	switch {
	case len(wrong) > 0:
		return status.New(status.Refused, "the links to parameter servers: rank(s) %v gave servers that cannot be, and their own error says why", wrong).WithRanks(wrong...)
	case len(differ) > 0:
		return status.New(status.Mismatch, "the links to parameter servers: this rank gives servers=%v, and rank(s) %v give others", servers, differ).WithRanks(differ...)
	}
	return nil
}

// doorWords is how many words each trainer tells every server of the door that it has made for it: where the door is in
// the trainer's heap (offset and generation), and 1. All are 0 if there is no door.
const doorWords = 3

// connect makes the outlets and inlets. Every member calls tell twice.
func (l *Links) connect(servers []int, tell func([]int64) ([][]int64, error)) error {
	_, size := l.g.Me()
	doors, mine, mistake := l.makeDoors(servers)
	rows, err := tell(mine)
	if err != nil {
		l.freeDoors(doors)
		return err
	}
	// Each server tells every trainer by which way.
	answers := make([]int64, size+1)
	if mistake == nil {
		answers[size] = 1
	}
	if server := slices.Index(servers, l.me); server >= 0 {
		l.inlets = make([]*inlet, size)
		for t := range l.inlets {
			answers[t] = int64(l.admit(t, rows[t][server*doorWords:(server+1)*doorWords]))
		}
	}
	all, err := tell(answers)
	if err == nil {
		err = mistake
	}
	var failed []int
	for r, words := range all {
		if words[size] == 0 {
			failed = append(failed, l.g.WorldRank(r))
		}
	}
	if err == nil && len(failed) > 0 {
		err = status.New(status.Refused, "the links to parameter servers: rank(s) %v could not make their part, and their own error says why", failed).WithRanks(failed...)
	}
	if err != nil {
		l.disconnect()
		l.freeDoors(doors)
		return err
	}
	for i, s := range servers {
		l.connectOne(i, s, way(all[s][l.me]), doors)
		for _, by := range all[s][:size] {
			l.byMPI = l.byMPI || way(by) == remote
		}
	}
	return nil
}

// makeDoors makes the doors for the servers that can map this rank's heap.
func (l *Links) makeDoors(servers []int) (doors []*sharedOutlet, words []int64, err error) {
	doors, words = make([]*sharedOutlet, len(servers)), make([]int64, doorWords*len(servers))
	for i, s := range servers {
		if s == l.me || l.g.HeapOf(s) == nil {
			continue
		}
		if l.own == nil {
			if l.own, err = heap.OfProcess(); err != nil {
				return doors, words, err
			}
		}
		if doors[i], err = newSharedOutlet(l.own); err != nil {
			return doors, words, err
		}
		p := doors[i].place()
		copy(words[i*doorWords:], []int64{p.offset, int64(p.generation), 1})
	}
	return doors, words, nil
}

func (l *Links) freeDoors(doors []*sharedOutlet) {
	for _, d := range doors {
		if d != nil {
			d.free()
		}
	}
}

// admit makes the inlet for a trainer, and returns the way. door is what the trainer has told of
// its door.
func (l *Links) admit(trainer int, door []int64) way {
	i := &inlet{l: l, member: trainer, what: describeTrainer(l.g.WorldRank(trainer))}
	l.inlets[trainer] = i
	if v := l.g.HeapOf(trainer); trainer != l.me && v != nil && door[2] == 1 {
		if s, err := openDoor(v, place{door[0], uint64(door[1]), doorBytes}); err == nil {
			i.by = s
			return shared
		}
	}
	i.queue = make(chan *Incoming, Credits+1) // and nil, the end
	if trainer == l.me {
		return local
	}
	if l.post == nil {
		l.post = newPost(l)
	}
	i.by = l.post
	l.post.from[trainer] = &sender{inlet: i, next: 1}
	return remote
}

// connectOne makes the outlet to a server.
func (l *Links) connectOne(index, server int, by way, doors []*sharedOutlet) {
	o := &outlet{l: l, member: server, what: describeServer(l.g.WorldRank(server)), way: by}
	l.outlets[index] = o
	door := doors[index]
	switch {
	case server == l.me:
		from := &localOutlet{inlet: l.inlets[l.me]}
		from.words = words{o, &from.count}
		o.by, o.way = from, local
		l.inlets[l.me].by = &localInlet{from: from}
	case by == shared && door != nil:
		door.o = o
		o.by = door
	default:
		if door != nil {
			door.free()
		}
		o.by, o.way = &remoteOutlet{o: o}, remote
	}
}

// disconnect lets go of what admit has opened.
func (l *Links) disconnect() {
	for _, i := range l.inlets {
		if s, ok := i.by.(*sharedInlet); ok {
			s.unuse()
		}
	}
}

// Serve hands every request to handle, those of one trainer in the order of their Start, on a
// goroutine for each trainer. handle may reply later. Serve is called on a server, once, and
// returns at once. Requests that come before wait.
func (l *Links) Serve(handle func(*Incoming)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inlets == nil || l.serving || l.ended != nil {
		panic("link: Serve on a rank that is no server, a second time, or after Close")
	}
	l.serving, l.handler = true, handle
	for _, i := range l.inlets {
		switch by := i.by.(type) {
		case *sharedInlet:
			l.thread(func() { by.serve(i) })
		case *localInlet:
			l.thread(func() { by.serve(i) })
		default:
			l.thread(i.drain)
		}
	}
	if l.post != nil {
		l.thread(l.post.run)
	}
}

// thread runs f on a goroutine of its own.
func (l *Links) thread(f func()) {
	l.threads.Add(1)
	panicked := l.g.Engine().Panicked
	go func() {
		defer l.threads.Done()
		defer func() {
			if panicked == nil {
				return
			}
			if why := recover(); why != nil {
				panicked(why)
			}
		}()
		f()
	}()
}

// Bytes returns how many bytes this rank's requests have moved so far, both ways.
func (l *Links) Bytes() (sharedBytes, mpiBytes, localBytes uint64) {
	return l.moved[shared].Load(), l.moved[remote].Load(), l.moved[local].Load()
}

// Lost returns why no request of a trainer, by its rank in the group, will come any more; nil while
// some may. It died, left, closed its links, or is damaged. On a rank that is no server it returns
// nil.
func (l *Links) Lost(trainer int) error {
	if trainer < 0 || trainer >= len(l.inlets) {
		return nil
	}
	i := l.inlets[trainer]
	if why := i.lost.Load(); why != nil {
		return why
	}
	defer l.g.Use()()
	if err := l.g.Trouble(i.what, trainer); err != nil {
		i.end(err)
		return i.lost.Load()
	}
	return nil
}

// closedError is the error of what, which Close ends.
func (l *Links) closedError(what string) *status.Error {
	return status.New(status.GroupDestroyed, "%s: the links of this rank were closed", what)
}

// Close ends the threads, and all pending requests with errors, here and on the other side. It is
// not collective. It waits a while for what is under way. If that does not end, for instance
// because a handler does not return, Close returns an error, and memory that others may still use
// stays.
func (l *Links) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Swap(true) {
		return l.ended
	}
	defer l.g.Use()()
	deadline := time.Now().Add(closeLimit)
	close(l.closing)
	for _, i := range l.inlets {
		i.by.wake()
	}
	if !l.serving {
		l.disconnect()
		if l.post != nil {
			l.post.end()
		}
	}
	for _, o := range l.outlets {
		o.by.wake()
		o.by.close()
	}
	over := make(chan struct{})
	go func() {
		l.threads.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(time.Until(deadline)):
		l.ended = status.New(status.Timeout, "the links to parameter servers: after %v a handler of requests had not returned", closeLimit)
	}
	settled := true
	for _, o := range l.outlets {
		settled = o.by.reclaim(deadline) && o.by.quiet() && settled
	}
	if l.comm != nil && settled && l.ended == nil && (l.post == nil || l.post.settled() && l.post.quiet()) && l.g.Trouble("", l.me) == nil {
		l.ended = l.comm.Free()
	}
	return l.ended
}
