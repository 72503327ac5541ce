// Package liveness knows which ranks of a job on several nodes have died.
//
// Every rank holds one TCP connection to its parent in a tree. The leader of a node is the lowest rank
// on it that lives. The other ranks of the node are its children, and the leaders form a tree of their
// own (see tree). The kernel watches the connections: it closes those of a process that ends, however
// the process ends, and its keepalive finds a host that no longer answers. So the core sends nothing
// while all is well, and has no thread for it. A process that is stopped or swapped out is not dead,
// because its kernel answers for it.
//
// A rank that loses a connection tells the rest of the tree (see fact). Facts only accumulate, and a
// rank passes on a fact that is new to it, so every rank that is still connected learns all of them. A
// rank that loses its parent connects to the next one: the place of every rank is known since init.
//
// The zero Liveness watches nothing: it says that no rank has died, and tells nobody anything.
package liveness

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// Liveness is what one rank knows. Its methods are safe for concurrent use.
type Liveness struct {
	listener *net.TCPListener
	limits   limits
	place    Place

	// Set by Start.
	tree   tree
	places []Place
	tokens tokens
	// onQuestion answers questions of other ranks; nil: they get none.
	onQuestion func([QuestionBytes]byte) []byte

	deaths atomic.Int32 // ranks that have died; written under mu

	mu       sync.Mutex
	gone     map[int]gone // why a rank is gone, also those that have left
	facts    []fact       // what is known, in the order in which this rank learnt it
	links    map[*link]bool
	failures map[int]int // by rank, how often it refused a connection
	notices  []heardNotice
	retry    time.Time // no connection is tried before
	adopt    time.Time // when children that have not come by then are connected to
	over     bool      // nothing that happens from now on is a death
	open     bool      // from Listen to Close

	wake chan struct{} // there may be ranks to connect to
	done chan struct{} // closed by Close
}

// gone says since when this rank knows that another one takes no part any more.
type gone struct {
	why   fact
	since time.Time
}

// Job is what Start needs to know. It is the same on all ranks, except for Rank and OnQuestion.
type Job struct {
	Rank   int
	Node   []int   // node of every rank; nodes are numbered in the order of their first ranks
	Places []Place // Liveness.Place of every rank
	Secret Secret  // that of rank 0
	// OnQuestion answers a question of Ask with MostAnswer bytes at most. It is called from several
	// goroutines. nil: questions are not answered. It is not the same on all ranks.
	OnQuestion func([QuestionBytes]byte) []byte
}

// Secret is what the ranks of a job show each other.
type Secret [4]int64

// NewSecret makes a secret of random numbers.
func NewSecret() (s Secret, err error) {
	if err = binary.Read(rand.Reader, binary.LittleEndian, s[:]); err != nil {
		err = status.New(status.Unsupported, "no random numbers for a secret: %v", err)
	}
	return s, err
}

// Listen begins to listen. A host counts as dead after it has not answered for the time after. The
// caller spreads Place to all ranks of the job, and then calls Start or Close. After an error it is the zero Liveness.
func Listen(after time.Duration) (*Liveness, error) {
	l := &Liveness{open: true, limits: limitsOf(after), gone: map[int]gone{}, links: map[*link]bool{}, failures: map[int]int{},
		wake: make(chan struct{}, 1), done: make(chan struct{})}
	var err error
	if l.listener, err = listen(); err != nil {
		return &Liveness{}, err
	}
	if l.place, err = here(l.listener.Addr().(*net.TCPAddr).AddrPort().Port()); err != nil {
		closeNoted(l.listener)
		return &Liveness{}, err
	}
	return l, nil
}

// Place returns where the other ranks find this one.
func (l *Liveness) Place() Place { return l.place }

// Start serves the other ranks, and connects to the parent. It returns an error if it cannot. All ranks
// should then call Close, because deaths would be known in parts of the job only.
func (l *Liveness) Start(j Job) error {
	l.tree, l.places, l.tokens, l.onQuestion = newTree(j.Rank, j.Node), j.Places, tokensOf(j.Secret), j.OnQuestion
	go l.serve()
	parent := l.tree.parent(j.Rank, everyone)
	if parent < 0 {
		go l.keep()
		return nil
	}
	k, err := l.join(parent)
	if err == nil {
		select {
		case <-k.proved:
		case <-k.ended:
			err = status.New(status.Unsupported, "the process at that port is not rank %d", parent)
		case <-time.After(joinLimit):
			err = status.New(status.Unsupported, "no answer in %v", joinLimit)
		}
	}
	if err != nil {
		return status.New(status.Unsupported, "rank %d on host %s could not connect to rank %d on host %s (%s): %v", j.Rank, l.Host(j.Rank), parent, l.Host(parent), l.places[parent], err)
	}
	go l.keep()
	return nil
}

// joinLimit is how long Start waits for the parent to answer.
const joinLimit = 10 * time.Second

