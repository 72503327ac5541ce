package coll

import (
	"bytes"
	"fmt"
	"math/rand"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// guard is how many bytes around a tensor nobody may write to.
const guard = 64

// tensor is memory outside the Go heap with what it has to hold in the end; until
// a test says otherwise, what it holds at first.
type tensor struct {
	Part
	block unsafe.Pointer
	bytes []byte
	want  []byte
}

func newTensor(d op.DType, content []byte) *tensor {
	block, err := mem.Alloc(int64(len(content) + 2*guard))
	if err != nil {
		panic(err)
	}
	all := unsafe.Slice((*byte)(block), len(content)+2*guard)
	for i := range all {
		all[i] = 0xA5
	}
	copy(all[guard:], content)
	return &tensor{
		Part:  Part{Data: unsafe.Add(block, guard), Count: int64(len(content) / d.Size())},
		block: block, bytes: all, want: content,
	}
}

// check compares the content and looks at the bytes around it.
func (x *tensor) check(t *testing.T, what string, rank int) {
	t.Helper()
	end := len(x.bytes) - guard
	if got := x.bytes[guard:end]; !bytes.Equal(x.want, got) {
		require.Failf(t, "wrong content", "%s: rank %d\n got %x\nwant %x", what, rank, got, x.want)
	}
	for i, b := range x.bytes {
		if (i < guard || i >= end) && b != 0xA5 {
			require.Failf(t, "written outside a tensor", "%s: rank %d, byte %d of a tensor of %d", what, rank, i-guard, end-guard)
		}
	}
	mem.Free(x.block)
}

// side is one rank's call.
type side struct {
	args    Args
	tensors []*tensor
}

// tensor makes one that is checked at the end.
func (s *side) tensor(content []byte) *tensor {
	x := newTensor(s.args.DType, content)
	s.tensors = append(s.tensors, x)
	return x
}

// part is the n elements of x from element i on.
func (s *side) part(x *tensor, i, n int) Part {
	return Part{Data: s.args.at(x.Data, int64(i)), Count: int64(n)}
}

// fakeWorld is n ranks that live through many calls.
type fakeWorld struct {
	libs    []mpi.Library
	engines []*work.Engine
}

func newWorld(n int, opts ...mpifake.Option) *fakeWorld {
	w := &fakeWorld{libs: mpifake.New(n, opts...)}
	for range w.libs {
		w.engines = append(w.engines, work.NewEngine())
	}
	return w
}

// sides makes the calls of all ranks, to be filled in.
func (w *fakeWorld) sides(like Args) []*side {
	out := make([]*side, len(w.libs))
	for i, lib := range w.libs {
		a := like
		a.Lib, a.Comm, a.Rank, a.Size = lib, lib.World(), i, len(w.libs)
		out[i] = &side{args: a}
	}
	return out
}

// driven is a program that an engine polls.
type driven struct {
	p    *Program
	done bool
	err  error
}

func (d *driven) Poll() bool {
	d.done, d.err = d.p.Poll()
	return d.done
}
func (d *driven) Requests(b *work.Batch) bool { d.p.Requests(b); return true }

// form is how a program is carried out.
type form string

const (
	blocking form = "blocking"
	polled   form = "polled"
)

var forms = []form{blocking, polled}

// carryOut runs alg as every rank and returns the errors by rank.
func (w *fakeWorld) carryOut(alg *Algorithm, how form, sides []*side) []error {
	errs := make([]error, len(sides))
	var wg sync.WaitGroup
	for i, s := range sides {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = w.one(alg, how, i, s)
		}()
	}
	wg.Wait()
	return errs
}

