package gocore

import (
	"sync"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/window"
)

// windows has the windows of all groups. A window that has ended stays as long as its memory is used.
var windows struct {
	mu   sync.Mutex
	of   map[*group.Group]*window.Windows
	byID map[int64]*window.Window
}

// windowsOf returns the windows of a group.
func windowsOf(g *group.Group) *window.Windows {
	windows.mu.Lock()
	defer windows.mu.Unlock()
	if windows.of == nil {
		windows.of, windows.byID = map[*group.Group]*window.Windows{}, map[int64]*window.Window{}
	}
	if windows.of[g] == nil {
		windows.of[g] = window.Of(g)
	}
	return windows.of[g]
}

// rememberWindow enters a new window.
func rememberWindow(w *window.Window) {
	windows.mu.Lock()
	defer windows.mu.Unlock()
	windows.byID[w.ID()] = w
}

// windowOf returns a window, for a call that what names.
func windowOf(what string, id int64) (*window.Window, error) {
	windows.mu.Lock()
	defer windows.mu.Unlock()
	if w := windows.byID[id]; w != nil {
		return w, nil
	}
	if id <= 0 {
		return nil, status.New(status.Argument, "%s: there is no window %d", what, id)
	}
	return nil, status.New(status.GroupDestroyed, "%s: the window was freed, or its group was destroyed", what)
}

// forgetWindows forgets the windows that have ended and whose memory nobody uses.
func forgetWindows() {
	windows.mu.Lock()
	defer windows.mu.Unlock()
	for id, w := range windows.byID {
		if w.Over() {
			delete(windows.byID, id)
		}
	}
}

// closeWindows closes the windows of those groups of which is is true. leaving is as for Windows.Close.
func closeWindows(is func(*group.Group) bool, leaving bool) {
	windows.mu.Lock()
	var ending []*window.Windows
	for g, all := range windows.of {
		if is(g) {
			ending = append(ending, all)
			delete(windows.of, g)
		}
	}
	windows.mu.Unlock()
	for _, all := range ending {
		all.Close(leaving)
	}
	forgetWindows()
}
