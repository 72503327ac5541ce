// Package mpifake is an MPI of N ranks in one process, for unit tests: every
// rank is an mpi.Library that a goroutine of the test drives.
//
// It is stricter than a real MPI. What a real one answers with a hang or with
// garbage is an error here, on every rank concerned: two ranks that call
// different functions on one communicator, a blocking collective that meets a
// nonblocking one, other roots, ops or lengths, a wait for a rank that never
// comes. Handles differ from rank to rank, so that nobody can rely on their
// being equal.
//
// Buffers are read and written by whichever goroutine completes the match, under
// one lock: the race detector sees a buffer that is touched too early.
package mpifake

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/status"
)

const (
	defaultTagUB    = 32767 // the least that MPI allows
	defaultPatience = 20 * time.Second
	// eagerLimit is the length up to which a send ends before it is received;
	// a longer one waits for its receiver, as in a real MPI.
	eagerLimit = 4096
)

// Hook sees the k-th call (from 1, Run and Start together) of a world rank
// before it is made. The delay comes before a blocking call, and between match
// and completion of a nonblocking one; an error makes the call fail unmade.
type Hook func(rank, k int, c *mpi.Call) (time.Duration, error)

// Option configures New.
type Option func(*world)

// Nodes gives the node of each world rank; SplitShared goes by it. Without it
// all ranks share one node.
func Nodes(nodes []int) Option { return func(w *world) { w.nodes = nodes } }

// Tags sets MPI_TAG_UB, by default the least that MPI allows.
func Tags(ub int32) Option { return func(w *world) { w.tagUB = ub } }

// Patience is how long a blocking call waits for its partners before it fails,
// by default 20 s.
func Patience(d time.Duration) Option { return func(w *world) { w.patience = d } }

// WithHook adds a hook; several are asked in order.
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
	w := &world{tagUB: defaultTagUB, patience: defaultPatience, live: map[*request]struct{}{}}
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
			slots:    map[uintptr]*slot{},
		}
		l.world = l.adopt(all)
		out[i] = l
	}
	return out
}

// Each runs f once a rank, each in a goroutine of its own, and joins their errors.
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
	nodes    []int
	tagUB    int32
	patience time.Duration
	hooks    []Hook

	mu      sync.Mutex // guards all below, and everything in comm, request and library
	aborted *status.Error
	live    map[*request]struct{} // unfinished, to be ended by Abort
	comms   int
}

// library is one rank.
type library struct {
	w     *world
	rank  int
	world mpi.Comm

	// Guarded by w.mu.
	next      uintptr // source of handles
	calls     int
	comms     map[mpi.Comm]*comm
	types     map[mpi.Datatype]int64
	messages  map[mpi.Message]*message
	slots     map[uintptr]*slot
	atEnd     []func()
	finalized bool
}

var _ mpi.Library = (*library)(nil)

func (l *library) Info() mpi.Info {
	return mpi.Info{
		Path: "mpifake", Why: "a test", ABI: "fake", Name: "fake MPI", Version: "fake MPI",
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

// Finalize runs the functions of OnFinalize, last one first, and refuses what
// comes after. Unlike a real one it waits for nobody.
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

// Abort fails every pending and every later call of all ranks.
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

// usable is asked under w.mu before every call.
func (l *library) usable(what string) *status.Error {
	if l.w.aborted != nil {
		return l.w.aborted
	}
	if l.finalized {
		return failure(classOther, "%s on rank %d after MPI_Finalize", what, l.rank)
	}
	return nil
}

// Error classes, as in Open MPI.
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

// span is the n bytes at p.
func span(p unsafe.Pointer, n int64) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(p), n)
}
