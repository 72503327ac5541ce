package liveness

import (
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// nodes returns the nodes of a job with so many ranks on each.
func nodes(count, each int) (node []int) {
	for n := range count {
		for range each {
			node = append(node, n)
		}
	}
	return node
}

// depth returns the number of connections between a rank and the root.
func depth(t *tree, rank int, living func(int) bool) (d int) {
	for r := t.parent(rank, living); r >= 0; r = t.parent(r, living) {
		d++
	}
	return d
}

// The figures of docs/reliability.md.
func TestTreeOf1024Nodes(t *testing.T) {
	const count, each = 1024, 8
	node := nodes(count, each)
	tr := newTree(0, node)
	children, deepest, edges := map[int]int{}, 0, 0
	for r := range node {
		deepest = max(deepest, depth(&tr, r, everyone))
		if p := tr.parent(r, everyone); p >= 0 {
			edges++
			children[p]++
		}
	}
	most := 0
	for _, n := range children {
		most = max(most, n)
	}
	assert.Equal(t, 6, deepest, "5 levels of nodes, and the ranks of a node")
	assert.Equal(t, count*each-1, edges, "a fact crosses each connection once")
	assert.Equal(t, fan+each-1, most, "connections that a leader accepts")
	// The model: a message takes 0.2 ms from one rank's core to the next one's. The longest way goes from
	// one leaf up to the root and down to another.
	const hop = 200 * time.Microsecond
	assert.Equal(t, 2400*time.Microsecond, time.Duration(2*deepest)*hop)
}

func TestTreeWithoutSomeRanks(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for range 200 {
		node := nodes(1+random.Intn(30), 1+random.Intn(3))
		dead := map[int]bool{}
		for r := range node {
			if random.Intn(3) == 0 && len(dead) < len(node)-1 {
				dead[r] = true
			}
		}
		living := func(r int) bool { return !dead[r] }
		tr := newTree(0, node)
		roots := 0
		for r := range node {
			if dead[r] {
				continue
			}
			p := tr.parent(r, living)
			if p < 0 {
				roots++
				continue
			}
			assert.False(t, dead[p], "rank %d has the dead parent %d", r, p)
			assert.Less(t, p, r, "ranks are in order here, so that there is no cycle")
			assert.Equal(t, p, tr.leader(node[p], living))
		}
		assert.Equal(t, 1, roots, "without %v", dead)
	}
}

func TestTreeOfScatteredRanks(t *testing.T) {
	tr := newTree(3, []int{0, 1, 2, 1, 0, 2})
	for r, parent := range []int{-1, 0, 0, 1, 0, 2} {
		assert.Equal(t, parent, tr.parent(r, everyone), "rank %d", r)
	}
	without := func(gone ...int) func(int) bool {
		return func(r int) bool {
			for _, g := range gone {
				if r == g {
					return false
				}
			}
			return true
		}
	}
	assert.Equal(t, 4, tr.parent(1, without(0)))
	assert.Equal(t, 4, tr.parent(3, without(0, 1)))
	assert.Equal(t, -1, tr.parent(1, without(0, 4)))
	assert.Equal(t, 1, tr.parent(2, without(0, 4)))
}
