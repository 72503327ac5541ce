// Package mpifake is an MPI of N ranks in one process, for unit tests. Every rank is an mpi.Library
// that a goroutine of the test calls.
//
// It is stricter than a real MPI. Where a real one hangs or returns garbage, the fake returns an
// error on every rank concerned: two ranks call different functions on one communicator; a blocking
// collective meets a nonblocking one; roots, ops or lengths differ; a rank waits for another rank
// that never calls. Handles differ from rank to rank, so that code which relies on equal handles
// fails.
//
// The goroutine that completes a match reads and writes the buffers of both sides, under one lock.
// So the race detector sees a buffer that is touched too early.
package mpifake

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

const (
	defaultTagUB    = 32767 // the least that MPI allows
	defaultPatience = 20 * time.Second
	// eagerLimit is the length in bytes up to which a send ends before it is received. A longer
	// send waits for its receiver, as in a real MPI.
	eagerLimit = 4096
)

// Hook sees the k-th call of a world rank before the call is made. k counts Run and Start together,
// from 1. The delay comes before a blocking call, or between match and completion of a nonblocking
// one. If Hook returns an error, the call fails and is not made.
type Hook func(rank, k int, c *mpi.Call) (time.Duration, error)

// Option is an option of New.
type Option func(*world)

// Nodes sets the node of each world rank, for SplitShared. The default is one node for all ranks.
func Nodes(nodes []int) Option { return func(w *world) { w.nodes = nodes } }

// Tags sets MPI_TAG_UB. The default is the least that MPI allows.
func Tags(ub int32) Option { return func(w *world) { w.tagUB = ub } }

// Named sets the name that the library tells of itself.
func Named(name string) Option { return func(w *world) { w.name = name } }

// Patience sets how long a blocking call waits for its partners before it fails. The default is 20
// s.
func Patience(d time.Duration) Option { return func(w *world) { w.patience = d } }

// WithHook adds a hook. Several hooks are called in the order in which they were added.
func WithHook(h Hook) Option { return func(w *world) { w.hooks = append(w.hooks, h) } }

// Delay delays the k-th call of a rank by d.
func Delay(rank, k int, d time.Duration) Option {
	return WithHook(func(r, n int, _ *mpi.Call) (time.Duration, error) {
		if r == rank && n == k {
			return d, nil
		}
		return 0, nil
	})
}

// Fail makes the k-th call of a rank fail with the given MPI error class.
func Fail(rank, k, class int) Option {
	return WithHook(func(r, n int, c *mpi.Call) (time.Duration, error) {
		if r == rank && n == k {
			return 0, failure(class, "%s: injected failure of call %d on rank %d", name(c.Fn), k, rank)
		}
		return 0, nil
	})
}

// New makes n ranks. The i-th element is the library of rank i.
func New(n int, opts ...Option) []mpi.Library {
	w := &world{name: "fake MPI", tagUB: defaultTagUB, patience: defaultPatience, live: map[*request]struct{}{}}
	for _, o := range opts {
		o(w)
	}
	if w.nodes == nil {
		w.nodes = make([]int, n)
	}
	if len(w.nodes) != n {
		panic(fmt.Sprintf("mpifake.Nodes: %d nodes for %d ranks", len(w.nodes), n))
	}
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = i
	}
	all := newComm(w, ranks)
	out := make([]mpi.Library, n)
	for i := range out {
		l := &library{
			w: w, rank: i, next: uintptr(i+1) << 32,
			comms:    map[mpi.Comm]*comm{},
			types:    map[mpi.Datatype]int64{},
			messages: map[mpi.Message]*message{},
			started:  map[uintptr]*started{},
		}
		l.world = l.adopt(all)
		out[i] = l
	}
	return out
}

// World returns the seam of a rank's world.
func World(lib mpi.Library) transport.Comm {
	c, err := mpi.NewCommunicator(lib, lib.World())
	if err != nil {
		panic(err)
	}
	return c
}

