package coll

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/coll/bounce"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// guard is the number of bytes before and after a tensor that must not change.
const guard = 64

// tensor is memory outside the Go heap, and what it must hold at the end. Unless a test sets that,
// it is what the tensor holds at first.
type tensor struct {
	Part
	block unsafe.Pointer
	heap  *heap.Heap // that block is from; nil for ordinary memory
	bytes []byte
	want  []byte
}

func newTensor(d op.DType, content []byte) *tensor { return newTensorIn(nil, d, content) }

func newTensorIn(h *heap.Heap, d op.DType, content []byte) *tensor {
	alloc := mem.Alloc
	if h != nil {
		alloc = h.Alloc
	}
	block, err := alloc(int64(len(content) + 2*guard))
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
		block: block, heap: h, bytes: all, want: content,
	}
}

// check compares the content, and that of the guards.
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
	x.free()
}

func (x *tensor) free() {
	if x.heap == nil {
		mem.Free(x.block)
	} else if err := x.heap.Free(x.block); err != nil {
		panic(err)
	}
}

// rankCall is one rank's call.
type rankCall struct {
	args    Args
	heap    *heap.Heap // where its tensors are; nil for ordinary memory
	tensors []*tensor
}

// tensor makes a tensor that is checked at the end.
func (s *rankCall) tensor(content []byte) *tensor {
	x := newTensorIn(s.heap, s.args.DType, content)
	s.tensors = append(s.tensors, x)
	return x
}

// part returns the n elements of x from element i on.
func (s *rankCall) part(x *tensor, i, n int) Part {
	return Part{Data: s.args.at(x.Data, int64(i)), Count: int64(n)}
}

// fakeWorld is n ranks, which make many calls one after another.
type fakeWorld struct {
	stages  []unsafe.Pointer // of levels
	libs    []mpi.Library
	engines []*work.Engine
	bounces []*Bounce
	node    *fakeNode // nil until a test needs it
	inHeap  bool      // calls places tensors in the heaps of the ranks
}

func newWorld(n int, opts ...mpifake.Option) *fakeWorld {
	w := &fakeWorld{libs: mpifake.New(n, opts...)}
	for range w.libs {
		w.engines = append(w.engines, work.NewEngine())
	}
	return w
}

// levels returns what a rank needs for levels. Each is alone on its node; package group has tests of others.
func (w *fakeWorld) levels(rank int) *Levels {
	for len(w.stages) < len(w.libs) { // they stay until the tests end
		stage, err := mem.Alloc(2 * levelBytes)
		if err != nil {
			panic(err)
		}
		w.stages = append(w.stages, stage)
	}
	l := &Levels{LocalSize: 1, Rail: transport.EveryRank(len(w.libs)), Stage: w.stages[rank], Part: unsafe.Add(w.stages[rank], levelBytes)}
	for i := range w.libs {
		l.Nodes = append(l.Nodes, []int{i})
	}
	return l
}

// heapOfBlocks returns a heap for the blocks of all ranks, and a view of it. They stay until the tests end.
var heapOfBlocks = sync.OnceValues(func() (*heap.Heap, *heap.View) {
	own, err := heap.New()
	if err != nil {
		panic(err)
	}
	view, err := heap.Open(own.Address())
	if err != nil {
		panic(err)
	}
	return own, view
})

// blocksOfAll are the heaps of ranks that have one together.
type blocksOfAll struct{ viewed }

func (blocksOfAll) Acquire(_ int, l heap.Location, bytes int64) (heap.Ref, error) {
	_, view := heapOfBlocks()
	return view.Acquire(l, bytes)
}

// present are members of which some have given up the collective gaveUp; 0: none has.
type present struct{ gaveUp uint64 }

func (p *present) GivenUp(seq uint64) bool { return seq == p.gaveUp && seq != 0 }
func (p *present) Gone(int) bool           { return false }

// bounce returns what a rank needs for bounce. Its block is ready, and stays until the tests end.
func (w *fakeWorld) bounce(rank int) *Bounce {
	if w.bounces == nil {
		n := len(w.libs)
		told, err := mem.Alloc(BounceWords(n))
		if err != nil {
			panic(err)
		}
		for i := range n {
			b := &Bounce{Rank: i, Size: n, Crowded: true, YieldEvery: 4, Told: told,
				Heap:  func() (*heap.Heap, error) { own, _ := heapOfBlocks(); return own, nil },
				Heaps: blocksOfAll{}, Presence: &present{}}
			if err := b.Ready(); err != nil {
				panic(err)
			}
			w.bounces = append(w.bounces, b)
		}
	}
	return w.bounces[rank]
}

