package grid

import (
	"fmt"
	"slices"
)

// Halo is the border of the ranks' tensors on a grid. The grid's dimensions are the last ones of a tensor.
type Halo struct {
	Grid
	Widths []Width // of each dimension
}

// Width is how many elements the border has before the inner part of a tensor, and after it.
type Width struct{ Before, After int64 }

// Box is a part of a tensor that goes to a neighbour or comes from one: From and N have its first element and its
// length in each dimension of the tensor.
type Box struct {
	Rank    int
	From, N []int64
}

// Boxes returns what a rank gives to its neighbours, in all directions, and what it gets from them. Of what one rank
// gives to another one, the boxes have the order in which the other one gets them. Empty boxes are left out.
func (h *Halo) Boxes(rank int, shape []int64) (out, in []Box, err error) {
	if err := h.check(rank, shape); err != nil {
		return nil, nil, err
	}
	direction := make([]int, len(h.Dims))
	for i := range direction {
		direction[i] = -1
	}
	for {
		if slices.ContainsFunc(direction, func(d int) bool { return d != 0 }) {
			if to, ok := h.Beside(rank, direction); ok {
				out = h.add(out, to, shape, direction, h.given)
			}
			// What a neighbour gives in this direction comes from the opposite one.
			for k := range direction {
				direction[k] = -direction[k]
			}
			if from, ok := h.Beside(rank, direction); ok {
				in = h.add(in, from, shape, direction, h.border)
			}
			for k := range direction {
				direction[k] = -direction[k]
			}
		}
		if !next(direction) {
			return out, in, nil
		}
	}
}

// next goes on to the next direction, and tells whether there is one.
func next(direction []int) bool {
	for k := len(direction) - 1; k >= 0; k-- {
		if direction[k] < 1 {
			direction[k]++
			return true
		}
		direction[k] = -1
	}
	return false
}

// add appends a box, unless it is empty. extent returns its place in a dimension of the grid.
func (h *Halo) add(boxes []Box, rank int, shape []int64, direction []int, extent func(k, direction int, n int64) (from, length int64)) []Box {
	b := Box{rank, make([]int64, len(shape)), slices.Clone(shape)}
	first := len(shape) - len(h.Dims)
	for k, d := range direction {
		b.From[first+k], b.N[first+k] = extent(k, d, shape[first+k])
	}
	if slices.Contains(b.N, 0) {
		return boxes
	}
	return append(boxes, b)
}

// given returns which of the n elements in dimension k go to the neighbour in a direction: as many as its border has.
func (h *Halo) given(k, direction int, n int64) (from, length int64) {
	w := h.Widths[k]
	switch direction {
	case -1:
		return w.Before, w.After
	case 1:
		return n - w.After - w.Before, w.Before
	}
	return w.Before, n - w.Before - w.After
}

// border returns which of the n elements in dimension k are the border in a direction.
func (h *Halo) border(k, direction int, n int64) (from, length int64) {
	w := h.Widths[k]
	switch direction {
	case -1:
		return 0, w.Before
	case 1:
		return n - w.After, w.After
	}
	return w.Before, n - w.Before - w.After
}

// check returns what is wrong with the shape of a tensor.
func (h *Halo) check(rank int, shape []int64) error {
	if len(shape) < len(h.Dims) {
		return fmt.Errorf("the tensor has %d dimensions, the grid has %d, which are the last ones of the tensor", len(shape), len(h.Dims))
	}
	first := len(shape) - len(h.Dims)
	at := h.Coords(rank)
	for k, w := range h.Widths {
		n := shape[first+k]
		inner := n - w.Before - w.After
		if inner < 0 {
			return fmt.Errorf("dimension %d of the tensor has %d elements, fewer than its border of %d and %d", first+k, n, w.Before, w.After)
		}
		need := int64(0)
		if h.Periodic[k] || at[k] > 0 {
			need = w.After
		}
		if h.Periodic[k] || at[k] < h.Dims[k]-1 {
			need = max(need, w.Before)
		}
		if inner < need {
			return fmt.Errorf("dimension %d of the tensor has %d elements between its borders of %d and %d, fewer than the border of a neighbour, %d",
				first+k, inner, w.Before, w.After, need)
		}
	}
	return nil
}

// Inner returns the lengths of the inner part of a tensor, in the dimensions of the grid.
func (h *Halo) Inner(shape []int64) (inner [MaxDims]int64) {
	first := len(shape) - len(h.Dims)
	for k, w := range h.Widths {
		inner[k] = shape[first+k] - w.Before - w.After
	}
	return inner
}

// Pair is two ranks that are next to each other in dimension Dim of the grid.
type Pair struct{ A, B, Dim int }

// Pairs returns the ranks that are next to each other in a dimension that has a border.
func (h *Halo) Pairs() (pairs []Pair) {
	direction := make([]int, len(h.Dims))
	for a := range h.Size() {
		for k, w := range h.Widths {
			if w.Before == 0 && w.After == 0 {
				continue
			}
			direction[k] = 1
			if b, ok := h.Beside(a, direction); ok && a != b {
				pairs = append(pairs, Pair{a, b, k})
			}
			direction[k] = 0
		}
	}
	return pairs
}

// Fit tells whether the inner parts of the tensors of a pair fit together: they may differ in the dimension in which the
// ranks are next to each other, and in no other one.
func (p Pair) Fit(a, b *[MaxDims]int64) bool {
	for k := range a {
		if k != p.Dim && a[k] != b[k] {
			return false
		}
	}
	return true
}
