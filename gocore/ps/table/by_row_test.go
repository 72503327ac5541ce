package table

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func byRow(name string, dim int64) Config {
	return Config{Dim: dim, DType: "float32", Initializer: Initializer{Name: "zeros"},
		Optimizer: Optimizer{Name: name, LearningRate: 0.1, WeightDecay: 0.01, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-6, BiasCorrection: ByRow}}
}

// adamRow is Adam of one element, in float64, with a count of its own.
type adamRow struct{ w, m, v, t float64 }

func (a *adamRow) update(o *Optimizer, rate, g float64) {
	if o.Name == "adamw" {
		a.w *= 1 - rate*o.WeightDecay
	} else {
		g += o.WeightDecay * a.w
	}
	a.t++
	a.m = o.Beta1*a.m + (1-o.Beta1)*g
	a.v = o.Beta2*a.v + (1-o.Beta2)*g*g
	mean, square := a.m/(1-math.Pow(o.Beta1, a.t)), a.v/(1-math.Pow(o.Beta2, a.t))
	a.w -= rate * mean / (math.Sqrt(square) + o.Epsilon)
}

// Rows that are seldom in a push are corrected by their own counts, whatever the steps of others.
func TestBiasCorrectionByRow(t *testing.T) {
	const rows, dim = 50, 5
	for _, name := range []string{"adam", "adamw"} {
		c := byRow(name, dim)
		table, random := newTable(t, best(), c), rand.New(rand.NewPCG(3, 4))
		model := make([]adamRow, rows*dim)
		for step := range 200 {
			var ids []int64
			var gradients []float32
			rate := 0.1 / float64(1+step/50)
			for id := range int64(rows) {
				if random.Int64N(rows) < id { // the first are rare
					continue
				}
				ids = append(ids, id)
				for j := range dim {
					gradients = append(gradients, float32(random.NormFloat64()))
					model[id*dim+int64(j)].update(&c.Optimizer, float64(float32(rate)), float64(gradients[len(gradients)-1]))
				}
			}
			list, _ := tensor(t, op.Int64, ids)
			values, _ := tensor(t, op.Float32, gradients)
			require.NoError(t, table.Push(Batch{IDs: list, Values: values}, rate, 0))
		}
		ids, list := tensor(t, op.Int64, make([]int64, rows))
		for i := range list {
			list[i] = int64(i)
		}
		values, row := tensor(t, op.Float32, make([]float32, rows*dim))
		states, state := tensor(t, op.Float32, make([]float32, rows*(2*dim+1)))
		require.NoError(t, table.Read(Batch{IDs: ids, Values: values, States: states}))
		for i, one := range model {
			require.InDelta(t, one.w, row[i], 1e-5, "%s row %d", name, i/dim)
			mine := state[i/dim*(2*dim+1):]
			require.InDelta(t, one.m, mine[i%dim], 1e-5)
			require.InDelta(t, one.v, mine[dim+i%dim], 1e-5)
			require.EqualValues(t, one.t, mine[2*dim], "the count of row %d", i/dim)
		}
	}
}

// A row that is in every push is, but for rounding, what it is with the table's count.
func TestBiasCorrectionOfBothKinds(t *testing.T) {
	var rows [2][]float32
	for kind, by := range []string{ByTable, ByRow} {
		c := byRow("adam", 33)
		c.Optimizer.BiasCorrection = by
		table := newTable(t, best(), c)
		ids, _ := tensor(t, op.Int64, []int64{7})
		for step := range 60 {
			g := make([]float32, 33)
			for j := range g {
				g[j] = float32(math.Sin(float64(step*33 + j)))
			}
			gradients, _ := tensor(t, op.Float32, g)
			require.NoError(t, table.Push(Batch{IDs: ids, Values: gradients}, math.NaN(), 0))
		}
		values, row := tensor(t, op.Float32, make([]float32, 33))
		require.NoError(t, table.Pull(Batch{IDs: ids, Values: values}))
		rows[kind] = row
	}
	assert.InDeltaSlice(t, rows[0], rows[1], 1e-6)
}

func TestBiasCorrectionByRowHasTheSameBitsEverywhere(t *testing.T) {
	for _, name := range []string{"adam", "adamw"} {
		for _, dim := range []int64{1, 16, 43} {
			for _, dtype := range []op.DType{op.Float32, op.BFloat16} {
				c := config(name, dim)
				c.DType, c.Optimizer.BiasCorrection = dtype.String(), ByRow
				want := bits(t, "portable", c, dtype)
				for _, isa := range []string{"avx2", "avx512"} {
					if has(isa) && reduce.ISA() != "portable" {
						assert.Equal(t, want, bits(t, isa, c, dtype), "%s %s dim %d %v", isa, name, dim, dtype)
					}
				}
			}
		}
	}
}

// The count of a row is a float: it ends at 2^24. What somebody has written there does no harm.
func TestCountsOfRows(t *testing.T) {
	for _, one := range []struct{ was, is float32 }{
		{0, 1}, {41, 42}, {1<<24 - 1, 1 << 24}, {1 << 24, 1 << 24}, {-5, -4}, {float32(math.Inf(1)), float32(math.Inf(1))},
	} {
		table := newTable(t, best(), byRow("adam", 2))
		ids, _ := tensor(t, op.Int64, []int64{3})
		values, row := tensor(t, op.Float32, []float32{1, 2})
		states, state := tensor(t, op.Float32, []float32{0, 0, 0, 0, one.was})
		require.NoError(t, table.Write(Batch{IDs: ids, Values: values, States: states}))
		gradients, _ := tensor(t, op.Float32, []float32{1, -1})
		require.NoError(t, table.Push(Batch{IDs: ids, Values: gradients}, math.NaN(), 0))
		require.NoError(t, table.Read(Batch{IDs: ids, Values: values, States: states}))
		assert.Equal(t, one.is, state[4])
		assert.False(t, math.IsNaN(float64(row[0])) || math.IsInf(float64(row[0]), 0), "%v", row)
	}
}

func TestBiasCorrectionIsChecked(t *testing.T) {
	c := byRow("adam", 4)
	c.Optimizer.BiasCorrection = "column"
	require.ErrorContains(t, c.Check(), `bias_correction="column" is none of "table", "row"`)
	c = byRow("adagrad", 4)
	require.ErrorContains(t, c.Check(), `optimizer "adagrad" has no bias_correction`)
}
