package gocore

import (
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// joinRequest is what the methods that join two parties have in common.
type joinRequest struct {
	Group   int64    `json:"group"`
	Timeout *float64 `json:"timeout"`
	// accept and connect
	Address    string `json:"address"`
	Secret     []byte `json:"secret"` // base64
	SecretFile string `json:"secret_file"`
	Version    string `json:"version"`
	// spawn
	Command []string `json:"command"`
	N       int      `json:"n"`
}

// joinReply describes a world of two parties: the group of all its ranks, and where both parties are in it.
type joinReply struct {
	Group      int64 `json:"group"`
	Rank       int   `json:"rank"` // of this process, in that group
	Size       int   `json:"size"` // of this party
	RemoteSize int   `json:"remote_size"`
	First      bool  `json:"first"` // the ranks of this party come first
}

// parseJoin reads the request of a method, and returns the group that is this party.
func parseJoin(what string, request []byte) (r joinRequest, g *group.Group, err error) {
	if err = method.Parse(what, request, &r); err == nil {
		g, err = groupOf(r.Group)
	}
	return r, g, err
}

// mostSpawned is the greatest number of processes of a spawn.
const mostSpawned = 1 << 20

func controlAccept(request []byte, interrupt work.Interrupt) (any, error) {
	return meetJob("accept", true, request, interrupt)
}

func controlConnect(request []byte, interrupt work.Interrupt) (any, error) {
	return meetJob("connect", false, request, interrupt)
}

func meetJob(what string, first bool, request []byte, interrupt work.Interrupt) (any, error) {
	r, g, err := parseJoin(what, request)
	if err != nil {
		return nil, err
	}
	by := &byTCP{what: what, first: first, address: r.Address, secret: r.Secret, file: r.SecretFile, card: cardOf(g, r.Version)}
	return joined(what, g, by, r.Timeout, first, interrupt)
}

func controlSpawn(request []byte, interrupt work.Interrupt) (any, error) {
	r, g, err := parseJoin("spawn", request)
	if err != nil {
		return nil, err
	}
	if len(r.Command) == 0 || r.Command[0] == "" {
		return nil, status.New(status.Argument, "spawn: command is empty")
	}
	if r.N < 1 || r.N > mostSpawned {
		return nil, status.New(status.Argument, "spawn: n=%d is not from 1 to %d", r.N, mostSpawned)
	}
	by := &bySpawn{transport.Command{Argv: r.Command, N: r.N}}
	return joined("spawn", g, by, r.Timeout, true, interrupt)
}

// controlParent returns null if this process was not spawned.
func controlParent(request []byte, interrupt work.Interrupt) (any, error) {
	var r joinRequest
	if err := method.Parse("get_parent", request, &r); err != nil {
		return nil, err
	}
	w, err := initialWorld()
	if err != nil {
		return nil, err
	}
	if j, ok := w.env.Base.(transport.Joiner); !ok {
		return nil, nil
	} else if spawned, err := j.Spawned(); err != nil || !spawned {
		return nil, err
	}
	if n, err := w.lib.Size(w.lib.World()); err != nil || n != w.env.Topo.Size {
		return nil, status.New(status.Unsupported, "get_parent: the world has %d of the %d processes that were spawned together; it takes all", w.env.Topo.Size, n)
	}
	return joined("get_parent", w.all.Load(), byParents{}, r.Timeout, false, interrupt)
}

func joined(what string, g *group.Group, by way, limit *float64, first bool, interrupt work.Interrupt) (any, error) {
	timeout := g.Timeout()
	if limit != nil {
		timeout = method.Seconds(limit)
	}
	w, err := join(what, g, by, timeout, interrupt)
	if err != nil {
		return nil, err
	}
	t := w.env.Topo
	return joinReply{Group: w.all.Load().ID, Rank: t.Rank, Size: g.Size, RemoteSize: t.Size - g.Size, First: first}, nil
}

func controlDisconnect(request []byte, interrupt work.Interrupt) (any, error) {
	var r struct {
		Group   int64    `json:"group"`
		Timeout *float64 `json:"timeout"`
	}
	if err := method.Parse("disconnect", request, &r); err != nil {
		return nil, err
	}
	if err := healthy(); err != nil {
		return nil, err
	}
	w := guests.of(r.Group)
	if w == nil {
		return nil, status.New(status.GroupDestroyed, "disconnect: group %d is no group of two parties, or was disconnected", r.Group)
	}
	limit := w.all.Load().Timeout()
	if r.Timeout != nil {
		limit = method.Seconds(r.Timeout)
	}
	return struct{}{}, w.disconnect(limit, interrupt)
}
