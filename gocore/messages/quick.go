package messages

import "github.com/paddlempi/paddlempi/gocore/transport"

// openQuick lets C carry out short messages of the group by itself, if all members are on this node. It returns nil if it cannot.
func (g *Messages) openQuick() transport.Quick {
	on, ok := g.comm.(transport.QuickOpener)
	if !ok || g.Size < 2 || g.Env.Topo.Joined {
		return nil
	}
	of := transport.QuickGroup{ID: g.id, MaxTag: g.Env.Base.MaxTag(), Crowded: g.Env.Node.Crowded()}
	of.Next, of.Lost, of.Entries, of.Counter = g.Env.Recorder.Ring().Shared()
	return on.OpenQuick(of)
}

// CloseQuick ends what openQuick has begun: the group takes no more calls, or its comm is about to be freed. It does nothing on nil:
// groups that are parts of others have no messages.
func (g *Messages) CloseQuick() {
	if g == nil {
		return
	}
	w := &g.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quick != nil {
		w.quick.Close()
		w.quick = nil
	}
}
