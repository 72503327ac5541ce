package checkpoint

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newTable(t testing.TB, c table.Config) *table.Table {
	t.Helper()
	made, err := table.New(c)
	require.NoError(t, err)
	t.Cleanup(made.Free)
	return made
}

// outside copies values into memory outside the Go heap.
func outside[T any](t testing.TB, values []T) []T {
	var one T
	p, err := mem.Alloc(int64(len(values)) * int64(unsafe.Sizeof(one)))
	require.NoError(t, err)
	t.Cleanup(func() { mem.Free(p) })
	inside := unsafe.Slice((*T)(p), len(values))
	copy(inside, values)
	return inside
}

// train pushes gradients to the rows of ids.
func train(t testing.TB, of *table.Table, ids []int64, step int64) {
	if len(ids) == 0 {
		return
	}
	gradients := outside(t, make([]float32, int64(len(ids))*of.Dim))
	for i := range gradients {
		gradients[i] = float32(ids[int64(i)/of.Dim]%17) - float32(i%5)
	}
	b := batch(outside(t, ids), unsafe.Slice((*byte)(unsafe.Pointer(&gradients[0])), 4*len(gradients)), nil, nil, op.Float32)
	b.States = nil
	require.NoError(t, of.Push(b, math.NaN(), step))
}

// into says that tables take rows, each with its own config.
func into(tables map[string]*table.Table) map[string]Into {
	all := map[string]Into{}
	for name, one := range tables {
		config, _ := json.Marshal(one.Config)
		all[name] = Into{one, config}
	}
	return all
}

type contents struct {
	rows   map[int64][]byte
	states map[int64][]float32
}

// holds returns all rows and states of a table.
func holds(t testing.TB, of *table.Table) contents {
	source, err := FromTable("any", []byte("{}"), of, nil)
	require.NoError(t, err)
	all := contents{map[int64][]byte{}, map[int64][]float32{}}
	require.NoError(t, source.IDs(math.MaxInt64, func(ids []int64) error {
		width := of.Dim * itemBytes(of.DType)
		rows, states := outside(t, make([]byte, int64(len(ids))*width)), outside(t, make([]float32, int64(len(ids))*source.StateLen()))
		require.NoError(t, source.Read(ids, rows, states, nil))
		for i, id := range ids {
			all.rows[id] = slices.Clone(rows[int64(i)*width:][:width])
			all.states[id] = slices.Clone(states[int64(i)*source.StateLen():][:source.StateLen()])
		}
		return nil
	}))
	return all
}

func TestTables(t *testing.T) {
	var adam, bf16 table.Config
	adam = table.Config{Dim: 6, DType: "float32", Seed: 5, Initializer: table.Initializer{Name: "normal", B: 0.5},
		Optimizer: table.Optimizer{Name: "adam", LearningRate: 0.1, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8}}
	bf16 = table.Config{Dim: 3, DType: "bfloat16", Initializer: table.Initializer{Name: "uniform", A: -1, B: 1},
		Optimizer: table.Optimizer{Name: "row_wise_adagrad", LearningRate: 0.1, Epsilon: 1e-8}}
	const n = 9000
	var ids []int64
	for i := range int64(n) {
		ids = append(ids, i*i-3000)
	}
	make2 := func() map[string]*table.Table {
		return map[string]*table.Table{"adam": newTable(t, adam), "bf16": newTable(t, bf16)}
	}
	of := func(server, servers int) func(string, int64) bool {
		return func(_ string, id int64) bool { return int(uint64(id)%uint64(servers)) == server }
	}
	one := make2() // what all servers together should hold
	dir := t.TempDir()
	var parts []ServerPart
	for server := range 2 {
		tables := make2()
		var from []Source
		for name, table := range tables {
			mine := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return !of(server, 2)(name, id) })
			for step := int64(1); step <= 3; step++ {
				train(t, table, mine, step)
				train(t, one[name], mine, step)
			}
			config, err := json.Marshal(table.Config)
			require.NoError(t, err)
			source, err := FromTable(name, config, table, nil)
			require.NoError(t, err)
			from = append(from, source)
		}
		part, err := WritePart(context.Background(), dir, 3, server, 2, from, false, nil)
		require.NoError(t, err)
		parts = append(parts, part)
	}
	require.NoError(t, Commit(context.Background(), dir, 3, parts, nil, nil))
	m, err := newest(dir)
	require.NoError(t, err)
	for _, servers := range []int{1, 2, 3} {
		rows := map[string]int64{}
		for server := range servers {
			tables := make2()
			for _, table := range tables {
				train(t, table, []int64{-1 << 40, ids[1]}, 9) // neither row stays as it is now
			}
			require.NoError(t, m.Restore(context.Background(), of(server, servers), IntoTables(into(tables), nil, true, server, servers)))
			for name, table := range tables {
				whole := holds(t, one[name])
				now := holds(t, table)
				for id := range whole.rows {
					if of(server, servers)(name, id) {
						require.Equal(t, whole.rows[id], now.rows[id], "%s %d", name, id)
						require.Equal(t, whole.states[id], now.states[id], "%s %d", name, id)
					}
				}
				rows[name] += int64(len(now.rows))
				assert.EqualValues(t, 3, table.Steps())
			}
		}
		assert.Equal(t, map[string]int64{"adam": n, "bf16": n}, rows)
	}

	tables := make2()
	delete(tables, "bf16")
	require.ErrorContains(t, m.Restore(context.Background(), nil, IntoTables(into(tables), nil, true, 0, 0)), `the cut has a table "bf16", which is not there now`)
	tables = make2()
	tables["new"] = tables["bf16"]
	require.ErrorContains(t, m.Restore(context.Background(), nil, IntoTables(into(tables), nil, true, 0, 0)), `the cut has no table "new"`)
	for want, change := range map[string]func(c *table.Config){
		"dim is 6 in the cut and 7 now":                                    func(c *table.Config) { c.Dim = 7 },
		"dtype is float32 in the cut and float16 now":                      func(c *table.Config) { c.DType = "float16" },
		"optimizer is adam in the cut and sgd now":                         func(c *table.Config) { c.Optimizer.Name = "sgd" },
		"bias_correction is table in the cut and row now":                  func(c *table.Config) { c.Optimizer.BiasCorrection = table.ByRow },
		"seed is 5 in the cut and 6 now":                                   func(c *table.Config) { c.Seed = 6 },
		"initializer is {normal 0 0.5} in the cut and {normal 0 0.25} now": func(c *table.Config) { c.Initializer.B = 0.25 },
	} {
		changed := adam
		change(&changed)
		tables = make2()
		tables["adam"] = newTable(t, changed)
		require.ErrorContains(t, m.Restore(context.Background(), nil, IntoTables(into(tables), nil, true, 0, 0)), `table "adam": `+want)
	}
	limited := adam
	limited.MemoryLimit = 1 << 20
	tables["adam"] = newTable(t, limited)
	require.ErrorContains(t, m.Restore(context.Background(), nil, IntoTables(into(tables), nil, true, 0, 0)), "memory_limit")

	closed := newTable(t, adam)
	closed.Free()
	_, err = FromTable("closed", nil, closed, nil)
	require.ErrorContains(t, err, "closed")
}

