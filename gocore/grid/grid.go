// Package grid knows Cartesian grids of ranks: their dimensions, which rank is where, who is next to whom, and which
// boxes of their tensors neighbours exchange (halo.go).
//
// It imports the standard library only. All ranks compute the same from the same arguments.
package grid

import (
	"fmt"
	"slices"
)

// MaxDims is the most dimensions of a halo.
const MaxDims = 4

// Grid is a grid of ranks. Ranks are in row-major order: the last coordinate grows fastest. Periodic tells of each
// dimension whether its last rank is next to its first one.
type Grid struct {
	Dims     []int
	Periodic []bool
}

// Size returns the number of ranks.
func (g *Grid) Size() int { return product(g.Dims) }

// Coords returns where a rank is.
func (g *Grid) Coords(rank int) []int {
	at := make([]int, len(g.Dims))
	for k := len(at) - 1; k >= 0; k-- {
		at[k] = rank % g.Dims[k]
		rank /= g.Dims[k]
	}
	return at
}

// Rank returns which rank is at coordinates, which may be outside of a periodic dimension. ok is false if there is none.
func (g *Grid) Rank(at []int) (rank int, ok bool) {
	for k, n := range g.Dims {
		x := at[k]
		if x < 0 || x >= n {
			if !g.Periodic[k] {
				return -1, false
			}
			x = (x%n + n) % n
		}
		rank = rank*n + x
	}
	return rank, true
}

// Beside returns the rank in a direction of another one: each component is -1, 0 or 1.
func (g *Grid) Beside(rank int, direction []int) (beside int, ok bool) {
	at := g.Coords(rank)
	for k := range at {
		at[k] += direction[k]
	}
	return g.Rank(at)
}

// Complete returns dims with every 0 replaced, so that their product is size. The replaced ones are as close to each
// other as can be, the largest first, as MPI_Dims_create has them (MPI-4.1 section 8.5.2).
func Complete(size int, dims []int) ([]int, error) {
	fixed, free := 1, 0
	for k, n := range dims {
		switch {
		case n < 0:
			return nil, fmt.Errorf("dims[%d] is %d; a dimension has 1 rank or more, or 0 to be chosen", k, n)
		case n == 0:
			free++
		case n > size:
			return nil, fmt.Errorf("dims=%v need more ranks than the %d of the group", dims, size)
		default:
			if fixed *= n; fixed > size {
				return nil, fmt.Errorf("dims=%v need more ranks than the %d of the group", dims, size)
			}
		}
	}
	if free == 0 && fixed != size {
		return nil, fmt.Errorf("dims=%v have %d ranks, the group has %d; give 0 for a dimension that is to be chosen", dims, fixed, size)
	}
	if size%fixed != 0 {
		return nil, fmt.Errorf("dims=%v: the fixed dimensions have %d ranks, which do not divide the %d of the group", dims, fixed, size)
	}
	chosen := Factors(size/fixed, free)
	out := slices.Clone(dims)
	for k := range out {
		if out[k] == 0 {
			out[k], chosen = chosen[0], chosen[1:]
		}
	}
	return out, nil
}

// Factors returns the m factors of n, the largest first, whose largest and least differ least; of several, those with
// the least largest one.
func Factors(n, m int) []int {
	if m == 0 {
		return nil
	}
	var divisors []int
	for d := 1; d*d <= n; d++ {
		if n%d == 0 {
			divisors = append(divisors, d)
			if d*d != n {
				divisors = append(divisors, n/d)
			}
		}
	}
	slices.Sort(divisors)
	var best []int
	chosen := make([]int, 0, m)
	better := func(f []int) bool {
		x, y := f[0]-f[m-1], best[0]-best[m-1]
		return x < y || x == y && slices.Compare(f, best) < 0
	}
	var choose func(left, most int)
	choose = func(left, most int) {
		if len(chosen) == m-1 {
			if left <= most {
				if f := append(chosen, left); best == nil || better(f) {
					best = slices.Clone(f)
				}
			}
			return
		}
		for _, d := range divisors {
			if d > most || d > left {
				break
			}
			// What is left goes to the factors after d, none of which is larger.
			if left%d == 0 && fits(left/d, d, m-1-len(chosen)) {
				chosen = append(chosen, d)
				choose(left/d, d)
				chosen = chosen[:len(chosen)-1]
			}
		}
	}
	choose(n, n)
	return best
}

// fits tells whether n is at most most to the power of m.
func fits(n, most, m int) bool {
	for ; m > 0 && n > 1; m-- {
		if most <= 1 {
			return false
		}
		n = (n + most - 1) / most
	}
	return n <= 1
}

// Reorder returns which of some members stands at each rank of the grid, so that neighbours share a node where they
// can. nodes are the members by node. If all nodes have as many members, and the grid can be cut into blocks of that
// many ranks, each node gets one, of the shape that parts the fewest neighbours; else the nodes are put one after the other.
func (g *Grid) Reorder(nodes [][]int) []int {
	if block := g.block(nodes); block != nil {
		return g.inBlocks(nodes, block)
	}
	return slices.Concat(nodes...)
}

// block returns the dimensions of a node's block; nil if there is none.
func (g *Grid) block(nodes [][]int) (best []int) {
	many := len(nodes[0])
	for _, n := range nodes {
		if len(n) != many {
			return nil
		}
	}
	least := -1
	block := make([]int, len(g.Dims))
	var choose func(k, left int)
	choose = func(k, left int) {
		if k == len(block) {
			if left != 1 {
				return
			}
			if c := g.cut(block); least < 0 || c < least {
				least, best = c, slices.Clone(block)
			}
			return
		}
		for d := min(left, g.Dims[k]); d >= 1; d-- {
			if left%d == 0 && g.Dims[k]%d == 0 {
				block[k] = d
				choose(k+1, left/d)
			}
		}
	}
	choose(0, many)
	return best
}

// cut returns how many pairs of neighbours are on two nodes.
func (g *Grid) cut(block []int) (pairs int) {
	for k, b := range block {
		cuts := g.Dims[k]/b - 1
		if cuts > 0 && g.Periodic[k] {
			cuts++
		}
		pairs += cuts * g.Size() / g.Dims[k]
	}
	return pairs
}

func (g *Grid) inBlocks(nodes [][]int, block []int) []int {
	order := make([]int, g.Size())
	for rank := range order {
		node, place := 0, 0
		for k, x := range g.Coords(rank) {
			node = node*(g.Dims[k]/block[k]) + x/block[k]
			place = place*block[k] + x%block[k]
		}
		order[rank] = nodes[node][place]
	}
	return order
}

func product(numbers []int) int {
	p := 1
	for _, n := range numbers {
		p *= n
	}
	return p
}
