package group

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/grid"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// shaped gives a buffer a shape outside the Go heap.
func shaped(b op.Buf, dims ...int64) op.Buf {
	p, err := mem.Alloc(int64(8 * len(dims)))
	if err != nil {
		panic(err)
	}
	copy(unsafe.Slice((*int64)(p), len(dims)), dims)
	b.Shape, b.NDim = p, int32(len(dims))
	return b
}

// line returns a tensor of rows x columns, with a border of one row at each end.
func line(rank, rows, columns int) op.Buf {
	numbers := make([]float32, (rows+2)*columns)
	for i := columns; i < (rows+1)*columns; i++ {
		numbers[i] = float32(rank*1000 + i%columns%100 + 1)
	}
	return shaped(floats(numbers...), int64(rows+2), int64(columns))
}

func halo(b op.Buf, pattern int32) *op.Desc {
	d := desc(op.HaloExchange, nil, []op.Buf{b})
	d.Peer = pattern
	return d
}

func newLine(t *testing.T, g *Group, periodic bool, width int64) int32 {
	pattern, err := g.Patterns.NewHalo(g.Size, &grid.Halo{Grid: grid.Grid{Dims: []int{g.Size, 1}, Periodic: []bool{periodic, false}},
		Widths: []grid.Width{{Before: width, After: width}, {}}})
	require.NoError(t, err)
	return pattern
}

// checkLine looks at the border of a line. A rank may have rows of its own number.
func checkLine(t *testing.T, g *Group, b op.Buf, columns int, periodic bool, what string) {
	got := values(b)
	for side, first := range []int{0, len(got) - columns} {
		from := g.Rank - 1 + 2*side
		if periodic {
			from = (from + g.Size) % g.Size
		}
		for i := range columns {
			want := float32(0)
			if from >= 0 && from < g.Size {
				want = float32(from*1000 + i%100 + 1)
			}
			require.Equal(t, want, got[first+i], "%s: side %d, column %d", what, side, i)
		}
	}
}

func TestHalosOfLines(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			for _, columns := range []int{1, 300, 20_000} {
				for _, periodic := range []bool{false, true} {
					pattern := newLine(t, g, periodic, 1)
					for turn := range 4 {
						what := fmt.Sprintf("%d columns, periodic %t, turn %d", columns, periodic, turn)
						b := line(g.Rank, 1+g.Rank, columns)
						d := halo(b, pattern)
						if turn%2 == 1 {
							d.Flags |= op.FlagAsync
						}
						h, _, err := g.Submit(d, false)
						require.NoError(t, err, what)
						if h != nil {
							_, err = h.Wait(-1, nil)
							require.NoError(t, err, what)
						}
						checkLine(t, g, b, columns, periodic, what)
						wire := n > 1 && nodes[1] != nodes[0] && int64(columns)*8 > g.Payloads.Rooms().Payload
						assert.Equal(t, map[bool]string{false: "blocks", true: "messages"}[wire], g.Algorithm(), what)
						mem.Free(b.Data)
					}
				}
			}
		})
	})
}

// All members find the same error if something differs, before anything is sent.
func TestHalosThatDiffer(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		if n == 1 {
			return
		}
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			one, two := newLine(t, g, false, 1), newLine(t, g, false, 2)
			last := g.Rank == g.Size-1
			for _, columns := range []int{3, 100_000} {
				b := line(g.Rank, 6, columns)
				pattern := one
				if last {
					pattern = two
				}
				_, err := submit(g, halo(b, pattern))
				assert.Equal(t, status.Mismatch, status.CodeOf(err), "%v", err)
				assert.ErrorContains(t, err, "width 2")
				wider := line(g.Rank, 6, columns)
				if last {
					wider = line(g.Rank, 6, columns+1)
				}
				_, err = submit(g, halo(wider, one))
				assert.Equal(t, status.Mismatch, status.CodeOf(err), "%v", err)
				assert.ErrorContains(t, err, fmt.Sprintf("rank %d of the group has a tensor of [6 %d] without its border", g.Size-2, columns))
				_, err = submit(g, halo(b, one))
				assert.NoError(t, err)
				checkLine(t, g, b, columns, false, "afterwards")
			}
		})
	})
}