// A cut holds the kind of a table and the shape of a dense parameter: rows of another one, whose
// dim is the same, are refused before anything has changed.
func TestTablesOfAnotherShape(t *testing.T) {
	c := table.Config{Dim: 8, DType: "float32", Initializer: table.Initializer{Name: "zeros"}, Optimizer: table.Optimizer{Name: "sgd"}}
	config := func(more string) []byte {
		text, err := json.Marshal(c)
		require.NoError(t, err)
		return append(append(text[:len(text)-1:len(text)-1], more...), '}')
	}
	sparse := []string{"", `,"kind":"sparse"`, `,"kind":"sparse","dims":null`}
	of100x100 := []string{`,"kind":"dense","dims":[100,100],"layout":"100x100"`}
	of10000 := []string{`,"kind":"dense","dims":[10000],"layout":"10000"`, `,"kind":"dense","dims":[10000],"layout":"100x50, 100x50"`}
	of150x150 := []string{`,"kind":"dense","dims":[150,150],"layout":"150x150"`}
	old, other := `,"kind":"dense","dims":[10000]`, `,"kind":"dense","dims":[22500]` // of 0.2.0
	all := slices.Concat(sparse[:1], of100x100, of10000, of150x150, []string{other})
	for _, was := range slices.Concat(all, sparse[1:], []string{old}) {
		saved := newTable(t, c)
		train(t, saved, []int64{0, 1}, 1)
		source, err := FromTable("w", config(was), saved, nil)
		require.NoError(t, err)
		dir := t.TempDir()
		part, err := WritePart(context.Background(), dir, 1, 0, 1, []Source{source}, false, nil)
		require.NoError(t, err)
		require.NoError(t, Commit(context.Background(), dir, 1, []ServerPart{part}, nil, nil))
		m, err := newest(dir)
		require.NoError(t, err)
		for _, now := range all {
			same := was == now || slices.Contains(sparse, was) && slices.Contains(sparse, now) ||
				was == old && slices.Contains(slices.Concat(of100x100, of10000), now) || was == other && slices.Contains(of150x150, now) ||
				now == other && slices.Contains(of150x150, was)
			for _, strict := range []bool{true, false} {
				to := newTable(t, c)
				train(t, to, []int64{5}, 1)
				err := m.Restore(context.Background(), nil, IntoTables(map[string]Into{"w": {to, config(now)}}, nil, strict, 0, 1))
				rows := len(holds(t, to).rows)
				if same {
					require.NoError(t, err, "%s into %s", was, now)
					assert.Equal(t, 2, rows)
				} else {
					require.ErrorContains(t, err, `table "w": it is `, "%s into %s", was, now)
					assert.Equal(t, 1, rows, "nothing has changed")
				}
			}
		}
	}
}
