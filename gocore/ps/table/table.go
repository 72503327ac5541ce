// Package table holds tables of embeddings: int64 id -> a row of floats and the state of its
// optimizer, in C memory. A call takes a whole batch. A row that was never seen is made at its
// first touch, from the seed and its id alone, so it depends neither on the order of calls nor on
// which server holds it; where ids come and go, by the push that is to make it. table.h describes the memory, the locks and the order of the arithmetic;
// optimizers.h has the formulas.
//
// All methods of Table may be called from any thread at any time. Free waits for the calls under
// way.
package table

/*
#cgo CFLAGS: -std=c11 -O3 -D_GNU_SOURCE
#cgo !amd64,!arm64 LDFLAGS: -lm
#cgo noescape pt_pull
#cgo nocallback pt_pull
#cgo noescape pt_look
#cgo nocallback pt_look
#cgo noescape pt_push
#cgo nocallback pt_push
#cgo noescape pt_check
#cgo nocallback pt_check
#cgo noescape pt_finite
#cgo nocallback pt_finite
#cgo noescape pt_read
#cgo nocallback pt_read
#cgo noescape pt_write
#cgo nocallback pt_write
#cgo noescape pt_find
#cgo nocallback pt_find
#cgo noescape pt_delta
#cgo nocallback pt_delta
#cgo noescape pt_compensate
#cgo nocallback pt_compensate
#cgo noescape pt_promise
#cgo nocallback pt_promise
#cgo noescape pt_reserve
#cgo nocallback pt_reserve
#cgo noescape pt_unreserve
#cgo nocallback pt_unreserve
#include "table.h"
*/
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Limits of what a table can be, and of one call.
const (
	MostDim   = 1 << 16
	MostBatch = 1 << 30
)

var isas = map[string]C.int32_t{"portable": C.PT_PORTABLE, "avx2": C.PT_AVX2, "avx512": C.PT_AVX512}

var dtypes = map[op.DType]C.int32_t{op.Float32: C.PT_FLOAT32, op.Float16: C.PT_FLOAT16, op.BFloat16: C.PT_BFLOAT16}

// largest is the largest number of each dtype.
var largest = map[op.DType]C.float{op.Float32: math.MaxFloat32, op.Float16: 65504, op.BFloat16: C.float(math.Float32frombits(0x7f7f0000))}

// Table is one table.
type Table struct {
	Config
	// Threads is how many threads may share a large pull or push; 0: one, the caller. It is set
	// before the first call.
	Threads int

	dtype  op.DType
	config C.pt_config
	t      *C.pt_table // nil after Free
	inUse  sync.RWMutex
	steps  atomic.Int64 // the greatest step of a push
}

// New makes a table without rows.
func New(c Config) (*Table, error) { return newFor(c, reduce.ISA()) }

// newFor makes a table for an instruction set, which the processor must have.
func newFor(c Config, isa string) (*Table, error) {
	dtype, err := c.check()
	if err != nil {
		return nil, err
	}
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // it never fails
	cc := C.pt_config{
		dim: C.int64_t(c.Dim), ids: C.int64_t(c.IDs), memory_limit: C.int64_t(c.MemoryLimit), seed: C.uint64_t(c.Seed),
		admit_after: C.int64_t(c.AdmitAfter), expire_after: C.int64_t(c.ExpireAfter), max_rows: C.int64_t(c.MaxRows),
		initial: [2]C.double{C.double(c.Initializer.A), C.double(c.Initializer.B)}, initial_state: C.float(c.Optimizer.InitialAccumulator),
		initializer: initializers[c.Initializer.Name], dtype: dtypes[dtype], optimizer: c.Optimizer.code(), isa: isas[isa],
	}
	cc.secret[0] = C.uint64_t(binary.LittleEndian.Uint64(secret[:]))
	cc.secret[1] = C.uint64_t(binary.LittleEndian.Uint64(secret[8:]) | 1)
	t := C.pt_new(&cc)
	if t == nil {
		return nil, noMemory()
	}
	return &Table{Config: c, dtype: dtype, config: cc, t: t}, nil
}

func noMemory() error { return status.New(status.NoMemory, "table: no memory for a new table") }

// Clear removes all rows, and sets Steps to 0.
func (t *Table) Clear() error {
	t.inUse.Lock()
	defer t.inUse.Unlock()
	if t.t == nil {
		return freed()
	}
	made := C.pt_new(&t.config)
	if made == nil {
		return noMemory()
	}
	C.pt_free(t.t)
	t.t = made
	t.steps.Store(0)
	return nil
}

