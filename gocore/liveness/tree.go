package liveness

import "slices"

// tree is the tree of all ranks. Its upper part has a rank of each node, the leader: the lowest rank of
// the node that lives. Nodes form a tree with fan children each, in the order of their numbers. The
// other ranks of a node are children of its leader.
//
// Every rank finds its parent by itself, from what it knows to be gone. A parent has a lower number than
// its child (the node's number, or else the rank's), so there is no cycle even while ranks know
// different things.
type tree struct {
	rank  int
	node  []int
	ranks [][]int // ranks of each node, in order
}

// fan is the number of children of a node. With 4 of them, 1,024 nodes are 5 levels deep, so a death
// is known everywhere after 10 messages one after another. A larger number saves few levels, but more
// nodes have to connect anew when a leader dies.
const fan = 4

func newTree(rank int, node []int) tree {
	t := tree{rank: rank, node: node}
	for r, n := range node {
		for len(t.ranks) <= n {
			t.ranks = append(t.ranks, nil)
		}
		t.ranks[n] = append(t.ranks[n], r)
	}
	return t
}

// everyone says that a rank lives.
func everyone(int) bool { return true }

// leader returns the leader of a node, -1 if no rank of it lives.
func (t *tree) leader(node int, living func(rank int) bool) int {
	if i := slices.IndexFunc(t.ranks[node], living); i >= 0 {
		return t.ranks[node][i]
	}
	return -1
}

// parent returns the parent of a rank, -1 if that is the root. A leader's parent is the leader of the
// next node above that has one. If there is none, all leaders without a parent gather below the lowest.
func (t *tree) parent(rank int, living func(rank int) bool) int {
	mine := t.node[rank]
	if r := t.leader(mine, func(r int) bool { return r == rank || living(r) }); r != rank {
		return r
	}
	for n := mine; n > 0; {
		n = (n - 1) / fan
		if r := t.leader(n, living); r >= 0 {
			return r
		}
	}
	for n := range mine {
		if r := t.leader(n, living); r >= 0 {
			return r
		}
	}
	return -1
}
