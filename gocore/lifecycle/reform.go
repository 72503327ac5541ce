package lifecycle

import (
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// reforming is where a Reform under way looks why it has to end; nil while there is none.
var reforming atomic.Pointer[atomic.Pointer[status.Error]]

// Revoke ends the first world, on this rank and on all others, because of why. When it returns, no thread of this process writes
// into memory of another one. It does nothing without a world, or to one that this rank has revoked. A Reform
// under way ends, too.
func Revoke(why string) error {
	for {
		if given := reforming.Load(); given != nil {
			given.Store(status.New(status.Revoked, "reform: given up: %s", why))
			return nil
		}
		if registry.Starting.TryLock() {
			break
		}
		time.Sleep(time.Millisecond) // a Reform that has just begun says soon where to look
	}
	defer registry.Starting.Unlock()
	w := registry.InitialOrNil()
	if w == nil || w.Env.Revoked() {
		return nil
	}
	w.Env.Announce(why)
	return endRevoked(w)
}

// Reform is Init in the place of the first world, which this rank has revoked. The ranks of the new world have met since: they have
// all revoked theirs.
func Reform(o Options) error {
	registry.Starting.Lock()
	defer registry.Starting.Unlock()
	defer o.Close()
	if err := registry.Healthy(); err != nil {
		return err
	}
	if w := registry.InitialOrNil(); w != nil {
		if !w.Env.Revoked() {
			return status.New(status.AlreadyInitialized, "reform: the world was not revoked")
		}
		giveUp(w)
	} else {
		abandon()
	}
	var why atomic.Pointer[status.Error]
	reforming.Store(&why)
	defer reforming.Store(nil)
	interrupt := o.Interrupt
	o.Interrupt = func() error {
		if given := why.Load(); given != nil {
			return given
		}
		if interrupt == nil {
			return nil
		}
		return interrupt()
	}
	return begin(o)
}