// RowType returns the dtype of the rows.
func (t *Table) RowType() op.DType { return t.dtype }

// Free gives the memory of the table back. Later calls of its methods fail.
func (t *Table) Free() {
	t.inUse.Lock()
	defer t.inUse.Unlock()
	C.pt_free(t.t)
	t.t = nil
}

// Batch is the memory of one call. The tensors are contiguous and in host memory. IDs is of int64
// or int32. Values has len(ids) x dim elements: of float32, or of the table's dtype, or as a method
// says.
type Batch struct {
	IDs, Values, States *op.Buf // Values and States may be nil where a method says so
	// Stamps, of int64, has the last use of each row, of a table whose ids come and go: what Read and
	// Find give, and Write takes. It may be nil.
	Stamps *op.Buf
}

// Pull copies the rows of the ids into Values, and makes those that are missing. Where ids come and
// go it makes none, as Look: only pushes do.
func (t *Table) Pull(b Batch) error {
	return t.call("pull", b, func(c *C.pt_batch) C.int {
		return t.copyOut(c, func(part *C.pt_batch) C.int {
			if t.ComeAndGo() {
				return C.pt_look(t.t, part, 0)
			}
			return C.pt_pull(t.t, part)
		})
	})
}

// Look copies the rows of the ids into Values, as Pull does, but makes none: an id that has no row
// has the values that its row would begin with, or zeros. It needs no memory of the table.
func (t *Table) Look(b Batch, zeros bool) error {
	var with C.int
	if zeros {
		with = 1
	}
	return t.call("lookup", b, func(c *C.pt_batch) C.int {
		return t.copyOut(c, func(part *C.pt_batch) C.int { return C.pt_look(t.t, part, with) })
	})
}

// Make makes the rows of the ids that are missing: a push of them then needs no memory. Where ids
// come and go it makes none.
func (t *Table) Make(ids *op.Buf) error {
	if t.ComeAndGo() {
		return nil
	}
	return t.call("make rows", Batch{IDs: ids}, func(c *C.pt_batch) C.int { return C.pt_pull(t.t, c) })
}

// Push updates the rows of the ids by gradients, in Values, and makes those that are missing. The
// gradients of an id that appears several times are added in order of appearance. rate replaces the
// learning rate of the table unless it is NaN. Gradients may be of any of the dtypes that rows
// have. A table that refuses gradients that are not finite has finite rows: what would lie beyond
// the largest number is that number. step is the number of this update, from 1, of which Adam's
// bias correction depends; 0: one more than the greatest so far.
func (t *Table) Push(b Batch, rate float64, step int64) error {
	if step < 0 {
		return status.New(status.Argument, "push: step=%d is below 0; steps count from 1", step)
	}
	u, err := t.Prepare(b, rate)
	if err != nil {
		return err
	}
	defer u.End()
	return u.Apply(step)
}

// Update is a push that has been checked and for which there is room: see Prepare.
type Update struct {
	of      *Table
	batch   *C.pt_batch // by itself: C must not get at Go's pointers
	scratch unsafe.Pointer
	rate    float64
}

// Prepare does all of a Push that may be refused, so that several tables are updated, or none. End
// is called after it, and after Apply, if there is one. Until then the memory of the batch is the
// update's, and Clear and Free wait.
func (t *Table) Prepare(b Batch, rate float64) (*Update, error) {
	if math.IsNaN(rate) {
		rate = t.Optimizer.LearningRate
	}
	if rate < 0 || math.IsInf(rate, 0) {
		return nil, status.New(status.Argument, "push: learning_rate=%v is not a finite number of at least 0", rate)
	}
	u, err := t.enter("push", b)
	if err != nil {
		return nil, err
	}
	u.rate = rate
	c := u.batch
	rc := C.pt_check(t.t, c)
	if rc == C.PT_OK && t.Refuse {
		rc = C.pt_finite(t.t, c)
	}
	if rc == C.PT_OK && C.pt_reserve(t.t, c) == 0 { // make the rows now, or room for them
		values := c.values
		c.values = nil
		rc = patient(func() C.int {
			if t.ComeAndGo() {
				return C.pt_promise(t.t, c)
			}
			return C.pt_pull(t.t, c)
		})
		c.values = values
	}
	if err := t.failure("push", rc, c); err != nil {
		u.End()
		return nil, err
	}
	return u, nil
}

