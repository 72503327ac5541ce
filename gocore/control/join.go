package control

import (
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/join"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// joined describes the world that a call has made of the members of g and another party; nil if it has made none. first says
// that the ranks of this party come first.
func joined(g *group.Group, first bool, w *registry.World, err error) (any, error) {
	if err != nil || w == nil {
		return nil, err
	}
	t := w.Env.Topo
	return map[string]any{"group": w.All().ID, "rank": t.Rank, "size": g.Size, "remote_size": t.Size - g.Size, "first": first}, nil
}

// call is the call that a request asks for.
func (r *timeoutRequest) call(what string, g *group.Group, interrupt work.Interrupt) join.Call {
	timeout := method.SecondsOr(r.Timeout, g.Timeout())
	return join.Call{What: what, Group: g, Timeout: timeout, Interrupt: interrupt}
}

type meetRequest struct {
	timeoutRequest
	join.Other
}

func accept(g *group.Group, r meetRequest, interrupt work.Interrupt) (any, error) {
	w, err := r.call("accept", g, interrupt).Accept(r.Other)
	return joined(g, true, w, err)
}

func connect(g *group.Group, r meetRequest, interrupt work.Interrupt) (any, error) {
	w, err := r.call("connect", g, interrupt).Connect(r.Other)
	return joined(g, false, w, err)
}

type spawnRequest struct {
	timeoutRequest
	Command []string `json:"command"`
	N       int      `json:"n"`
}

// mostSpawned is the greatest number of processes of a spawn.
const mostSpawned = 1 << 20

func spawn(g *group.Group, r spawnRequest, interrupt work.Interrupt) (any, error) {
	if len(r.Command) == 0 || r.Command[0] == "" {
		return nil, status.New(status.Argument, "spawn: command is empty")
	}
	if r.N < 1 || r.N > mostSpawned {
		return nil, status.New(status.Argument, "spawn: n=%d is not from 1 to %d", r.N, mostSpawned)
	}
	w, err := r.call("spawn", g, interrupt).Spawn(r.Command, r.N)
	return joined(g, true, w, err)
}

// getParent returns null if this process was not spawned.
func getParent(g *group.Group, r timeoutRequest, interrupt work.Interrupt) (any, error) {
	w, err := r.call("get_parent", g, interrupt).Parents()
	return joined(g, false, w, err)
}

func disconnect(r timeoutRequest, interrupt work.Interrupt) (any, error) {
	if err := registry.Healthy(); err != nil {
		return nil, err
	}
	w, ok := registry.Guests.Get(r.Group)
	if !ok {
		return nil, status.New(status.GroupDestroyed, "disconnect: group %d is no group of two parties, or was disconnected", r.Group)
	}
	return done, join.Disconnect(w, method.SecondsOr(r.Timeout, w.All().Timeout()), interrupt)
}
