package window

// #include "access.h"
import "C"

import (
	"math"
	"math/bits"
	"strconv"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/trace"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Code says what a call does. The values are part of the C ABI (PMPI_WINDOW_*).
type Code int32

const (
	Put            Code = C.PW_PUT
	Get            Code = C.PW_GET
	Accumulate     Code = C.PW_ACCUMULATE
	GetAccumulate  Code = C.PW_GET_ACCUMULATE
	CompareAndSwap Code = C.PW_COMPARE_AND_SWAP
	Flush          Code = C.PW_FLUSH
	Fence          Code = C.PW_FENCE
	Signal         Code = C.PW_SIGNAL
	WaitSignal     Code = C.PW_WAIT_SIGNAL
	Lock           Code = C.PW_LOCK
	LockShared     Code = C.PW_LOCK_SHARED
	Unlock         Code = C.PW_UNLOCK
	Free           Code = C.PW_FREE
)

// valid tells whether c is one of these.
func (c Code) valid() bool { return c >= Put && c <= Free }

// String returns the name of the function: "Window.put".
func (c Code) String() string {
	if c.valid() {
		return trace.Accesses[c]
	}
	return "window operation " + strconv.Itoa(int(c))
}

// All as the rank of Flush, Lock, LockShared and Unlock stands for every member, in their order.
const All = math.MinInt32

// The ways to combine elements that no collective has.
const (
	Replace op.ReduceOp = C.PW_REPLACE
	NoOp    op.ReduceOp = C.PW_NO_OP
	LAnd    op.ReduceOp = C.PW_LAND
	LOr     op.ReduceOp = C.PW_LOR
	LXor    op.ReduceOp = C.PW_LXOR
)

var reduceNames = map[op.ReduceOp]string{Replace: "REPLACE", NoOp: "NO_OP", LAnd: "LAND", LOr: "LOR", LXor: "LXOR"}

func nameOf(r op.ReduceOp) string {
	if name, ok := reduceNames[r]; ok {
		return name
	}
	return r.String()
}

// Op has the fields of pmpi_window_op in capi/pmpi.h: one call of a window.
type Op struct {
	Size      uint32 // bytes of the caller's pmpi_window_op
	Code      Code
	Window    int64
	Rank      int32 // of the group, or All
	Reduce    op.ReduceOp
	Offset    int64  // of the first element in the target's memory
	Send      op.Buf // what this rank gives: of CompareAndSwap the new value
	Recv      op.Buf // what this rank gets
	Compare   op.Buf // the expected value of CompareAndSwap
	NDim      int32
	Reserved  int32
	Shape     unsafe.Pointer // NDim int64: the target's elements; nil: as many as the tensor has, contiguous
	Strides   unsafe.Pointer // NDim int64, in elements
	TimeoutNS int64          // below 0: the group's
}

func (o *Op) sends() bool { return o.Code != Get }

// combines tells whether elements are combined with those of the caller.
func (o *Op) combines() bool { return o.Code == Accumulate || o.Code == GetAccumulate }

func (o *Op) recvs() bool {
	return o.Code == Get || o.Code == GetAccumulate || o.Code == CompareAndSwap
}

// box is where elements are in a member's memory: at offset the first one, and the others by lengths and steps.
type box struct {
	offset int64
	count  int64
	shape  []int64 // nil: count elements that follow each other
	steps  []int64
}

// Call carries out a call. nested says that it comes from a handler that interrupted a wait of its own thread.
func (w *Window) Call(o *Op, nested bool) error {
	w.calls.Add(1)
	defer w.calls.Add(-1)
	if w.ended.Load() {
		return w.endedError(o.Code.String())
	}
	switch o.Code {
	case Fence:
		return w.fence(o, nested)
	case Flush, Lock, LockShared, Unlock:
		if o.Rank == All {
			return w.onAll(o)
		}
	case Put, Get, Accumulate, GetAccumulate, CompareAndSwap, Signal, WaitSignal:
	default:
		return status.New(status.Argument, "there is no window operation %d", o.Code)
	}
	if o.Rank < 0 || int(o.Rank) >= w.ws.size {
		return w.ws.noRank(o.Code.String(), int(o.Rank))
	}
	return w.one(o, int(o.Rank), w.ws.deadline(o))
}

// quick carries out a call as pmpi_window does first: if it needs no wait and no error. It is for tests. What o points to is outside the
// Go heap.
func quick(o *Op) bool { return C.pw_quick((*C.pw_op)(unsafe.Pointer(o))) == 0 }

// one carries out a call that concerns member r, and records it.
func (w *Window) one(o *Op, r int, deadline time.Time) error {
	b := &o.Send
	if !o.sends() {
		b = &o.Recv
	}
	return w.ws.g.Record(uint8(o.Code), b.DType, b.Count, r, int(w.number), func() error { return w.carry(o, r, deadline) })
}

func (w *Window) carry(o *Op, r int, deadline time.Time) error {
	switch o.Code {
	case Flush:
		return w.flush(o.Code.String(), r, deadline)
	case Signal:
		return w.signal(r, deadline)
	case WaitSignal:
		return w.waitSignal(r, deadline)
	case Lock, LockShared:
		return w.lock(r, o.Code == LockShared, deadline)
	case Unlock:
		return w.unlock(r, deadline)
	}
	return w.elements(o, r, deadline)
}

// onAll is one for every member, in their order.
func (w *Window) onAll(o *Op) error {
	deadline := w.ws.deadline(o)
	var first error
	for r := range w.ws.size {
		err := w.one(o, r, deadline)
		if err == nil {
			continue
		}
		if o.Code == Lock || o.Code == LockShared {
			for held := range r {
				_ = w.unlock(held, deadline) // the first error is told
			}
			return err
		}
		if first == nil {
			first = err
		}
		if status.CodeOf(err) == status.Interrupted {
			return err
		}
	}
	return first
}

func (ws *Windows) deadline(o *Op) time.Time {
	timeout := ws.g.Timeout()
	if o.TimeoutNS >= 0 {
		timeout = time.Duration(o.TimeoutNS)
	}
	return time.Now().Add(min(timeout, work.Longest))
}

// elements carries out a call that moves elements.
func (w *Window) elements(o *Op, r int, deadline time.Time) error {
	at, err := w.members.target(o, r)
	if err != nil {
		return err
	}
	given, taken, err := w.members.tensors(o, r, at.count)
	if err != nil {
		return err
	}
	defer given.free()
	defer taken.free()
	if at.count == 0 {
		return nil
	}
	a := access{code: o.Code, reduce: o.Reduce, send: given.at, recv: taken.at, compare: o.Compare.Data, holder: uint32(w.ws.me) + 1}
	if w.members.near(r) {
		err = w.inMemory(&a, r, at, deadline)
	} else {
		err = w.byMessages(&a, r, at, deadline)
	}
	if err != nil {
		return err
	}
	return taken.unpack(&o.Recv)
}

// target checks the call, and returns which elements of member r it is for.
func (ms *members) target(o *Op, r int) (at box, err error) {
	b, name := &o.Send, "x"
	if !o.sends() {
		b, name = &o.Recv, "out"
	}
	at = box{offset: o.Offset, count: b.Count}
	if o.Shape != nil {
		if o.NDim < 0 || o.NDim > mostDims {
			return at, status.New(status.Argument, "%s: the target has %d dimensions; at most %d are possible", o.Code, o.NDim, mostDims)
		}
		at.shape, at.steps = unsafe.Slice((*int64)(o.Shape), o.NDim), unsafe.Slice((*int64)(o.Strides), o.NDim)
		count, ok := product(at.shape)
		if !ok {
			return at, status.New(status.Argument, "%s: the target's shape %v is none", o.Code, at.shape)
		}
		if count != b.Count {
			return at, status.New(status.Argument, "%s: %s has %d elements, and the target's shape %v has %d", o.Code, name, b.Count, at.shape, count)
		}
		at = at.simple()
	}
	if !at.within(ms.count(r)) {
		if at.shape == nil {
			return at, status.New(status.Argument, "%s: offset=%d and the %d elements of %s are not within the %d elements of rank %d", o.Code, o.Offset, b.Count, name, ms.count(r), r)
		}
		return at, status.New(status.Argument, "%s: offset=%d with the shape %v and the strides %v is not within the %d elements of rank %d", o.Code, o.Offset, at.shape, at.steps, ms.count(r), r)
	}
	switch o.Code {
	case CompareAndSwap:
		if at.count != 1 {
			return at, status.New(status.Argument, "%s: value has %d elements, and it is for 1", o.Code, at.count)
		}
	case Accumulate, GetAccumulate:
		if o.Reduce == op.Avg || o.Reduce == op.PremulSum {
			return at, status.New(status.Argument, "%s: op=%v is for all ranks of a group together: use SUM, and divide or multiply yourself", o.Code, o.Reduce)
		}
		if C.pw_defined(C.int32_t(ms.dtype), C.int32_t(o.Reduce)) == 0 {
			return at, status.New(status.Type, "%s: op=%s is not defined for %v", o.Code, nameOf(o.Reduce), ms.dtype)
		}
	}
	return at, nil
}

// product returns how many elements a shape has. ok is false if a length is negative, or no memory has so many.
func product(shape []int64) (n int64, ok bool) {
	n = 1
	for _, length := range shape {
		if length == 0 {
			n = 0
		}
		if length < 0 {
			return 0, false
		}
	}
	if n == 0 {
		return 0, true
	}
	for _, length := range shape {
		high, low := bits.Mul64(uint64(n), uint64(length))
		if high != 0 || low > math.MaxInt64 {
			return 0, false
		}
		n = int64(low)
	}
	return n, true
}

// simple returns the same box without a shape, if its elements follow each other.
func (b box) simple() box {
	want := int64(1)
	for i := len(b.shape) - 1; i >= 0 && b.count > 0; i-- {
		if b.shape[i] != 1 && b.steps[i] != want {
			return b
		}
		want *= b.shape[i]
	}
	b.shape, b.steps = nil, nil
	return b
}

// within tells whether all elements are among the first n. The numbers may be anything.
func (b box) within(n int64) bool {
	if b.offset < 0 || b.count < 0 || b.offset > n {
		return false
	}
	if b.shape == nil || b.count == 0 {
		return b.count <= n-b.offset
	}
	low, high := b.offset, b.offset // the first and the last element
	for i, length := range b.shape {
		reach, ok := times(length-1, b.steps[i])
		if !ok {
			return false
		}
		if reach < 0 {
			low, ok = plus(low, reach)
		} else {
			high, ok = plus(high, reach)
		}
		if !ok {
			return false
		}
	}
	return low >= 0 && high < n
}

func times(a, b int64) (int64, bool) {
	if a == 0 || b == 0 {
		return 0, true
	}
	c := a * b
	return c, c/b == a && (a != -1 || b != math.MinInt64) && (b != -1 || a != math.MinInt64)
}

func plus(a, b int64) (int64, bool) {
	c := a + b
	return c, (c > a) == (b > 0)
}

// packed is a tensor of the caller as contiguous memory.
type packed struct {
	at    unsafe.Pointer
	block unsafe.Pointer // the memory, if it is a copy
}

// tensors checks the tensors of a call for member r, each of count elements, and returns them as contiguous memory, which
// is not the member's.
func (ms *members) tensors(o *Op, r int, count int64) (given, taken packed, err error) {
	if o.sends() && !(o.combines() && o.Reduce == NoOp) {
		name := "x"
		if o.Code == CompareAndSwap {
			name = "value"
			if err := ms.checkTensor(o.Code, "expected", &o.Compare, 1); err != nil {
				return given, taken, err
			}
		}
		if err := ms.checkTensor(o.Code, name, &o.Send, count); err != nil {
			return given, taken, err
		}
		if given, err = ms.pack(&o.Send, r, true); err != nil {
			return given, taken, err
		}
	}
	if o.recvs() {
		err = ms.checkTensor(o.Code, "out", &o.Recv, count)
		if err == nil && mem.Overlaps(&o.Recv) {
			err = status.New(status.Argument, "%s: elements of out overlap", o.Code)
		}
		if err == nil {
			taken, err = ms.pack(&o.Recv, r, false)
		}
		if err != nil {
			given.free()
			return packed{}, taken, err
		}
	}
	return given, taken, nil
}

func (ms *members) checkTensor(code Code, name string, b *op.Buf, count int64) error {
	switch {
	case b.DType != ms.dtype:
		return status.New(status.Type, "%s: %s is of %v, and the window of %v", code, name, b.DType, ms.dtype)
	case b.Count > 0 && b.Data == nil:
		return status.New(status.Type, "%s: %s has %d elements and no memory: give the tensor that it stands for, as of wait() or to_local()", code, name, b.Count)
	case !b.OnHost():
		return status.New(status.Unsupported, "%s: %s is in device memory: a window takes host memory", code, name)
	case b.Count != count:
		return status.New(status.Argument, "%s: %s has %d elements, and %d are needed", code, name, b.Count, count)
	}
	return nil
}

// pack returns a tensor as contiguous memory that is not member r's: itself, or a block, filled with its elements if fill is
// set.
func (ms *members) pack(b *op.Buf, r int, fill bool) (packed, error) {
	if b.Contiguous() && !ms.overlaps(b, r) {
		return packed{at: b.Data}, nil
	}
	block, err := mem.Alloc(b.Bytes())
	if err != nil {
		return packed{}, err
	}
	if fill {
		if err := mem.Pack(block, b); err != nil {
			mem.Free(block)
			return packed{}, err
		}
	}
	return packed{block, block}, nil
}

// overlaps tells whether a contiguous tensor has elements in the memory of member r, as this process maps it.
func (ms *members) overlaps(b *op.Buf, r int) bool {
	if !ms.near(r) || b.Bytes() == 0 {
		return false
	}
	begin, from := uintptr(unsafe.Pointer(ms.of(r).base)), uintptr(b.Data)
	return from < begin+uintptr(ms.count(r)*ms.elem) && begin < from+uintptr(b.Bytes())
}

// unpack copies the block, if there is one, to the elements of b.
func (p packed) unpack(b *op.Buf) error {
	if p.block == nil {
		return nil
	}
	return mem.Unpack(b, p.block)
}

func (p packed) free() { mem.Free(p.block) }