// Apply updates the rows, as Push does. Only a machine that refuses memory can make it fail.
func (u *Update) Apply(step int64) error {
	t := u.of
	var before int64
	if step == 0 {
		step = t.steps.Add(1)
		before = step - 1
	} else {
		for before = t.steps.Load(); before < step && !t.steps.CompareAndSwap(before, step); before = t.steps.Load() {
		}
	}
	t.at(u.batch, before, max(before, step))
	return u.carryOut(t.Optimizer.step(u.rate, step))
}

// Add is Apply, but adds what the batch has to the rows. The optimizer, its states and the steps
// have no part in it.
func (u *Update) Add() error {
	clock := u.of.Steps()
	u.of.at(u.batch, clock, clock)
	step := (&Optimizer{}).step(-1, 0)
	step.adds = 1
	return u.carryOut(step)
}

func (u *Update) carryOut(step C.pt_step) error {
	t := u.of
	u.batch.step = step
	if t.Refuse {
		u.batch.step.most = largest[t.dtype]
	}
	return t.failure("push", t.push(u.batch), u.batch)
}

// End gives back what Prepare has taken.
func (u *Update) End() {
	C.pt_unreserve(u.of.t, u.batch)
	mem.Free(u.scratch)
	u.of.inUse.RUnlock()
}

// Check tells whether Push would refuse the batch because of what it holds: an id out of range, or
// a gradient that is not finite. It changes nothing.
func (t *Table) Check(b Batch) error {
	return t.call("push", b, func(c *C.pt_batch) C.int {
		if t.Refuse {
			return C.pt_finite(t.t, c)
		}
		return C.PT_OK
	})
}

// Read copies rows and their states, of ids that are all there. States may be nil.
func (t *Table) Read(b Batch) error {
	return t.call("read", b, func(c *C.pt_batch) C.int { return C.pt_read(t.t, c) })
}

// Find copies the rows of those ids that have one, and says which: there has a 1 for each of them,
// else a 0, and is outside the Go heap. The values of the others stay. Values may be nil.
func (t *Table) Find(b Batch, there []byte) error {
	if int64(len(there)) < b.IDs.Count {
		return status.New(status.Argument, "find: %d places for %d ids", len(there), b.IDs.Count)
	}
	return t.call("find", b, func(c *C.pt_batch) C.int {
		c.there = (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(there)))
		return C.pt_find(t.t, c)
	})
}

// Delta makes now (now - before) / parts. Differences of numbers that are finite are finite. The
// slices are of the same length.
func Delta(now, before []float32, parts float32) {
	if len(now) > 0 {
		C.pt_delta((*C.float)(&now[0]), (*C.float)(&before[:len(now)][0]), C.float(parts), C.int64_t(len(now)))
	}
}

// Compensate adds lambda g g (rows - before) to gradients g of rows of dim elements, where there
// has a 1 for the row. With squares, means of the squares of gradients that become decay of
// themselves and 1 - decay of g g, lambda is divided by their roots; nil: it is constant. The slices
// are as long as there says.
func Compensate(g, rows, before, squares []float32, there []byte, lambda, decay float32, dim int64) {
	n := int64(len(there)) * dim
	if n == 0 {
		return
	}
	var means *C.float
	if squares != nil {
		means = (*C.float)(&squares[:n][0])
	}
	C.pt_compensate((*C.float)(&g[:n][0]), (*C.float)(&rows[:n][0]), (*C.float)(&before[:n][0]), (*C.uint8_t)(&there[0]), means,
		C.float(lambda), C.float(decay), C.int64_t(len(there)), C.int64_t(dim))
}

// Write sets rows and their states. States may be nil: then the states of new rows are their first
// ones, and those of others stay. Where ids come and go, the last use of the rows is what Stamps has,
// or now. Rows that are too old by it are removed; of more rows than the cap those stay that were
// used last (then: of the largest ids), whether they were in the table or are new.
// A table that refuses what is not finite refuses rows of float32
// with a number that its dtype cannot hold.
func (t *Table) Write(b Batch) error {
	if t.Refuse && t.dtype != op.Float32 && b.Values != nil && b.Values.DType == op.Float32 && b.Values.Count > 0 && b.Values.OnHost() && b.Values.Contiguous() {
		rows := unsafe.Slice((*float32)(b.Values.Data), b.Values.Count)
		if at := t.Beyond(rows); at >= 0 {
			return status.New(status.Argument, "write: rows[%d, %d] is %v; the largest number of %v is %v. non_finite=\"allow\" makes it infinite",
				at/t.Dim, at%t.Dim, rows[at], t.dtype, Largest(t.dtype))
		}
	}
	return t.call("write", b, func(c *C.pt_batch) C.int { return C.pt_write(t.t, c) })
}

