package gocore

import (
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/heap"
	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/window"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Poison makes every later call fail, after a panic.
func Poison(why string) { registry.Poison(why) }

// Submit carries out an operation, or starts it. id is the number of the work, 0 if the operation
// is over. If Submit fails, id is 0 unless MPI may still use the memory. nested says that the call
// comes from a handler that interrupted a wait of its own thread.
func Submit(d *op.Desc, nested bool) (id uint64, r work.Result, err error) {
	var h *work.Handle
	if d.Prepared != 0 {
		h, r, err = submitPrepared(d, nested)
	} else {
		var g *group.Group
		if g, err = registry.Group(d.Group); err != nil {
			return 0, r, status.New(status.CodeOf(err), "%s: %v", d.Code, err)
		}
		h, r, err = g.Submit(d, nested)
	}
	if h == nil {
		return 0, r, err
	}
	if err != nil {
		return work.Register(h), r, err
	}
	if h.Done() && d.Flags&op.FlagNotify == 0 {
		if r, err := h.Result(); err == nil && r.Device == 0 {
			return 0, r, nil
		}
	}
	return work.Register(h), work.Result{}, nil
}

func submitPrepared(d *op.Desc, nested bool) (*work.Handle, work.Result, error) {
	p, err := registry.Prepared(d)
	if err != nil {
		return nil, work.Result{}, err
	}
	return p.Submit(d, nested)
}

// Prepare checks an operation that will be submitted again and again. It sets d.Prepared to its number, and d.Group to
// the id of its group, so that 0 cannot come to stand for another world.
func Prepare(d *op.Desc) error {
	g, err := registry.Group(d.Group)
	if err != nil {
		return status.New(status.CodeOf(err), "%s: %v", d.Code, err)
	}
	p, err := g.Prepare(d)
	if err != nil {
		return err
	}
	d.Group, d.Prepared = g.ID, registry.AddPrepared(p)
	return nil
}

// Refuse tells the members of a group that this rank takes no part in their next collective.
func Refuse(id int64, code op.Code) error {
	g, err := registry.Group(id)
	if err != nil {
		return err
	}
	return g.Refuse(code)
}

// CallWindow carries out a call of a window.
func CallWindow(o *window.Op, nested bool) error {
	if err := registry.Healthy(); err != nil {
		return err
	}
	w, err := registry.Window(o.Code.String(), o.Window)
	if err != nil {
		return err
	}
	if o.Code != window.Free {
		return w.Call(o, nested)
	}
	err = w.Free(time.Duration(o.TimeoutNS), nested)
	registry.ForgetWindows()
	return err
}

// HeapAlloc takes memory of this process's heap. It works before init and after destroy.
func HeapAlloc(bytes int64) (unsafe.Pointer, error) {
	h, err := heap.OfProcess()
	if err != nil {
		return nil, err
	}
	return h.Alloc(bytes)
}

// HeapFree gives memory of HeapAlloc back.
func HeapFree(p unsafe.Pointer) error {
	h, err := heap.OfProcess()
	if err != nil {
		return err
	}
	return h.Free(p)
}

// Result is what a receive or a probe returns.
type Result = work.Result

// Wait waits until a work is over, up to limit. If limit is negative, it waits until the
// operation's own deadline. If release is set, and the work succeeded and left nothing on a device,
// Wait releases it and returns released = true. released is also true if the work does not exist,
// because another thread has released it. A work may outlive its world.
func Wait(id uint64, limit time.Duration, interrupt work.Interrupt, release bool) (r Result, released bool, err error) {
	h, err := lookup(id)
	if err != nil {
		return r, status.CodeOf(err) != status.Panic, err
	}
	r, err = h.Wait(limit, interrupt)
	return r, release && err == nil && h.Forget(), err
}

// Test advances a work without waiting, and returns whether it is over.
func Test(id uint64) (bool, error) {
	h, err := lookup(id)
	if err != nil {
		return false, err
	}
	return h.Test()
}

// Order makes a stream of the device wait for what a work has left queued there.
func Order(id, stream uint64) error {
	h, err := lookup(id)
	if err == nil {
		err = h.Order(stream)
	}
	return err
}

func lookup(id uint64) (*work.Handle, error) {
	if err := registry.Healthy(); err != nil {
		return nil, err
	}
	return work.Lookup(id)
}

// Hurry says that no thread is going to wait for a work.
func Hurry(id uint64) {
	if h, err := work.Lookup(id); err == nil {
		h.Hurry()
	}
}

// Release releases a work, which goes on if it is not over. It returns whether the work's memory
// may be freed. If not, work.NextReleased returns the work when it may.
func Release(id uint64) (free bool) { return work.Release(id) }

// SetFinalizeHook sets the C function that MPI_Finalize calls; it must call RunFinalizeHook. See
// mpi.SetFinalizeHook.
func SetFinalizeHook(hook unsafe.Pointer) { mpi.SetFinalizeHook(hook) }

// RunFinalizeHook calls lifecycle.BeforeFinalize, while MPI still works.
func RunFinalizeHook() { mpi.RunFinalizeHook() }