// calls makes the calls of all ranks. The test fills in the buffers.
func (w *fakeWorld) calls(like Args) []*rankCall {
	out := make([]*rankCall, len(w.libs))
	for i, lib := range w.libs {
		a := like
		a.Lib, a.Comm, a.Wire, a.Rank, a.Size = lib, lib.World(), mpifake.World(lib), i, len(w.libs)
		a.Payloads = fakePayloads(a.Size)
		a.Levels, a.Bounce = w.levels(i), w.bounce(i)
		out[i] = &rankCall{args: a}
		if w.inHeap {
			out[i].heap = heapOf(i)
		}
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
func (d *driven) Requests(b *work.Batch) work.Pace { d.p.Requests(b); return work.Always }

// form says whether a program is carried out by Run or polled.
type form string

const (
	blocking form = "blocking"
	polled   form = "polled"
)

var forms = []form{blocking, polled}

// carryOut runs alg on every rank and returns the errors by rank.
func (w *fakeWorld) carryOut(alg *Algorithm, how form, calls []*rankCall) []error {
	if onNode(alg) {
		w.ofNode().seq++
	}
	errs := make([]error, len(calls))
	var wg sync.WaitGroup
	for i, s := range calls {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if onNode(alg) {
				errs[i] = w.node.one(alg, how, i, s)
			} else {
				errs[i] = w.one(alg, how, i, s)
			}
		}()
	}
	wg.Wait()
	return errs
}

func (w *fakeWorld) one(alg *Algorithm, how form, rank int, s *rankCall) (err error) {
	var p Program
	a := &s.args
	p.Reset(a.Lib)
	if alg.scratch != nil {
		if err := p.Reserve(alg.scratch(a)); err != nil {
			return err
		}
	}
	reserved, most := len(p.scratch), 0
	var spread []spreadPart
	if a.Any&(Piecewise|Device) == Piecewise && a.Rank%3 != 1 { // some members' tensors are contiguous
		spread = s.spread()
		if alg.scratch != nil {
			if err := p.Reserve(alg.scratch(a)); err != nil {
				return err
			}
			reserved = len(p.scratch)
		}
	}
	if how == blocking && alg.rounds != nil {
		defer p.Close()
		return s.inRounds(alg, &p)
	}
	s.flip() // until the program starts, the tensors hold wrong data
	err = alg.build(a, &p)
	s.flip()
	for i := range spread {
		spread[i].fill()
	}
	defer func() {
		for i := range spread {
			spread[i].collect(err)
		}
	}()
	if err != nil {
		p.Close()
		return err
	}
	most = len(p.scratch)
	if how == blocking && !alg.polled(&a.Sig) {
		err = p.Run()
	} else {
		d := &driven{p: &p}
		e := w.engines[rank]
		e.Add(d)
		for e.Active() > 0 { // Wait would do the same, but it sleeps
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

// inRounds carries out a call by bounce on this thread, as package group does.
func (s *rankCall) inRounds(alg *Algorithm, p *Program) error {
	if err := alg.Begin(&s.args, p); err != nil {
		return err
	}
	for {
		if state, err := s.args.RunRounds(100, 10); state == bounce.Done || err != nil {
			return err
		}
		runtime.Gosched()
	}
}

// spreadPart is a part whose elements lie elsewhere, with gaps, while a call is under way.
type spreadPart struct {
	flat    Part // where they are otherwise
	view    op.Buf
	block   unsafe.Pointer
	bytes   []byte
	written bool // the call may write them
}

// spread replaces the tensors of a call by some that are not contiguous, unless some of them share memory.
func (s *rankCall) spread() (list []spreadPart) {
	a := &s.args
	if overlapAny(a, a.Send, a.Recv) {
		return nil
	}
	for side, parts := range [2]*[]Part{&a.Send, &a.Recv} {
		*parts = append([]Part(nil), *parts...)
		for i := range *parts {
			part := &(*parts)[i]
			if part.Count < 2 {
				continue
			}
			size := int64(a.DType.Size())
			shape, steps := []int64{part.Count}, []int64{-3}
			if part.Count%4 == 0 { // transposed, with gaps
				shape, steps = []int64{part.Count / 4, 2, 2}, []int64{2, 2 * part.Count, part.Count / 4 * 2}
			}
			room := (3*part.Count + 1) * size
			block, err := mem.Alloc(room)
			if err != nil {
				panic(err)
			}
			view := op.Buf{Data: block, Count: part.Count, DType: a.DType, NDim: int32(len(shape)), Shape: unsafe.Pointer(&shape[0]), Strides: unsafe.Pointer(&steps[0])}
			if steps[0] < 0 {
				view.Data = unsafe.Add(block, 3*(part.Count-1)*size)
			}
			list = append(list, spreadPart{flat: *part, view: view, block: block, bytes: unsafe.Slice((*byte)(block), room), written: side == 1})
			part.Data, part.Layout = view.Data, &view
		}
	}
	return list
}

func (x *spreadPart) fill() {
	for i := range x.bytes {
		x.bytes[i] = 0xA5
	}
	if err := mem.Unpack(&x.view, x.flat.Data); err != nil {
		panic(err)
	}
}

// collect copies the elements back, and checks that nothing was written between them.
func (x *spreadPart) collect(err error) {
	if err == nil && x.written {
		if err := mem.Pack(x.flat.Data, &x.view); err != nil {
			panic(err)
		}
	}
	gap := make([]byte, x.view.Bytes())
	for i := range gap {
		gap[i] = 0xA5
	}
	if err := mem.CopyRange(unsafe.Pointer(unsafe.SliceData(gap)), &x.view, 0, x.view.Bytes(), true); err != nil {
		panic(err)
	}
	for _, b := range x.bytes {
		if b != 0xA5 {
			panic("written between the elements")
		}
	}
	mem.Free(x.block)
}

// flip changes every bit of the tensors.
func (s *rankCall) flip() {
	for _, x := range s.tensors {
		for i := range x.bytes {
			x.bytes[i] ^= 0xFF
		}
	}
}

// covered lists the algorithms that a test has run. Parallel subtests need the mutex.
var covered = struct {
	sync.Mutex
	algorithms map[*Algorithm]bool
}{algorithms: map[*Algorithm]bool{}}

func cover(alg *Algorithm) {
	covered.Lock()
	defer covered.Unlock()
	covered.algorithms[alg] = true
}

// everyAlgorithm carries the operation out with each algorithm that can serve it, also with those
// that are not preferred, in each form. make builds the calls again for each run.
func (w *fakeWorld) everyAlgorithm(t *testing.T, what string, sig *Sig, make func() []*rankCall) {
	t.Helper()
	w.everyEnabled(t, what, sig, make)
	// The algorithms for device memory serve host tensors, too, because only some ranks may have a
	// device.
	if some := *sig; (int64(sig.DType)+int64(sig.Reduce)+sig.Count)%3 == 0 { // a third of the cases, because they take long
		some.Any |= Device
		w.everyEnabled(t, what+", a rank's on a device", &some, make)
		some.Any = sig.Any | Piecewise
		w.everyEnabled(t, what+", in pieces", &some, make)
		if sig.Size > 1 {
			some.NoMPI, some.Nodes, some.Rails, some.Agreed = true, 0, 0, sig.Agreed|ForBounce
			w.everyEnabled(t, what+", in pieces and without MPI", &some, make)
			some.Any = sig.Any | Device
			w.everyEnabled(t, what+", a rank's on a device and without MPI", &some, make)
			some.Any = sig.Any
			w.everyEnabled(t, what+", without MPI", &some, make)
		}
	}
}

func (w *fakeWorld) everyEnabled(t *testing.T, what string, sig *Sig, make func() []*rankCall) {
	t.Helper()
	for _, alg := range registry[sig.Code] {
		sig := *sig
		sig.Agreed |= flagOf(alg)
		switch {
		case !alg.serves(&sig) || alg == &singleOnDevice: // singleOnDevice has no host tensors
			continue
		case alg.Name == "mpi" && sig.Reduce != 0 && reducedOutsideMPI(&sig):
			continue // MPI cannot reduce this; see TestNoAlgorithm
		}
		for _, how := range forms {
			if how == polled && alg.polled(&sig) {
				continue // the blocking form is polled, too
			}
			w.check(t, what, alg, how, &sig, make)
		}
	}
}

// check makes the calls, carries them out with alg, and compares all tensors. It does nothing, and
// returns false, if alg is not for these calls.
func (w *fakeWorld) check(t *testing.T, what string, alg *Algorithm, how form, sig *Sig, make func() []*rankCall) bool {
	t.Helper()
	w.inHeap = alg == &mapped
	calls := make()
	w.inHeap = false
	allowed := true
	for _, s := range calls {
		s.args.Sig = *sig
		if sig.NoMPI {
			s.args.MPI = MPI{}
		}
		if sig.Any&(Device|Piecewise) != 0 {
			s.args.DeviceArgs = &DeviceArgs{PieceBytes: 8 << 10}
		}
		allowed = allowed && (alg.Name != "direct" || DirectOK(&s.args)) && suitsNode(alg, s)
	}
	if !allowed {
		for _, s := range calls {
			for _, x := range s.tensors {
				x.free()
			}
		}
		return false
	}
	cover(alg)
	name := what + ", " + alg.Name + ", " + string(how)
	for rank, err := range w.carryOut(alg, how, calls) {
		require.NoError(t, err, "%s: rank %d", name, rank)
	}
	for rank, s := range calls {
		for _, x := range s.tensors {
			x.check(t, name, rank)
		}
	}
	return true
}

func signature(a Args, size int, even bool) *Sig {
	s := a.Sig
	s.Size, s.Local, s.Nodes, s.Rails, s.Agreed, s.Any = size, true, size, 1, s.Agreed|ForLevels, s.Any|ForLevels
	if even {
		s.Agreed |= Even
	}
	return &s
}

func worldSizes() []int {
	all := []int{1, 2, 3, 5}
	if testing.Short() {
		return all[:3]
	}
	if os.Getenv("GO_TESTS") == "long" { // only what -short leaves out
		return all[3:]
	}
	return all
}

// lengths are counts of elements: 0, 1, less and more than a cache line, and more than the fake
// MPI, like real ones, sends before the receive is posted.
var lengths = []int{0, 1, 97, 1100}

// Parts of 1,100 elements have several pieces then.
func init() { usualPieces.Bytes, levelBytes, levelLeast, slicedLeast = 4096, 4096*partsOfMemory, 0, 0 }

// noise returns random bytes that are valid elements of the dtype.
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
