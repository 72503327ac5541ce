// Package capi is the C interface of the core. capi/main links it with -buildmode=c-shared: with
// the tag pymodule as the Python extension paddlempi._core, without it as libpaddlempi.so.
// export.go has all Go functions that C calls, and no logic.
package capi

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -fvisibility=hidden
#include <stdlib.h>
#include <string.h>
#include "guard.h"
#include "slack.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore"
	"github.com/paddlempi/paddlempi/gocore/control"
	"github.com/paddlempi/paddlempi/gocore/lifecycle"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/job"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/window"
	"github.com/paddlempi/paddlempi/gocore/work"
)

func init() {
	gocore.SetFinalizeHook(unsafe.Pointer(C.pmpi_guard_finalize))
}

// fill writes err to out for C and returns its code.
func fill(out *C.pmpi_error, err error) C.int {
	if err == nil {
		return 0
	}
	registry.Servers.Told(err)
	var e *status.Error
	if !errors.As(err, &e) {
		e = &status.Error{Code: status.CodeOf(err), Msg: err.Error()}
	}
	out.code, out.mpi_class = C.int32_t(e.Code), C.int32_t(e.MPIClass)
	out.n_ranks = 0
	for i, r := range e.Ranks {
		if i == len(out.ranks) {
			break
		}
		out.ranks[i] = C.int32_t(r)
		out.n_ranks++
	}
	text := unsafe.Slice((*byte)(unsafe.Pointer(&out.message[0])), len(out.message))
	n := copy(text[:len(text)-1], e.Msg)
	text[n] = 0
	return C.int(e.Code)
}

// caught turns a panic into an error and poisons the core, whose state may be inconsistent. Every
// function that C calls defers it.
func caught(out *C.pmpi_error, rc *C.int) {
	if p := recover(); p != nil {
		why := fmt.Sprint(p)
		gocore.Poison(why)
		if out != nil {
			*rc = fill(out, status.New(status.Panic, "the core failed: %s\n%s", why, debug.Stack()))
		}
	}
}

func interrupt() error {
	if C.pmpi_guard_interrupt() != 0 {
		return &status.Error{Code: status.Interrupted, Msg: "interrupted"}
	}
	return nil
}

func put(out *C.pmpi_result, r gocore.Result) {
	if out != nil {
		out.source, out.tag, out.bytes = C.int32_t(r.Source), C.int32_t(r.Tag), C.int64_t(r.Bytes)
		out.device, out.released = C.int32_t(r.Device), 0
	}
}

//export goControl
func goControl(method, request *C.char, reply **C.char, e *C.pmpi_error) (rc C.int) {
	defer caught(e, &rc)
	C.pmpi_slack_restore()
	var in []byte
	if request != nil {
		in = []byte(C.GoString(request))
	}
	out, err := control.Call(C.GoString(method), in, interrupt)
	if err != nil {
		return fill(e, err)
	}
	if reply != nil {
		*reply = C.CString(string(out))
	}
	return 0
}

func wrongSize(function string, desc *op.Desc) error {
	return status.New(status.Argument, "%s: op.size is %d; this core's pmpi_op has %d bytes", function, desc.Size, C.sizeof_pmpi_op)
}

//export goSubmit
func goSubmit(d *C.pmpi_op, w *C.pmpi_work, r *C.pmpi_result, nested C.int, e *C.pmpi_error) (rc C.int) {
	defer caught(e, &rc)
	if w != nil {
		*w = 0
	}
	desc := (*op.Desc)(unsafe.Pointer(d))
	if desc.Size != C.sizeof_pmpi_op {
		return fill(e, wrongSize("pmpi_submit", desc))
	}
	if desc.Flags&op.FlagAsync != 0 && w == nil {
		return fill(e, status.New(status.Argument, "pmpi_submit: PMPI_FLAG_ASYNC needs a place for the work"))
	}
	id, result, err := gocore.Submit(desc, nested != 0)
	if w != nil {
		*w = C.pmpi_work(id)
	} else if id != 0 {
		gocore.Release(id)
	}
	if err != nil {
		return fill(e, err)
	}
	put(r, result)
	return 0
}

//export goPrepare
func goPrepare(d *C.pmpi_op, e *C.pmpi_error) (rc C.int) {
	defer caught(e, &rc)
	desc := (*op.Desc)(unsafe.Pointer(d))
	if desc.Size != C.sizeof_pmpi_op {
		return fill(e, wrongSize("pmpi_prepare", desc))
	}
	return fill(e, gocore.Prepare(desc))
}

//export goUnprepare
func goUnprepare(prepared C.uint64_t) {
	defer caught(nil, nil)
	registry.ForgetPrepared(uint64(prepared))
}

//export goRefuse
func goRefuse(group C.int64_t, code C.int32_t, e *C.pmpi_error) (rc C.int) {
	defer caught(e, &rc)
	return fill(e, gocore.Refuse(int64(group), op.Code(code)))
}