// AnyDead tells whether any rank of the job has died. It costs an atomic load.
func (l *Liveness) AnyDead() bool { return l.deaths.Load() != 0 }

// Dead tells whether a rank has died, and for how long that has been known. The answer is false for a
// rank that has left in order.
func (l *Liveness) Dead(rank int) (dead bool, known time.Duration) {
	if !l.AnyDead() {
		return false, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	g, ok := l.gone[rank]
	return ok && g.why.kind.death(), time.Since(g.since)
}

// Why says how the death of a rank is known, "" if it is not dead.
func (l *Liveness) Why(rank int) string {
	if dead, _ := l.Dead(rank); !dead {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.explain(l.gone[rank].why)
}

// Tell says that a rank has died, as this rank has found out in another way.
func (l *Liveness) Tell(rank int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.gone[rank]; !known {
		l.learn(fact{died, rank, l.tree.rank}, nil)
	}
}

// Host returns the name of a rank's host, "" if nothing is watched.
func (l *Liveness) Host(rank int) string {
	if rank >= len(l.places) {
		return ""
	}
	return l.places[rank].Host
}

// Leave tells the other ranks that this one ends in order, and closes all connections. all says that
// all ranks of the job do.
func (l *Liveness) Leave(all bool) {
	l.mu.Lock()
	f := fact{left, l.tree.rank, l.tree.rank}
	if all {
		f = fact{over, 0, l.tree.rank}
	}
	l.tell(f, nil)
	l.mu.Unlock()
	l.Close()
}

// Close closes all connections. The other ranks take that for the end of this process, unless Leave
// has told them. Close waits until what this rank has told is sent, closeLimit at most.
func (l *Liveness) Close() {
	l.mu.Lock()
	if !l.open {
		l.mu.Unlock()
		return
	}
	l.open = false
	close(l.done)
	links := slices.Collect(maps.Keys(l.links))
	l.mu.Unlock()
	closeNoted(l.listener)
	for _, k := range links {
		k.closeWhenSent()
	}
	for _, k := range links {
		<-k.closed // the process may end next
	}
}

// living tells whether a rank takes part: it has neither died nor left. The caller holds mu.
func (l *Liveness) living(rank int) bool {
	_, gone := l.gone[rank]
	return !gone
}

// learn takes in a fact and tells it to all connections but from. The caller holds mu.
func (l *Liveness) learn(f fact, from *link) {
	if f.kind == notice {
		l.notice(f, from)
		return
	}
	if l.over || !l.open {
		return
	}
	if l.apply(f) == 0 {
		return
	}
	l.facts = append(l.facts, f)
	l.tell(f, from)
	for k := range l.links {
		if !l.living(k.rank) {
			k.drop()
		}
	}
	l.adopt = l.after(grace)
	l.wakeUp()
}

// tell sends a fact on all connections but one. The caller holds mu.
func (l *Liveness) tell(f fact, but *link) {
	for k := range l.links {
		if k != but && l.open {
			k.queue(f)
		}
	}
}

// apply notes what f says, and returns how much of it is new.
func (l *Liveness) apply(f fact) (news int) {
	note := func(r int, f fact) {
		if l.living(r) {
			l.gone[r] = gone{f, time.Now()}
			news++
			if f.kind.death() {
				l.deaths.Add(1)
			}
		}
	}
	node := l.tree.node[l.tree.rank]
	switch {
	case f.kind == over:
		l.over = true
		return 1
	case f.kind == lost && f.subject == node, f.subject == l.tree.rank && f.kind != lost:
		// Others go on without this rank, or without its node. To this rank it is as if they had died.
		for r := range l.places {
			if r != l.tree.rank && (f.kind != lost || l.tree.node[r] != node) {
				note(r, fact{excluded, r, f.by})
			}
		}
	case f.kind == lost:
		for _, r := range l.tree.ranks[f.subject] {
			note(r, f)
		}
	default:
		note(f.subject, f)
	}
	return news
}

// explain says how a death is known. The caller holds mu.
func (l *Liveness) explain(f fact) string {
	at := fmt.Sprintf("rank %d on host %s", f.by, l.Host(f.by))
	switch f.kind {
	case lost:
		return fmt.Sprintf("host %s cannot be reached: it did not answer %s for %v", l.Host(l.tree.ranks[f.subject][0]), at, l.limits.silence)
	case excluded:
		return fmt.Sprintf("host %s goes on without this one, which did not answer %s", l.Host(f.subject), at)
	case rubbish:
		return fmt.Sprintf("its process on host %s sent %s what is no message of this library", l.Host(f.subject), at)
	}
	return fmt.Sprintf("its process on host %s has ended, as %s saw", l.Host(f.subject), at)
}

// after returns the time in d, and wakes keep then.
func (l *Liveness) after(d time.Duration) time.Time {
	time.AfterFunc(d, l.wakeUp)
	return time.Now().Add(d)
}

func (l *Liveness) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
