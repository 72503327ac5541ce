package grid

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestComplete(t *testing.T) {
	for _, c := range []struct {
		size int
		dims []int
		want []int
	}{
		{6, []int{0, 0}, []int{3, 2}},
		{4, []int{0, 0, 0}, []int{2, 2, 1}},
		{12, []int{0, 0, 0}, []int{3, 2, 2}},
		{12, []int{0, 3, 0}, []int{2, 3, 2}},
		{72, []int{0, 0}, []int{9, 8}},
		{7, []int{0, 0}, []int{7, 1}},
		{7, []int{7, 1}, []int{7, 1}},
		{64, []int{0, 0, 0}, []int{4, 4, 4}},
		{32, []int{0, 0, 0}, []int{4, 4, 2}},
		{1, nil, []int{}},
	} {
		got, err := Complete(c.size, c.dims)
		require.NoError(t, err)
		assert.Equal(t, c.want, append([]int{}, got...))
	}
	for _, dims := range [][]int{{4, 0}, {-1, 0}, {7, 0}, {2, 2}, {3, 3}, {}, {1 << 62, 1 << 62}, {0, 5}} {
		_, err := Complete(6, dims)
		assert.Error(t, err, "%v", dims)
	}
}

// Of all ways to cut n in m factors, none has a largest and a least one that are closer.
func TestFactorsAreAsCloseAsCanBe(t *testing.T) {
	var closest func(n, m, low, high int) int
	closest = func(n, m, low, high int) int {
		if m == 1 {
			return max(high, n) - min(low, n)
		}
		best := 1 << 30
		for d := 1; d <= n; d++ {
			if n%d == 0 {
				best = min(best, closest(n/d, m-1, min(low, d), max(high, d)))
			}
		}
		return best
	}
	for n := 1; n <= 200; n++ {
		for m := 1; m <= 4; m++ {
			f := Factors(n, m)
			assert.Equal(t, n, product(f))
			assert.True(t, slices.IsSortedFunc(f, func(x, y int) int { return y - x }), "%v", f)
			assert.Equal(t, closest(n, m, 1<<30, 0), f[0]-f[m-1], "%d in %d: %v", n, m, f)
		}
	}
	assert.Equal(t, 1<<20*3*5*7*11, product(Factors(1<<20*3*5*7*11, 4)))
}

func TestRanksAndCoordinates(t *testing.T) {
	g := Grid{[]int{2, 3, 4}, []bool{false, true, false}}
	for r := range g.Size() {
		back, ok := g.Rank(g.Coords(r))
		assert.True(t, ok)
		assert.Equal(t, r, back)
	}
	assert.Equal(t, []int{1, 0, 2}, g.Coords(14))
	r, ok := g.Rank([]int{0, -4, 1})
	assert.True(t, ok)
	assert.Equal(t, 2*4+1, r)
	_, ok = g.Rank([]int{2, 0, 0})
	assert.False(t, ok)
}

func TestReorderPutsBlocksOnNodes(t *testing.T) {
	nodes := [][]int{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}
	g := Grid{[]int{4, 4}, []bool{false, false}}
	order := g.Reorder(nodes)
	assert.Equal(t, []int{0, 2, 1, 3, 4, 6, 5, 7, 8, 9, 12, 13, 10, 11, 14, 15}, order)
	// A node's three ranks do not make a block of 2 x 2 ranks.
	g = Grid{[]int{2, 2}, []bool{false, false}}
	assert.Equal(t, []int{0, 3, 2, 1}, g.Reorder([][]int{{0, 3, 2}, {1}}))
	assert.Equal(t, []int{0, 1, 2, 3}, g.Reorder([][]int{{0, 1, 2, 3}}))
}

// field is the tensor of one rank, with its border.
type field struct {
	shape []int64
	cells []int
}

func (f *field) at(index []int64) *int {
	i := int64(0)
	for k, n := range f.shape {
		i = i*n + index[k]
	}
	return &f.cells[i]
}

// each calls f for every index of a box.
func each(from, n []int64, f func(index []int64)) {
	if slices.Contains(n, 0) {
		return
	}
	index := slices.Clone(from)
	for {
		f(index)
		k := len(n) - 1
		for ; k >= 0; k-- {
			if index[k]++; index[k] < from[k]+n[k] {
				break
			}
			index[k] = from[k]
		}
		if k < 0 {
			return
		}
	}
}

