package registry

import (
	"sync"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/window"
)

// windows has all windows by their ids. One that has ended stays as long as its memory is used.
var windows ByNumber[*window.Window]

// reformedWindow is the greatest number of a window that was made before the last reform.
var reformedWindow atomic.Int64

// makers has what makes the windows of each group, and closes them: of *group.Group to *window.Windows.
var makers sync.Map

// Window returns a window, for a call that what names.
func Window(what string, id int64) (*window.Window, error) {
	if w, ok := windows.Get(id); ok {
		return w, nil
	}
	if id <= 0 {
		return nil, status.New(status.Argument, "%s: there is no window %d", what, id)
	}
	if id <= reformedWindow.Load() {
		return nil, status.New(status.GroupDestroyed, "%s: the window was of a world that was reformed, or was freed before; make a new one", what)
	}
	return nil, status.New(status.GroupDestroyed, "%s: the window was freed, or its group was destroyed", what)
}

// ForgetWindows forgets the windows that have ended and whose memory nobody uses.
func ForgetWindows() {
	windows.forgetIf((*window.Window).Over)
}

// reformWindows ends the use of all windows by their numbers.
func reformWindows() {
	for _, w := range windows.All() {
		reformedWindow.Store(max(reformedWindow.Load(), w.ID()))
	}
}

// eachMaker calls f for what makes the windows of each group that belongs returns true for.
func eachMaker(belongs func(*group.Group) bool, f func(g any, m *window.Windows)) {
	makers.Range(func(g, m any) bool {
		if belongs(g.(*group.Group)) {
			f(g, m.(*window.Windows))
		}
		return true
	})
}

// closeWindows closes the windows of the groups that belongs returns true for. leaving is as for Windows.Close.
func closeWindows(belongs func(*group.Group) bool, leaving bool) {
	makers.Range(func(g, _ any) bool {
		if belongs(g.(*group.Group)) {
			if maker, ok := makers.LoadAndDelete(g); ok {
				maker.(*window.Windows).Close(leaving)
			}
		}
		return true
	})
	ForgetWindows()
}
