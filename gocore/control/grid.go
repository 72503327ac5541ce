package control

import (
	"slices"

	"github.com/paddlempi/paddlempi/gocore/grid"
	"github.com/paddlempi/paddlempi/gocore/group"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// gridRequest is what names a grid of a group's ranks, and a halo on it.
type gridRequest struct {
	ofGroup
	Dims     []int      `json:"dims"`
	Periodic []bool     `json:"periodic"`
	Reorder  bool       `json:"reorder"`
	Widths   [][2]int64 `json:"widths"`
	Shape    []int64    `json:"shape"`
}

// cartesian completes the dimensions of a grid of a group's ranks. With reorder it also returns which member of
// the group stands at each rank of the grid.
func cartesian(g *group.Group, r gridRequest, _ work.Interrupt) (any, error) {
	if len(r.Periodic) != len(r.Dims) {
		return nil, status.New(status.Argument, "Cartesian: dims has %d dimensions, periodic %d", len(r.Dims), len(r.Periodic))
	}
	dims, err := grid.Complete(g.Size, r.Dims)
	if err != nil {
		return nil, status.New(status.Argument, "Cartesian: %v", err)
	}
	order := []int{}
	if r.Reorder {
		at := grid.Grid{Dims: dims, Periodic: r.Periodic}
		order = at.Reorder(g.Env.Topo.ByNode(g.Ranks))
	}
	return map[string]any{"dims": dims, "order": order}, nil
}

func (r *gridRequest) halo() (*grid.Halo, error) {
	n := len(r.Dims)
	if n < 1 || n > grid.MaxDims {
		return nil, status.New(status.Argument, "halo_exchange: the grid has %d dimensions; it takes 1 to %d", n, grid.MaxDims)
	}
	if len(r.Periodic) != n || len(r.Widths) != n {
		return nil, status.New(status.Argument, "halo_exchange: the grid has %d dimensions, periodic has %d, width %d", n, len(r.Periodic), len(r.Widths))
	}
	h := &grid.Halo{Grid: grid.Grid{Dims: r.Dims, Periodic: r.Periodic}}
	for k, w := range r.Widths {
		if w[0] < 0 || w[1] < 0 {
			return nil, status.New(status.Argument, "halo_exchange: the width in dimension %d of the grid is %d before and %d after; it must be 0 or more", k, w[0], w[1])
		}
		h.Widths = append(h.Widths, grid.Width{Before: w[0], After: w[1]})
	}
	if i := slices.IndexFunc(r.Dims, func(d int) bool { return d < 1 }); i >= 0 {
		return nil, status.New(status.Argument, "halo_exchange: dims[%d] is %d", i, r.Dims[i])
	}
	return h, nil
}

// halo returns the number of the pattern of a halo.
func halo(g *group.Group, r gridRequest, _ work.Interrupt) (any, error) {
	h, err := r.halo()
	if err != nil {
		return nil, err
	}
	pattern, err := g.Patterns.NewHalo(g.Size, h)
	return map[string]any{"pattern": pattern}, err
}

// haloBoxes returns which boxes of a tensor of some shape go to neighbours, and come from them.
func haloBoxes(g *group.Group, r gridRequest, _ work.Interrupt) (any, error) {
	h, err := r.halo()
	if err != nil {
		return nil, err
	}
	if h.Size() != g.Size {
		return nil, status.New(status.Argument, "halo_exchange: a grid of %v has %d ranks, the group has %d", h.Dims, h.Size(), g.Size)
	}
	out, in, err := h.Boxes(g.Rank, r.Shape)
	if err != nil {
		return nil, status.New(status.Argument, "halo_exchange: %v", err)
	}
	return map[string]any{"out": describeBoxes(out), "in": describeBoxes(in)}, nil
}

func describeBoxes(boxes []grid.Box) []any {
	list := make([]any, len(boxes))
	for i, b := range boxes {
		for k := range b.N {
			b.N[k] += b.From[k]
		}
		list[i] = map[string]any{"rank": b.Rank, "from": b.From, "to": b.N}
	}
	return list
}

type graphRequest struct {
	ofGroup
	To   []int `json:"to"`
	From []int `json:"from"`
}

// graph returns the number of the pattern of a graph.
func graph(g *group.Group, r graphRequest, _ work.Interrupt) (any, error) {
	pattern, err := g.Patterns.NewGraph(g.Size, g.Rank, r.To, r.From)
	return map[string]any{"pattern": pattern}, err
}