//export goTest
func goTest(w C.pmpi_work, e *C.pmpi_error) (rc C.int) {
	defer caught(e, &rc)
	done, err := gocore.Test(uint64(w))
	if err != nil {
		return -fill(e, err)
	}
	if done {
		return 1
	}
	return 0
}

//export goWait
func goWait(w C.pmpi_work, limit C.int64_t, r *C.pmpi_result, release C.int, e *C.pmpi_error) (rc C.int) {
	defer caught(e, &rc)
	result, released, err := gocore.Wait(uint64(w), time.Duration(limit), interrupt, release != 0)
	put(r, result)
	if r != nil && released {
		r.released = 1
	}
	return fill(e, err)
}

//export goOrder
func goOrder(w C.pmpi_work, stream C.uint64_t, e *C.pmpi_error) (rc C.int) {
	defer caught(e, &rc)
	return fill(e, gocore.Order(uint64(w), uint64(stream)))
}

//export goTable
func goTable(d *C.pmpi_table_op, n C.int32_t, count *C.int64_t, e *C.pmpi_error) (rc C.int) {
	defer caught(e, &rc)
	ops := unsafe.Slice((*job.TableOp)(unsafe.Pointer(d)), max(0, int(n)))
	if len(ops) > 0 && ops[0].Size != C.sizeof_pmpi_table_op {
		return fill(e, status.New(status.Argument, "pmpi_table: op.size is %d; this core's pmpi_table_op has %d bytes", ops[0].Size, C.sizeof_pmpi_table_op))
	}
	found, err := registry.Servers.Call(ops)
	if count != nil {
		*count = C.int64_t(found)
	}
	return fill(e, err)
}

//export goWindowNew
func goWindowNew(memory *C.pmpi_buf, group, timeout C.int64_t, nested C.int, window *C.int64_t, e *C.pmpi_error) (rc C.int) {
	defer caught(e, &rc)
	id, err := registry.NewWindow((*op.Buf)(unsafe.Pointer(memory)), int64(group), time.Duration(timeout), nested != 0)
	*window = C.int64_t(id)
	return fill(e, err)
}

//export goWindow
func goWindow(o *C.pmpi_window_op, nested C.int, e *C.pmpi_error) (rc C.int) {
	defer caught(e, &rc)
	call := (*window.Op)(unsafe.Pointer(o))
	if call.Size != C.sizeof_pmpi_window_op {
		return fill(e, status.New(status.Argument, "pmpi_window: op.size is %d; this core's pmpi_window_op has %d bytes", call.Size, C.sizeof_pmpi_window_op))
	}
	return fill(e, gocore.CallWindow(call, nested != 0))
}

//export goHeapAlloc
func goHeapAlloc(bytes C.int64_t, e *C.pmpi_error) (p unsafe.Pointer) {
	var rc C.int
	defer caught(e, &rc)
	p, err := gocore.HeapAlloc(int64(bytes))
	fill(e, err)
	return p
}

//export goHeapFree
func goHeapFree(p unsafe.Pointer, e *C.pmpi_error) (rc C.int) {
	defer caught(e, &rc)
	return fill(e, gocore.HeapFree(p))
}

//export goRelease
func goRelease(w C.pmpi_work) (inUse C.int) {
	defer caught(nil, nil)
	inUse = 1 // if Release panics the memory stays
	if gocore.Release(uint64(w)) {
		inUse = 0
	}
	return inUse
}

//export goMemoryFree
func goMemoryFree(w C.pmpi_work) (free C.int) {
	defer caught(nil, nil)
	if work.MemoryFree(uint64(w)) {
		free = 1
	}
	return free
}

//export goNextReleased
func goNextReleased() (w C.pmpi_work) {
	defer caught(nil, nil)
	return C.pmpi_work(work.NextReleased())
}

//export goNextCompletions
func goNextCompletions(out *C.pmpi_completion, room C.int, limit C.int64_t) (n C.int) {
	defer caught(nil, nil)
	var ended [64]work.Completion
	to := unsafe.Slice(out, room)
	got := work.NextCompletions(ended[:min(len(ended), len(to))], time.Duration(limit))
	for i, c := range ended[:got] {
		to[i] = C.pmpi_completion{work: C.pmpi_work(c.ID), cookie: C.uint64_t(c.Cookie), code: C.int32_t(c.Code)}
		put(&to[i].result, c.Result)
		if c.Released {
			to[i].result.released = 1
		}
	}
	return C.int(got)
}

//export goHurry
func goHurry(w C.pmpi_work) {
	defer caught(nil, nil)
	gocore.Hurry(uint64(w))
}

//export goTakeCompletion
func goTakeCompletion(w C.pmpi_work) (taken C.int) {
	defer caught(nil, nil)
	if work.TakeCompletion(uint64(w)) {
		taken = 1
	}
	return taken
}

//export goCompletionFD
func goCompletionFD() C.int { return C.int(work.CompletionFD()) }

//export goBeforeFinalize
func goBeforeFinalize() {
	defer caught(nil, nil)
	gocore.RunFinalizeHook()
}

//export goExit
func goExit(code C.int) {
	defer caught(nil, nil)
	lifecycle.Exit(int(code))
}
