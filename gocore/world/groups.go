package world

import (
	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/trace"
)

// The groups of a world. Members of a group that spans nodes ask each other how far they have come, also one that has freed
// the group. So of each of the groups that were freed last this rank remembers that, and nothing else.

// about is what Env notes of a group.
type about struct {
	id    int64
	key   uint64
	spans bool // its members share no memory, so that they ask each other
}

// mostFreed is how many groups that were freed are remembered. A member that asks about an earlier one gets the answer for a
// group that this rank has not made yet, and waits until its deadline.
const mostFreed = 1024

// freedGroup is how far a rank came in a group that it has freed.
type freedGroup struct {
	standing arrive.Standing
	member   int
}

// freedGroups are the groups that were freed last, by key.
type freedGroups struct {
	byKey map[uint64]freedGroup
	order []uint64 // a ring of keys
	next  int
}

func (f *freedGroups) add(key uint64, g freedGroup) {
	if f.byKey == nil {
		f.byKey = map[uint64]freedGroup{}
	}
	f.byKey[key] = g
	if len(f.order) < mostFreed {
		f.order = append(f.order, key)
		return
	}
	delete(f.byKey, f.order[f.next])
	f.order[f.next] = key
	f.next = (f.next + 1) % mostFreed
}

// Remember enters a group that was made. Its key identifies it on all members; spans says that its members share no memory,
// so that they ask each other.
func (e *Env) Remember(g Group, as trace.Group, spans bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live[g] = about{as.ID, as.Key, spans}
	e.Recorder.ring.Join(as)
	if spans {
		e.byKey[as.Key] = g
	}
}

// Forget removes a group that was freed, or that its members never use.
func (e *Env) Forget(g Group) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was, there := e.live[g]
	if !there {
		return
	}
	delete(e.live, g)
	e.Recorder.ring.Leave(was.id)
	if was.spans {
		delete(e.byKey, was.key)
		e.freed.add(was.key, freedGroup{g.Standing(), g.Member()})
	}
}

// groupOf returns the group that spans nodes and has a key; nil if there is none.
func (e *Env) groupOf(key uint64) Group {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.byKey[key]
}

// standingOf returns how far this rank has come in the group that spans nodes and has a key, or came in it, and which member
// it is. ok is false if it knows of no such group.
func (e *Env) standingOf(key uint64) (s arrive.Standing, member int, ok bool) {
	e.mu.Lock()
	g, freed := e.byKey[key], e.freed.byKey
	was, ok := freed[key]
	e.mu.Unlock()
	if g != nil {
		return g.Standing(), g.Member(), true
	}
	return was.standing, was.member, ok
}