func TestPatternsAreChecked(t *testing.T) {
	ranks(t, 2, nil, func(t *testing.T, e *world.Env, g *Group) {
		pattern := newLine(t, g, false, 1)
		assert.Equal(t, pattern, newLine(t, g, false, 1), "equal patterns have one number")
		_, err := g.Patterns.NewHalo(g.Size, &grid.Halo{Grid: grid.Grid{Dims: []int{3}, Periodic: []bool{false}}, Widths: []grid.Width{{}}})
		assert.ErrorContains(t, err, "3 ranks, the group has 2")
		_, err = g.Patterns.NewGraph(g.Size, g.Rank, []int{2}, nil)
		assert.ErrorContains(t, err, "rank 2 is not in the group")
		_, err = g.Patterns.NewGraph(g.Size, g.Rank, []int{g.Rank}, nil)
		assert.ErrorContains(t, err, "from itself 0 times")
		graph, err := g.Patterns.NewGraph(g.Size, g.Rank, nil, nil)
		require.NoError(t, err)
		b := line(g.Rank, 3, 4)
		for _, number := range []int32{-1, 99, graph} {
			_, err := submit(g, halo(b, number))
			assert.ErrorContains(t, err, "is not the number of such a pattern")
		}
		device := b
		device.DeviceType = op.DeviceCUDA
		_, err = submit(g, halo(device, pattern))
		assert.Equal(t, status.Unsupported, status.CodeOf(err))
		_, err = submit(g, halo(b, pattern))
		assert.NoError(t, err)
	})
}

// More tensors than a halo keeps plans for, and more blocks than a member keeps.
func TestManyShapesInTurn(t *testing.T) {
	ranks(t, 3, nil, func(t *testing.T, e *world.Env, g *Group) {
		pattern := newLine(t, g, true, 1)
		for turn := range 60 {
			columns := 2000 + turn*7%13*100
			b := line(g.Rank, 2, columns)
			_, err := submit(g, halo(b, pattern))
			require.NoError(t, err)
			checkLine(t, g, b, columns, true, fmt.Sprint(turn))
			mem.Free(b.Data)
		}
	})
}

func TestGraphs(t *testing.T) {
	everywhere(t, func(t *testing.T, n int, nodes []int) {
		ranks(t, n, nodes, func(t *testing.T, e *world.Env, g *Group) {
			// Each gives two tensors to the next member and one to itself.
			next, before := (g.Rank+1)%n, (g.Rank+n-1)%n
			pattern, err := g.Patterns.NewGraph(g.Size, g.Rank, []int{next, g.Rank, next}, []int{before, before, g.Rank})
			require.NoError(t, err)
			if n == 1 {
				return // all are of the rank itself: see TestPatternsAreChecked
			}
			for _, count := range []int{2, 40_000} {
				tensor := func(rank, which, count int) op.Buf {
					numbers := make([]float32, count)
					for i := range numbers {
						numbers[i] = float32(rank*10 + which)
					}
					return floats(numbers...)
				}
				sends := []op.Buf{tensor(g.Rank, 1, count), tensor(g.Rank, 2, 5), tensor(g.Rank, 3, count+1)}
				recvs := []op.Buf{tensor(0, 0, count), tensor(0, 0, count+1), tensor(0, 0, 5)}
				d := desc(op.NeighborAllToAll, sends, recvs)
				d.Peer = pattern
				_, err := submit(g, d)
				require.NoError(t, err)
				for i, want := range []float32{float32(before*10 + 1), float32(before*10 + 3), float32(g.Rank*10 + 2)} {
					for _, got := range values(recvs[i]) {
						require.Equal(t, want, got)
					}
				}
				// A pair that does not agree raises on both sides, and the group stays usable.
				if g.Rank == 0 {
					sends[0], sends[2] = sends[2], sends[0]
				}
				_, err = submit(g, d)
				assert.Equal(t, g.Rank == 0 || g.Rank == 1, status.CodeOf(err) == status.Mismatch, "%v", err)
				_, err = submit(g, desc(op.Barrier, nil, nil))
				assert.NoError(t, err)
			}
		})
	})
}
