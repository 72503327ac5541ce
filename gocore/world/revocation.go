package world

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/paddlempi/paddlempi/gocore/mailbox"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport/memory"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// A member may revoke its world: every wait of every member ends at once, with an error of code Revoked. Members look at a
// word in memory that their node shares; those of other nodes get a letter. A world that was revoked is over. Nobody waits for
// anybody in it, so it has no departure. A member that writes into nobody's memory any more says so (Node.Go); when all others
// have said so, or are dead, what is left of the world is given back (Abandon).

const (
	// revocationBytes is the memory behind the control slots of a node that says who has revoked the world, and why.
	revocationBytes = 512
	// unsaid is in the word while the text is being written. Its writer may die then.
	unsaid = 1 << 31
	// quietLimit is how long a thread of this process may take to come out of the collective in which it works.
	quietLimit = 10 * time.Second
)

// revocation says who has revoked the world, and why. The members of a node share it.
type revocation struct {
	by     uint32 // 0: nobody; 1 + the rank, with unsaid while its text is not there
	length uint32
	text   [revocationBytes - 8]byte
}

// write revokes the world, unless somebody has.
func (r *revocation) write(rank int, why string) {
	by := uint32(rank) + 1
	if !atomic.CompareAndSwapUint32(&r.by, 0, by|unsaid) {
		return
	}
	atomic.StoreUint32(&r.length, uint32(copy(r.text[:], why)))
	atomic.StoreUint32(&r.by, by)
}

// read returns who has revoked the world, and why; nil if nobody has.
func (r *revocation) read() *status.Error {
	by := atomic.LoadUint32(&r.by)
	if by == 0 {
		return nil
	}
	n := 0
	if by&unsaid == 0 {
		n = min(int(atomic.LoadUint32(&r.length)), len(r.text)) // another process may write anything there
	}
	return status.New(status.Revoked, "rank %d has revoked the world: %s", by&^unsaid-1, status.ASCII(string(r.text[:n])))
}

// shareRevocation opens what says in the memory behind the control slots who has revoked the world. Where there is none, each
// member has one of its own.
func (n *Node) shareRevocation() {
	n.revocation = new(revocation)
	if n.Presence != nil {
		n.revocation = (*revocation)(n.Presence.Behind())
	}
}

// revoked returns the error of all operations if some member has revoked the world, nil if none has.
func (e *Env) revoked() *status.Error {
	if e.Node == nil || atomic.LoadUint32(&e.Node.revocation.by) == 0 {
		return nil
	}
	e.Departure.ended.CompareAndSwap(nil, e.Node.revocation.read())
	return e.Departure.ended.Load()
}

// hear takes in the letter of a member of another node that has revoked the world.
func (e *Env) hear(from int, _ uint64, body []byte) {
	if e.Node != nil { // else this rank is in init still, and hears of the death there
		e.Node.revocation.write(from, string(body))
		e.Node.bells.RingAll()
	}
}

// Announce ends every wait of the world, on this rank and on all others, because of why. Revoke follows.
func (e *Env) Announce(why string) {
	why = why[:min(len(why), len(e.Node.revocation.text))]
	e.Node.revocation.write(e.Topo.Rank, why)
	e.Node.bells.RingAll()
	e.tellOtherNodes(why)
	e.Departure.ended.Store(e.Node.revocation.read())
}

// Revoke returns when no thread of this process writes into memory of other ranks any more; false if one may, because it does
// not come back from where it is. The groups take no more calls.
func (e *Env) Revoke() (quiet bool) {
	d, groups, ends := &e.Departure, e.Groups.all(), e.Groups.revocable()
	for _, g := range groups {
		g.RefuseCalls()
	}
	allQuiet := func() bool { return !slices.ContainsFunc(ends, func(r Revocable) bool { return !r.Quiet() }) }
	if !GiveUp(e.Engine, func() bool { return d.users.Load() == 0 && noneUnderWay(groups) }) {
		_ = e.Engine.Wait(allQuiet, time.Now().Add(quietLimit), nil)
	}
	e.Groups.Watcher.End()
	stopped := e.Engine.Stop(d.ended.Load(), giveUpLimit)
	d.revoked.Store(true)
	d.stuck = !stopped || d.users.Load() > 0 || !allQuiet()
	if d.stuck {
		return false
	}
	for _, c := range e.carriers() {
		for member := range c.Size() {
			c.FailPeer(member) // from here on no thread writes messages
		}
	}
	for _, r := range ends {
		r.Go()
	}
	e.Node.Go()
	return true
}

func noneUnderWay(groups []Group) bool {
	return all(groups, func(g Group) bool { return !g.UnderWay() })
}

// tellOtherNodes sends a letter to every rank that does not share the memory of this node.
func (e *Env) tellOtherNodes(why string) {
	for r := range e.Topo.Node {
		if r != e.Topo.Rank && (e.Node.Presence == nil || !slices.Contains(e.Node.Ranks, r)) {
			e.Mail.Send(r, mailbox.Revoke, mailbox.OfProcess, []byte(why))
		}
	}
}

// Reform says that this process goes on in another world than this one, which it has revoked.
func (e *Env) Reform() { e.Departure.reformed.Store(true) }

// Reformed tells whether it does.
func (e *Env) Reformed() bool { return e.Departure.reformed.Load() }

// WasRevoked tells whether some member has revoked the world.
func (e *Env) WasRevoked() bool { return e.revoked() != nil }

// Revoked tells whether Revoke was called on this rank.
func (e *Env) Revoked() bool { return e.Departure.revoked.Load() }

// Abandon gives back what a world that this rank has revoked is made of, but communicators of MPI; windows gives back what is made
// of its groups. Abandon does nothing and returns false while another member of this node, or MPI, may still write into memory of
// this process.
func (e *Env) Abandon(windows func()) bool {
	d := &e.Departure
	if d.stuck {
		return false
	}
	var dead []int
	for i, r := range e.Node.Ranks {
		switch {
		case r == e.Topo.Rank || e.Node.Presence == nil || e.Node.Presence.Left(i):
		case e.Node.EndedNow(r):
			dead = append(dead, r)
		default:
			return false
		}
	}
	groups := e.Groups.all()
	for _, r := range e.Groups.revocable() {
		r.Bury(dead)
	}
	if !GiveUp(work.NewEngine(), func() bool { e.Engine.Tick(); return noneUnderWay(groups) }) {
		return false
	}
	windows()
	for _, g := range groups {
		_ = g.Free(status.Revoked) // it fails only for communicators, which are of no use any more
	}
	e.Recorder.Close()
	e.Roster.Leave(true)
	for _, c := range e.carriers() {
		memory.Abandon(c)
	}
	e.Node.close()
	d.closed = true
	return true
}

// carriers returns what carries messages in memory of this node.
func (e *Env) carriers() (list []*memory.Comm) {
	if c, ok := e.Base.(*memory.Comm); ok {
		list = append(list, c)
	}
	if e.Node.local != nil {
		list = append(list, e.Node.local)
	}
	return list
}