// All ranks exchange their boxes: every cell of a border then has the number of its place in the whole tensor.
func TestBoxesMeet(t *testing.T) {
	for _, c := range []struct {
		h     Halo
		whole []int64
		lead  []int64
	}{
		{Halo{Grid{[]int{3}, []bool{false}}, []Width{{1, 2}}}, []int64{11}, nil},
		{Halo{Grid{[]int{2}, []bool{true}}, []Width{{3, 1}}}, []int64{9}, []int64{2}},
		{Halo{Grid{[]int{1}, []bool{true}}, []Width{{3, 3}}}, []int64{3}, nil},
		{Halo{Grid{[]int{2, 3}, []bool{true, false}}, []Width{{1, 2}, {2, 0}}}, []int64{7, 10}, []int64{2}},
		{Halo{Grid{[]int{2, 1, 2}, []bool{true, true, true}}, []Width{{1, 1}, {2, 1}, {1, 2}}}, []int64{5, 4, 7}, nil},
		{Halo{Grid{[]int{2, 2, 1, 2}, []bool{false, true, true, false}}, []Width{{1, 1}, {1, 1}, {1, 0}, {1, 1}}}, []int64{4, 5, 3, 4}, nil},
	} {
		t.Run(fmt.Sprint(c.h), func(t *testing.T) {
			size := c.h.Size()
			fields := make([]field, size)
			first := make([][]int64, size)
			number := func(place []int64) int {
				n := 0
				for _, x := range place {
					n = n*100 + int(x)
				}
				return n + 1
			}
			// place returns where in the whole tensor a cell is, and whether it is inside.
			place := func(r int, index []int64) ([]int64, bool) {
				at := slices.Clone(index)
				for k := range c.whole {
					x := index[len(c.lead)+k] + first[r][k] - c.h.Widths[k].Before
					if c.h.Periodic[k] {
						x = (x + 10*c.whole[k]) % c.whole[k]
					}
					if x < 0 || x >= c.whole[k] {
						return nil, false
					}
					at[len(c.lead)+k] = x
				}
				return at, true
			}
			for r := range fields {
				f := &fields[r]
				f.shape = slices.Clone(c.lead)
				for k, x := range c.h.Coords(r) {
					cut := func(i int) int64 { return c.whole[k] * int64(i) / int64(c.h.Dims[k]) }
					first[r] = append(first[r], cut(x))
					f.shape = append(f.shape, cut(x+1)-cut(x)+c.h.Widths[k].Before+c.h.Widths[k].After)
				}
				cells := int64(1)
				for _, n := range f.shape {
					cells *= n
				}
				f.cells = make([]int, cells)
				from, n := make([]int64, len(f.shape)), slices.Clone(f.shape)
				for k, w := range c.h.Widths {
					from[len(c.lead)+k], n[len(c.lead)+k] = w.Before, n[len(c.lead)+k]-w.Before-w.After
				}
				each(from, n, func(index []int64) {
					at, _ := place(r, index)
					*f.at(index) = number(at)
				})
			}
			inner := func(r int) *[MaxDims]int64 { i := c.h.Inner(fields[r].shape); return &i }
			for _, p := range c.h.Pairs() {
				assert.True(t, p.Fit(inner(p.A), inner(p.B)))
			}
			queues := map[[2]int][]int{}
			for r := range fields {
				out, _, err := c.h.Boxes(r, fields[r].shape)
				require.NoError(t, err)
				for _, b := range out {
					way := [2]int{r, b.Rank}
					each(b.From, b.N, func(index []int64) { queues[way] = append(queues[way], *fields[r].at(index)) })
				}
			}
			for r := range fields {
				_, in, err := c.h.Boxes(r, fields[r].shape)
				require.NoError(t, err)
				for _, b := range in {
					way := [2]int{b.Rank, r}
					each(b.From, b.N, func(index []int64) {
						*fields[r].at(index) = queues[way][0]
						queues[way] = queues[way][1:]
					})
				}
			}
			for way, left := range queues {
				assert.Empty(t, left, "%v", way)
			}
			for r := range fields {
				each(make([]int64, len(fields[r].shape)), fields[r].shape, func(index []int64) {
					want := 0
					if at, ok := place(r, index); ok {
						want = number(at)
					}
					require.Equal(t, want, *fields[r].at(index), "rank %d at %v", r, index)
				})
			}
		})
	}
}

func TestWrongShapes(t *testing.T) {
	h := Halo{Grid{[]int{2, 1}, []bool{false, true}}, []Width{{1, 2}, {2, 2}}}
	for shape, want := range map[[2]int64]string{
		{2, 9}: "dimension 0 of the tensor has 2 elements, fewer than its border of 1 and 2",
		{3, 9}: "dimension 0 of the tensor has 0 elements between its borders of 1 and 2, fewer than the border of a neighbour, 1",
		{9, 5}: "dimension 1 of the tensor has 1 elements between its borders of 2 and 2, fewer than the border of a neighbour, 2",
	} {
		_, _, err := h.Boxes(0, shape[:])
		assert.EqualError(t, err, want)
	}
	_, _, err := h.Boxes(0, []int64{9})
	assert.ErrorContains(t, err, "the tensor has 1 dimensions, the grid has 2")
	// Without neighbours in a dimension nothing is needed there.
	lone := Halo{Grid{[]int{1}, []bool{false}}, []Width{{1, 1}}}
	out, in, err := lone.Boxes(0, []int64{2})
	require.NoError(t, err)
	assert.Empty(t, out)
	assert.Empty(t, in)
}

func TestWhatDoesNotFit(t *testing.T) {
	h := Halo{Grid{[]int{2, 2}, []bool{false, false}}, []Width{{1, 1}, {1, 1}}}
	inner := [][MaxDims]int64{{3, 4}, {3, 5}, {2, 4}, {2, 6}}
	var wrong []Pair
	for _, p := range h.Pairs() {
		if !p.Fit(&inner[p.A], &inner[p.B]) {
			wrong = append(wrong, p)
		}
	}
	assert.Equal(t, []Pair{{1, 3, 0}}, wrong)
}
