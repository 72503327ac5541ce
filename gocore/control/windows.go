package control

import (
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// windowRequest names a window, and for some methods a rank.
type windowRequest struct {
	Window int64 `json:"window"`
	Rank   int   `json:"rank"`
}

// windowInfo describes a window.
func windowInfo(r windowRequest, _ work.Interrupt) (any, error) {
	w, err := registry.Window("window_info", r.Window)
	if err != nil {
		return nil, err
	}
	return map[string]any{"dtype": w.DType().String(), "shapes": w.Shapes(), "mapped": w.Mapped()}, nil
}

// windowInUse tells whether memory may still be used of a window that was freed.
func windowInUse(r windowRequest, _ work.Interrupt) (any, error) {
	w, err := registry.Window("window_in_use", r.Window)
	return map[string]any{"in_use": err == nil && !w.Over()}, nil
}

// windowMap returns where the memory of a rank is in this process, 0 if it is not there.
func windowMap(r windowRequest, _ work.Interrupt) (any, error) {
	w, err := registry.Window("window_map", r.Window)
	if err != nil {
		return nil, err
	}
	at, bytes, err := w.Map(r.Rank)
	return map[string]any{"address": uint64(uintptr(at)), "bytes": bytes}, err
}

// windowUnmap takes one window_map back.
func windowUnmap(r windowRequest, _ work.Interrupt) (any, error) {
	if w, err := registry.Window("window_unmap", r.Window); err == nil {
		w.Unmap(r.Rank)
		registry.ForgetWindows()
	}
	return done, nil
}
