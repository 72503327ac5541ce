package group

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/topo"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Env is what all groups of a process share.
type Env struct {
	Lib    mpi.Library
	Engine *work.Engine
	Topo   *topo.Topology
	// Interrupt is asked by waits on a caller's thread; nil where nobody can interrupt.
	Interrupt work.Interrupt
	// Trial tries whether MPI moves device memory; nil where that cannot be done.
	Trial Trial

	aware    aware
	base     mpi.Comm       // a duplicate of the world that was given: parent of all groups
	control  mpi.Comm       // carries the mailbox
	mail     *mailbox       // small messages between the cores
	presence *arrive.Lines  // who of this node has left; nil if it could not be shared
	peers    []int          // world ranks of presence's members
	crowded  bool           // more ranks than cores on this node
	device   deviceSettings // of tensors in device memory
	gone     []atomic.Bool  // world ranks on other nodes that said they left
	hellos   atomic.Uint64  // attempts to make a group
	leaving  atomic.Bool    // arrivals are given up
	mu       sync.Mutex     // guards the two below
	made     map[string]int // how many groups were made of each list of ranks
	byKey    map[uint64]*Group
}

// NewEnv prepares the groups of a process. It is collective over world, which is
// duplicated and otherwise left alone.
func NewEnv(lib mpi.Library, world mpi.Comm, interrupt work.Interrupt) (*Env, error) {
	e := &Env{Lib: lib, Interrupt: interrupt, made: map[string]int{}, byKey: map[uint64]*Group{}}
	var err error
	if e.device, err = readDeviceSettings(); err != nil {
		return nil, err
	}
	if e.base, err = lib.Dup(world); err != nil {
		return nil, err
	}
	if e.control, err = lib.Dup(e.base); err != nil {
		return nil, err
	}
	chunk := []int64{e.device.chunk}
	if err = e.reduceAll(e.base, chunk, op.Min); err != nil {
		return nil, err
	}
	e.device.chunk = chunk[0]
	if e.Topo, err = topo.Discover(lib, e.base); err != nil {
		return nil, err
	}
	e.crowded = e.Topo.Crowded()
	e.Engine = work.NewEngine(e.crowded)
	e.mail = newMailbox(lib, e.control, e.Topo.Rank)
	e.gone = make([]atomic.Bool, e.Topo.Size)
	e.mail.onLeft = func(rank int) { e.gone[rank].Store(true) }
	e.mail.onAsk = e.answer
	e.Engine.Background = e.mail.pump
	if err := e.sharePresence(); err != nil {
		return nil, err
	}
	return e, e.connect()
}

// connect makes the connections to the ranks of other nodes, while all ranks are
// here. Intel MPI would make each at the first message, and MPI_Isend does not
// return (measured: for as long as the other rank sleeps outside MPI) until the
// other side has answered: a rank whose deadline ran out would sit in the question
// to the one that never came.
func (e *Env) connect() error {
	if e.Lib.Info().Name != "Intel MPI" {
		return nil
	}
	waiting := map[int]bool{}
	for r, node := range e.Topo.Node {
		if node != e.Topo.Node[e.Topo.Rank] {
			waiting[r] = true
			e.mail.send(r, mailHello, 0, nil)
		}
	}
	return e.Engine.Wait(func() bool {
		e.mail.pump()
		for r := range waiting {
			if _, ok := e.mail.take(mailHello, r, 0); ok {
				delete(waiting, r)
			}
		}
		return len(waiting) == 0 && e.mail.sent()
	}, time.Time{}, e.Interrupt)
}

// sharePresence makes the lines by which the ranks of a node see each other leave.
func (e *Env) sharePresence() error {
	e.peers = e.Topo.Peers()
	lines, err := e.makeLines(e.base, e.peers)
	e.presence = lines
	return err
}

// Left tells whether world rank r ended normally.
func (e *Env) Left(r int) bool {
	if e.presence != nil {
		for i, peer := range e.peers {
			if peer == r {
				return e.presence.Left(i)
			}
		}
	}
	return e.gone[r].Load()
}

// Leave tells all others that this rank comes no more.
func (e *Env) Leave() {
	if e.presence != nil {
		e.presence.Leave()
	}
	for r := range e.Topo.Node {
		if e.presence == nil || e.Topo.Node[r] != e.Topo.Node[e.Topo.Rank] {
			if r != e.Topo.Rank {
				e.mail.send(r, mailLeft, 0, nil)
			}
		}
	}
	_ = e.Engine.Wait(e.mail.sent, time.Now().Add(time.Second), nil)
}

// Drain ends what is under way, waiting up to limit for it, and returns the number of
// operations that MPI does not let go of. Collectives that others do not come to are
// given up in the end. No more are submitted.
func (e *Env) Drain(limit time.Duration) int {
	if e.Engine.Drain(limit) == 0 {
		return 0
	}
	e.leaving.Store(true)
	return e.Engine.Drain(time.Second)
}

// Close frees what the environment made. No group may be in use.
func (e *Env) Close() error {
	e.Engine.StopProgress()
	e.mail.close()
	if e.presence != nil {
		_ = e.presence.Close()
	}
	if err := e.Lib.Free(e.control); err != nil {
		return err
	}
	return e.Lib.Free(e.base)
}

// reduceAll is a blocking MPI_Allreduce of a few words on comm.
func (e *Env) reduceAll(comm mpi.Comm, words []int64, r op.ReduceOp) error {
	return e.onWords(mpi.FnAllreduce, comm, words, len(words), r)
}