// IDs fills out, of int64, with ids of the table, in no order, and returns how many rows there are.
func (t *Table) IDs(out *op.Buf) (int64, error) {
	if out.DType != op.Int64 {
		return 0, status.New(status.Type, "ids: the result is of %v, not of int64", out.DType)
	}
	t.inUse.RLock()
	defer t.inUse.RUnlock()
	if t.t == nil {
		return 0, freed()
	}
	return int64(C.pt_ids(t.t, (*C.int64_t)(out.Data), C.int64_t(out.Count), t.oldest(t.Steps()))), nil
}

// Steps returns the greatest step of a push; SetSteps sets it, and CountStep adds one.
func (t *Table) Steps() int64     { return t.steps.Load() }
func (t *Table) SetSteps(n int64) { t.steps.Store(n) }
func (t *Table) CountStep()       { t.steps.Add(1) }

// Info says how large a table is.
type Info struct {
	Rows       int64 `json:"rows"`
	Bytes      int64 `json:"bytes"`       // what the table holds of the machine
	IndexBytes int64 `json:"index_bytes"` // of these, the lists of ids
	RowBytes   int64 `json:"row_bytes"`   // of a row
	StateBytes int64 `json:"state_bytes"` // of the state of a row
	Steps      int64 `json:"steps"`

	// Of ids that come and go, since New or Clear.
	Dropped     int64 `json:"dropped"`      // ids of pushes that got no row, each once a push
	Expired     int64 `json:"expired"`      // rows that were not used for too long
	Evicted     int64 `json:"evicted"`      // rows that made place for others under the cap
	SketchBytes int64 `json:"sketch_bytes"` // of Bytes, what counts ids
}

// Info returns what the table holds.
func (t *Table) Info() (Info, error) {
	t.inUse.RLock()
	defer t.inUse.RUnlock()
	if t.t == nil {
		return Info{}, freed()
	}
	i := Info{Rows: int64(C.pt_live_rows(t.t, t.oldest(t.Steps()))), Bytes: int64(C.pt_bytes(t.t)), IndexBytes: int64(C.pt_index_bytes(t.t)),
		RowBytes: int64(t.t.row_bytes), StateBytes: int64(t.t.state_bytes), Steps: t.Steps()}
	t.addLifetime(&i)
	return i, nil
}

func freed() error {
	return status.New(status.Argument, "the table was closed")
}

// call carries out a batch, and translates the result.
func (t *Table) call(name string, b Batch, work func(*C.pt_batch) C.int) error {
	u, err := t.enter(name, b)
	if err != nil {
		return err
	}
	defer u.End()
	rc := C.pt_check(t.t, u.batch)
	if rc == C.PT_OK {
		rc = patient(func() C.int { return work(u.batch) })
	}
	return t.failure(name, rc, u.batch)
}

// enter checks the tensors of a batch, and gives it scratch memory.
func (t *Table) enter(name string, b Batch) (*Update, error) {
	c, err := t.checked(name, b)
	if err != nil {
		return nil, err
	}
	t.inUse.RLock()
	if t.t == nil {
		err = freed()
	} else {
		clock := t.Steps()
		t.at(&c, clock, clock)
		c.scratch, err = mem.Alloc(int64(C.pt_scratch(t.t, c.n)))
	}
	if err != nil {
		t.inUse.RUnlock()
		return nil, err
	}
	return &Update{of: t, batch: &c, scratch: c.scratch}, nil
}

// patient calls again while the memory that a call needs is reserved for pushes, which last some
// milliseconds at most.
func patient(call func() C.int) (rc C.int) {
	for rc = call(); rc == C.PT_BUSY; rc = call() {
		time.Sleep(50 * time.Microsecond)
	}
	return rc
}