func (w *fakeWorld) one(alg *Algorithm, how form, rank int, s *side) error {
	var p Program
	p.Reset(w.libs[rank])
	a := &s.args
	if alg.Scratch != nil {
		if err := p.Reserve(alg.Scratch(a)); err != nil {
			return err
		}
	}
	reserved, most := len(p.scratch), 0
	s.flip() // what the tensors hold is not there yet
	err := alg.Build(a, &p)
	s.flip()
	if err != nil {
		p.Close()
		return err
	}
	most = len(p.scratch)
	if how == blocking && !alg.Polled(&a.Sig) {
		err = p.Run()
	} else {
		d := &driven{p: &p}
		e := w.engines[rank]
		e.Add(d)
		for e.Active() > 0 { // Wait would do, but sleeps
			e.Tick()
			most = max(most, len(p.scratch))
			runtime.Gosched()
		}
		err = d.err
	}
	if err == nil && most > reserved {
		err = fmt.Errorf("%s of %s takes more scratch memory than its Scratch tells", alg.Name, a.Code)
	}
	return err
}

// flip changes every bit of the tensors.
func (s *side) flip() {
	for _, x := range s.tensors {
		for i := range x.bytes {
			x.bytes[i] ^= 0xFF
		}
	}
}

// covered are the algorithms that a test has run; guarded by a mutex because
// subtests may be parallel.
var covered = struct {
	sync.Mutex
	algorithms map[*Algorithm]bool
}{algorithms: map[*Algorithm]bool{}}

func cover(alg *Algorithm) {
	covered.Lock()
	defer covered.Unlock()
	covered.algorithms[alg] = true
}

// everyAlgorithm carries the operation out by each algorithm that can serve it,
// preferred or not, in each form. make describes the call anew every time.
func (w *fakeWorld) everyAlgorithm(t *testing.T, what string, sig *Sig, make func() []*side) {
	t.Helper()
	w.everyEnabled(t, what, sig, make)
	// The ways for device memory take host tensors too: any rank's may be the host's.
	if some := *sig; (int64(sig.DType)+int64(sig.Reduce)+sig.Count)%3 == 0 { // they take long
		some.Any |= Device
		w.everyEnabled(t, what+", a rank's on a device", &some, make)
	}
}

func (w *fakeWorld) everyEnabled(t *testing.T, what string, sig *Sig, make func() []*side) {
	t.Helper()
	for _, alg := range registry[sig.Code] {
		switch {
		case !alg.Enabled(sig) || alg == &singleOnDevice: // which has no host tensors
			continue
		case alg.Name == "mpi" && sig.Reduce != 0 && reducedHere(sig):
			continue // what MPI itself cannot reduce, TestNoAlgorithm covers
		}
		for _, how := range forms {
			if how == polled && alg.Polled(sig) {
				continue // so is the other
			}
			sides := make()
			allowed := true
			for _, s := range sides {
				s.args.Sig = *sig
				if sig.Any&Device != 0 {
					s.args.Place = &Place{Chunk: 8 << 10}
				}
				allowed = allowed && (alg.Name != "direct" || DirectOK(&s.args))
			}
			if !allowed {
				continue
			}
			cover(alg)
			name := what + ", " + alg.Name + ", " + string(how)
			for rank, err := range w.carryOut(alg, how, sides) {
				require.NoError(t, err, "%s: rank %d", name, rank)
			}
			for rank, s := range sides {
				for _, x := range s.tensors {
					x.check(t, name, rank)
				}
			}
		}
	}
}

func signature(a Args, size int, even bool) *Sig {
	s := a.Sig
	s.Size, s.Local = size, true
	if even {
		s.Agreed |= Even
	}
	return &s
}

var worldSizes = []int{1, 2, 3, 5}

// lengths are counts of elements: none, one, less and more than a cache line, and
// past the length up to which the fake MPI, like real ones, sends before it is received.
var lengths = []int{0, 1, 97, 1100}

// noise is random bytes that every dtype may hold.
func noise(rng *rand.Rand, d op.DType, n int) []byte {
	b := make([]byte, n*d.Size())
	_, _ = rng.Read(b)
	if d == op.Bool {
		for i := range b {
			b[i] &= 1
		}
	}
	return b
}
