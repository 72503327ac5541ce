package admin

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// How many connections a server has at the same time, so that strangers do not use up the
// descriptors of the process. A connection is silent until a call on it has shown the token. Silent
// ones leave room for the others, and those of one address for those of other addresses.
const (
	maxConnections = 4096
	maxSilent      = 3072
	maxSilentOfOne = 64
	// The oldest silent connection goes where a new one needs its place, unless it is so young that
	// it may be a trainer's whose call is under way.
	youngSilent = 5 * time.Second
)

// room knows the connections of a server.
type room struct {
	mu                  sync.Mutex
	most, silent, ofOne int
	young               time.Duration
	now                 func() time.Time
	open                int
	waiting             []*guest           // the silent ones, the oldest first
	from                map[netip.Addr]int // how many of them an address has
	byEnds              map[string]*guest  // all
}

// guest is a connection of a room.
type guest struct {
	net.Conn
	ends  string
	from  netip.Addr
	since time.Time
	known bool // it has shown the token
}

func newRoom() *room {
	return &room{most: maxConnections, silent: maxSilent, ofOne: maxSilentOfOne, young: youngSilent, now: time.Now,
		from: map[netip.Addr]int{}, byEnds: map[string]*guest{}}
}

// ends names a connection.
func ends(local, remote net.Addr) string { return fmt.Sprint(local, " ", remote) }

// enter takes a new connection in, and closes an older one if that has to go. It returns false if
// there is no room.
func (r *room) enter(c net.Conn) bool {
	g := &guest{Conn: c, ends: ends(c.LocalAddr(), c.RemoteAddr())}
	if at, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		g.from = at.Addr().Unmap()
	}
	r.mu.Lock()
	g.since = r.now()
	var goes *guest
	switch mine := r.from[g.from] >= r.ofOne; {
	case mine, len(r.waiting) >= r.silent, r.open >= r.most:
		at := slices.IndexFunc(r.waiting, func(w *guest) bool { return !mine || w.from == g.from })
		if at < 0 || g.since.Sub(r.waiting[at].since) < r.young {
			r.mu.Unlock()
			return false
		}
		goes = r.waiting[at]
		r.forgetLocked(goes)
	}
	r.open++
	r.byEnds[g.ends] = g
	r.waiting = append(r.waiting, g)
	r.from[g.from]++
	r.mu.Unlock()
	if goes != nil {
		_ = goes.Close()
	}
	return true
}

// shown notes that a call has shown the token.
func (r *room) shown(local, remote net.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.byEnds[ends(local, remote)]; g != nil {
		r.knownLocked(g)
	}
}

// leave forgets a connection that is closed.
func (r *room) leave(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.byEnds[ends(c.LocalAddr(), c.RemoteAddr())]; g != nil && g.Conn == c {
		r.forgetLocked(g)
	}
}

// shut closes the silent connections, and lets no others in.
func (r *room) shut() {
	r.mu.Lock()
	r.most, r.silent = 0, 0
	all := slices.Clone(r.waiting)
	for _, g := range all {
		r.forgetLocked(g)
	}
	r.mu.Unlock()
	for _, g := range all {
		_ = g.Close()
	}
}

func (r *room) forgetLocked(g *guest) {
	r.knownLocked(g)
	delete(r.byEnds, g.ends)
	r.open--
}

// knownLocked takes a connection out of the silent ones.
func (r *room) knownLocked(g *guest) {
	if g.known {
		return
	}
	g.known = true
	r.waiting = slices.DeleteFunc(r.waiting, func(w *guest) bool { return w == g })
	if r.from[g.from]--; r.from[g.from] == 0 {
		delete(r.from, g.from)
	}
}