// Each runs f for every rank, each in a goroutine, and joins their errors.
func Each(libs []mpi.Library, f func(rank int, lib mpi.Library) error) error {
	errs := make([]error, len(libs))
	var wg sync.WaitGroup
	for i, l := range libs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(i, l); err != nil {
				errs[i] = fmt.Errorf("rank %d: %w", i, err)
			}
		}()
	}
	wg.Wait()
	return errors.Join(errs...)
}

// world is what the ranks share.
type world struct {
	name     string
	nodes    []int
	tagUB    int32
	patience time.Duration
	hooks    []Hook

	mu      sync.Mutex // guards all fields below, and all of comm, request and library
	aborted *status.Error
	live    map[*request]struct{} // unfinished requests, which Abort ends
	comms   int
}

// library is one rank.
type library struct {
	w     *world
	rank  int
	world mpi.Comm

	// w.mu guards the fields below.
	next      uintptr // the next handle
	calls     int
	comms     map[mpi.Comm]*comm
	types     map[mpi.Datatype]int64
	messages  map[mpi.Message]*message
	started   map[uintptr]*started
	atEnd     []func()
	finalized bool
}

var _ mpi.Library = (*library)(nil)

func (l *library) Info() mpi.Info {
	return mpi.Info{
		Path: "mpifake", Why: "a test", ABI: "fake", Name: l.w.name, Version: "fake MPI",
		Standard: "3.1", ThreadLevel: "multiple", Owner: "paddlempi",
	}
}

func (l *library) World() mpi.Comm { return l.world }
func (l *library) TagUB() int32    { return l.w.tagUB }

func (l *library) handle() uintptr {
	l.next++
	return l.next
}

func (l *library) FreeAll() {}

func (l *library) OnFinalize(fn func()) error {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.atEnd = append(l.atEnd, fn)
	return nil
}

func (l *library) Finalized() bool {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.finalized
}

// Finalize runs the functions of OnFinalize, the last one first, and makes later calls fail. Unlike
// a real MPI it does not wait for the other ranks.
func (l *library) Finalize() error {
	for {
		l.w.mu.Lock()
		n := len(l.atEnd)
		if n == 0 {
			l.finalized = true
			l.w.mu.Unlock()
			return nil
		}
		fn := l.atEnd[n-1]
		l.atEnd = l.atEnd[:n-1]
		l.w.mu.Unlock()
		fn()
	}
}

// Abort fails every call of all ranks, those under way and later ones.
func (l *library) Abort(code int) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.w.aborted == nil {
		l.w.aborted = failure(classOther, "MPI_Abort(%d) by rank %d", code, l.rank)
	}
	for q := range l.w.live {
		q.finish(l.w.aborted)
	}
}

// usable returns an error if this rank may make no calls any more; w.mu is held.
func (l *library) usable(what string) *status.Error {
	if l.w.aborted != nil {
		return l.w.aborted
	}
	if l.finalized {
		return failure(classOther, "%s on rank %d after MPI_Finalize", what, l.rank)
	}
	return nil
}

// Error classes, with the numbers of Open MPI.
const (
	classBuffer   = 1
	classCount    = 2
	classType     = 3
	classTag      = 4
	classComm     = 5
	classRank     = 6
	classRoot     = 8
	classOp       = 10
	classTruncate = 15
	classOther    = 16
	classRequest  = 7
)

func failure(class int, format string, args ...any) *status.Error {
	e := status.New(status.MPI, "mpifake: "+format, args...)
	if class == classTruncate {
		e.Code = status.Truncate
	}
	e.MPIClass = class
	return e
}

// span returns the n bytes at p.
func span(p unsafe.Pointer, n int64) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(p), n)
}

// UnderWay returns a function that counts the requests of a rank on a communicator that were started and not
// released, also once the communicator is freed.
func UnderWay(lib mpi.Library, on mpi.Comm) func() int {
	l := lib.(*library)
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	c := l.comms[on]
	return func() (n int) {
		l.w.mu.Lock()
		defer l.w.mu.Unlock()
		for _, s := range l.started {
			if s.q.comm == c {
				n++
			}
		}
		return n
	}
}
