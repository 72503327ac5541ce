package collective

import "slices"

// Revocation is a group as the revocation of its world sees it: world.Revocable.
type Revocation struct{ g *Group }

// RevocationOf returns that of g.
func RevocationOf(g *Group) Revocation { return Revocation{g} }

// Quiet tells whether no thread of a caller is at work in a collective. What the engine takes further may be under way.
func (r Revocation) Quiet() bool {
	t := &r.g.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.busy || t.current != nil
}

// Go says that this member looks at nothing any more that the members share.
func (r Revocation) Go() {
	for _, g := range r.parts() {
		if g.Node != nil {
			g.Node.Slots.Go()
		}
	}
}

// Bury ends what dead members, by world rank, have left undone in the memory of this rank. The others have gone.
func (r Revocation) Bury(dead []int) {
	for _, g := range r.parts() {
		for i, rank := range g.Ranks {
			if g.Node == nil || !slices.Contains(dead, rank) {
				continue
			}
			g.Node.Slots.Bury(i)
			if c := g.turns.current; c != nil && c.chunks.op != nil {
				c.chunks.op.FailPeer(i)
			}
		}
	}
}

// parts returns the group, and that of its members on this node, if it has one.
func (r Revocation) parts() []*Group {
	if r.g.Here == nil {
		return []*Group{r.g}
	}
	return []*Group{r.g, r.g.Here}
}