func (t *Table) failure(name string, rc C.int, c *C.pt_batch) error {
	switch rc {
	case C.PT_OK:
		return nil
	case C.PT_OVER_LIMIT:
		return status.New(status.NoMemory, "%s: the table may hold %d bytes (memory_limit), and rows for the new ids of this call would need more; it has %d rows",
			name, t.MemoryLimit, int64(C.pt_rows(t.t)))
	case C.PT_NO_MEMORY:
		return status.New(status.NoMemory, "%s: the machine has no memory for new rows; the table has %d rows in %d bytes", name, int64(C.pt_rows(t.t)), int64(C.pt_bytes(t.t)))
	case C.PT_OUT_OF_RANGE:
		return status.New(status.Argument, "%s: ids[%d] is %d; the table takes ids from 0 to %d (num_ids)", name, int64(c.fault), int64(c.value), t.Config.IDs-1)
	case C.PT_NOT_FINITE:
		row := int64(c.fault) / t.Dim
		return status.New(status.Argument, "%s: gradients[%d, %d] is not finite (NaN or infinity); nothing was changed. non_finite=\"allow\" lets such gradients through",
			name, row, int64(c.fault)%t.Dim)
	case C.PT_ABSENT:
		return status.New(status.Argument, "%s: ids[%d] is %d, which has no row", name, int64(c.fault), int64(c.value))
	}
	return status.New(status.Panic, "table: %s returned %d", name, int(rc))
}

// checked returns the batch for C, or an error about a tensor.
func (t *Table) checked(name string, b Batch) (C.pt_batch, error) {
	ids, values := b.IDs, b.Values
	var c C.pt_batch
	switch ids.DType {
	case op.Int64:
		c.id_bytes = 8
	case op.Int32:
		c.id_bytes = 4
	default:
		return c, status.New(status.Type, "%s: ids are of %v; they must be of int64 or int32", name, ids.DType)
	}
	if ids.Count > MostBatch {
		return c, status.New(status.Argument, "%s: %d ids are more than one call takes, %d", name, ids.Count, MostBatch)
	}
	what := map[string]string{"pull": "out", "lookup": "out", "push": "gradients"}[name]
	if what == "" {
		what = "rows"
	}
	if values == nil {
		values = &op.Buf{DType: t.dtype, Count: ids.Count * t.Dim, NDim: 1}
	}
	if _, known := dtypes[values.DType]; name == "push" && !known {
		return c, status.New(status.Type, "%s: gradients are of %v; they must be of float32, float16 or bfloat16", name, values.DType)
	}
	if name != "push" && values.DType != t.dtype && values.DType != op.Float32 {
		also := ""
		if t.dtype != op.Float32 {
			also = " or of float32"
		}
		return c, status.New(status.Type, "%s: %s are of %v; they must be of the table's dtype %v%s", name, what, values.DType, t.dtype, also)
	}
	if values.Count != ids.Count*t.Dim {
		return c, status.New(status.Argument, "%s: %s have %d elements; %d ids of dim %d need %d", name, what, values.Count, ids.Count, t.Dim, ids.Count*t.Dim)
	}
	if b.States != nil {
		n := ids.Count * int64(C.pt_state_bytes(t.Optimizer.code(), C.int64_t(t.Dim))) / 4
		if b.States.DType != op.Float32 {
			return c, status.New(status.Type, "%s: states are of %v; they must be of float32", name, b.States.DType)
		}
		if b.States.Count != n {
			return c, status.New(status.Argument, "%s: states have %d elements; %d ids need %d", name, b.States.Count, ids.Count, n)
		}
		if n > 0 {
			c.states = (*C.float)(b.States.Data)
		}
	}
	if b.Stamps != nil {
		if !t.ComeAndGo() {
			return c, status.New(status.Argument, "%s: the rows of this table have no last uses: admit_after, expire_after and max_rows are off", name)
		}
		if b.Stamps.DType != op.Int64 || b.Stamps.Count != ids.Count {
			return c, status.New(status.Argument, "%s: last uses are %d of %v; %d ids need as many of int64", name, b.Stamps.Count, b.Stamps.DType, ids.Count)
		}
		c.stamps = (*C.int64_t)(b.Stamps.Data)
	}
	for _, tensor := range []*op.Buf{b.IDs, b.Values, b.States, b.Stamps} {
		if tensor == nil {
			continue
		}
		if !tensor.Contiguous() {
			return c, status.New(status.Argument, "%s: a tensor is not contiguous; pass a contiguous copy", name)
		}
		if !tensor.OnHost() {
			return c, status.New(status.Unsupported, "%s: a tensor is in device memory; tables take host memory: move it to the CPU", name)
		}
	}
	c.ids, c.n = ids.Data, C.int64_t(ids.Count)
	c.values, c.dtype = values.Data, dtypes[values.DType]
	return c, nil
}
