package gocore

import (
	"time"

	"github.com/paddlempi/paddlempi/gocore/crash"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/window"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// WindowOp is one call of a window.
type WindowOp = window.Op

// NewWindow makes a window of this rank's memory. It is collective over the group.
func NewWindow(memory *op.Buf, id int64, timeout time.Duration, nested bool) (int64, error) {
	g, err := groupOf(id)
	if err != nil {
		return 0, status.New(status.CodeOf(err), "Window: %v", err)
	}
	w, err := windowsOf(g).New(memory, timeout, nested)
	if err != nil {
		return 0, err
	}
	rememberWindow(w)
	crash.NameWindow(w.ID(), g.ID)
	return w.ID(), nil
}

// CallWindow carries out a call of a window.
func CallWindow(o *WindowOp, nested bool) error {
	if err := healthy(); err != nil {
		return err
	}
	w, err := windowOf(o.Code.String(), o.Window)
	if err != nil {
		return err
	}
	if o.Code != window.Free {
		return w.Call(o, nested)
	}
	err = w.Free(time.Duration(o.TimeoutNS), nested)
	forgetWindows()
	return err
}

// controlWindowInfo describes a window.
func controlWindowInfo(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Window int64 `json:"window"`
	}
	if err := method.Parse("window_info", request, &r); err != nil {
		return nil, err
	}
	w, err := windowOf("window_info", r.Window)
	if err != nil {
		return nil, err
	}
	return map[string]any{"dtype": w.DType().String(), "shapes": w.Shapes(), "mapped": w.Mapped()}, nil
}

// controlWindowInUse tells whether memory may still be used of a window that was freed.
func controlWindowInUse(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Window int64 `json:"window"`
	}
	if err := method.Parse("window_in_use", request, &r); err != nil {
		return nil, err
	}
	w, err := windowOf("window_in_use", r.Window)
	return map[string]any{"in_use": err == nil && !w.Over()}, nil
}

// controlWindowMap returns where the memory of a rank is in this process, 0 if it is not there.
func controlWindowMap(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Window int64 `json:"window"`
		Rank   int   `json:"rank"`
	}
	if err := method.Parse("window_map", request, &r); err != nil {
		return nil, err
	}
	w, err := windowOf("window_map", r.Window)
	if err != nil {
		return nil, err
	}
	at, bytes, err := w.Map(r.Rank)
	return map[string]any{"address": uint64(uintptr(at)), "bytes": bytes}, err
}

// controlWindowUnmap takes one window_map back.
func controlWindowUnmap(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Window int64 `json:"window"`
		Rank   int   `json:"rank"`
	}
	if err := method.Parse("window_unmap", request, &r); err != nil {
		return nil, err
	}
	if w, err := windowOf("window_unmap", r.Window); err == nil {
		w.Unmap(r.Rank)
		forgetWindows()
	}
	return struct{}{}, nil
}
