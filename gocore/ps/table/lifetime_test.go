package table

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const livesDim = 3

// lives returns the config of a table whose ids come and go.
func lives(admit, expire, most int64) Config {
	return Config{Dim: livesDim, DType: "float32", Seed: 9, Initializer: Initializer{"uniform", -1, 1},
		Optimizer:  Optimizer{Name: "momentum", LearningRate: 1, Momentum: 0.5},
		AdmitAfter: admit, ExpireAfter: expire, MaxRows: most}
}

// batchOf returns a batch of float32 rows.
func batchOf(t testing.TB, ids []int64, values []float32) Batch {
	i, _ := tensor(t, op.Int64, ids)
	v, _ := tensor(t, op.Float32, values)
	return Batch{IDs: i, Values: v}
}

// content is all that a table holds.
type content struct {
	w, m  []float32
	stamp int64
}

// all reads a table by its ids.
func all(t testing.TB, table *Table) map[int64]content {
	t.Helper()
	none, _ := tensor(t, op.Int64, []int64{})
	n, err := table.IDs(none)
	require.NoError(t, err)
	ids, list := tensor(t, op.Int64, make([]int64, n))
	_, err = table.IDs(ids)
	require.NoError(t, err)
	values, w := tensor(t, op.Float32, make([]float32, n*livesDim))
	states, m := tensor(t, op.Float32, make([]float32, n*livesDim))
	stamps, used := tensor(t, op.Int64, make([]int64, n))
	require.NoError(t, table.Read(Batch{IDs: ids, Values: values, States: states, Stamps: stamps}))
	rows := map[int64]content{}
	for i, id := range list {
		rows[id] = content{w[i*livesDim:][:livesDim], m[i*livesDim:][:livesDim], used[i]}
	}
	return rows
}

func initials(t testing.TB, c Config) func(int64) []float32 {
	c.AdmitAfter, c.ExpireAfter, c.MaxRows = 0, 0, 0
	plain := newTable(t, best(), c)
	ids, id := tensor(t, op.Int64, []int64{0})
	values, row := tensor(t, op.Float32, make([]float32, c.Dim))
	return func(of int64) []float32 {
		id[0] = of
		require.NoError(t, plain.Look(Batch{IDs: ids, Values: values}, false))
		return row
	}
}

// same compares a table with the model.
func same(t testing.TB, m *model, table *Table, some []int64) {
	t.Helper()
	rows := all(t, table) // before Info, which removes what is too old
	m.expire()
	want := map[int64]content{}
	for id, r := range m.rows {
		want[id] = content{r.w, r.m, r.stamp}
	}
	require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(rows)))
	require.Equal(t, want, rows)
	batch := batchOf(t, some, make([]float32, len(some)*livesDim))
	_, there := tensor(t, op.UInt8, make([]byte, len(some)))
	require.NoError(t, table.Find(Batch{IDs: batch.IDs}, there))
	pulled, got := tensor(t, op.Float32, make([]float32, len(some)*livesDim))
	require.NoError(t, table.Pull(Batch{IDs: batch.IDs, Values: pulled}))
	for i, id := range some {
		wanted := m.initial(id)
		if r := m.rows[id]; r != nil {
			wanted = r.w
		}
		require.Equal(t, wanted, got[i*livesDim:][:livesDim], "id %d", id)
		require.Equal(t, m.rows[id] != nil, there[i] == 1)
	}
	info, err := table.Info()
	require.NoError(t, err)
	require.EqualValues(t, len(m.rows), info.Rows)
	require.Equal(t, m.clock, info.Steps)
	require.Equal(t, []int64{m.dropped, m.expired, m.evicted}, []int64{info.Dropped, info.Expired, info.Evicted})
}

// moved returns a new table that goes on where another one is.
func moved(t testing.TB, isa string, from *Table) *Table {
	to := newTable(t, isa, from.Config)
	to.SetSteps(from.Steps())
	rows := all(t, from)
	for piece := range slices.Chunk(slices.Collect(maps.Keys(rows)), 7) { // in a random order
		var w, m []float32
		var stamps []int64
		for _, id := range piece {
			w, m, stamps = append(w, rows[id].w...), append(m, rows[id].m...), append(stamps, rows[id].stamp)
		}
		b := batchOf(t, piece, w)
		b.States, _ = tensor(t, op.Float32, m)
		b.Stamps, _ = tensor(t, op.Int64, stamps)
		require.NoError(t, to.Write(b))
	}
	sketch, err := from.Sketch()
	require.NoError(t, err)
	if sketch != nil {
		require.NoError(t, to.AddSketch(sketch))
	}
	return to
}

// Random pushes, writes and lookups do what the model does, for every instruction set (each has a
// secret of its own), and also in a table that is written from another one halfway.
func TestLifetimeModel(t *testing.T) {
	configs := []Config{lives(3, 0, 0), lives(0, 4, 0), lives(0, 0, 40), lives(2, 3, 50), lives(0, 2, 5), lives(1, 0, 1), lives(4, 9, 160)}
	for number, c := range configs {
		t.Run(fmt.Sprintf("%d-%d-%d", c.AdmitAfter, c.ExpireAfter, c.MaxRows), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(number), 5))
			m := newModel(c, initials(t, c))
			var isas []string
			for _, isa := range []string{"portable", "avx2", "avx512"} {
				if has(isa) {
					isas = append(isas, isa)
				}
			}
			var tables []*Table
			for _, isa := range isas {
				tables = append(tables, newTable(t, isa, c))
			}
			for round := range 160 {
				n, many := 1+random.IntN(60), 20+random.IntN(300)
				ids, g := make([]int64, n), make([]float32, n*livesDim)
				for i := range ids {
					ids[i] = int64(random.IntN(many)) - 50
					if random.IntN(8) == 0 {
						ids[i] *= math.MaxInt64 / 300
					}
				}
				for i := range g {
					g[i] = float32(random.NormFloat64())
				}
				var stamps []int64
				step := int64(0)
				kind := random.IntN(12)
				if kind == 0 {
					step = 1 + random.Int64N(m.clock+3)
				}
				if kind == 2 {
					for range ids {
						stamps = append(stamps, m.clock-random.Int64N(12)+2)
					}
				}
				for _, table := range tables {
					b := batchOf(t, ids, g)
					switch kind {
					case 1: // write
						require.NoError(t, table.Write(b))
					case 2:
						b.States, b.Stamps = b.Values, nil
						b.Stamps, _ = tensor(t, op.Int64, stamps)
						require.NoError(t, table.Write(b))
					case 3:
						table.CountStep()
					default:
						require.NoError(t, table.Push(b, math.NaN(), step))
					}
				}
				switch kind {
				case 1:
					// New rows begin with the states that they would have, of zeros.
					m.write(ids, g, nil, nil)
				case 2:
					m.write(ids, g, g, stamps)
				case 3:
					m.expire()
					m.clock++
				default:
					m.push(ids, g, step)
				}
				if round%3 == 0 {
					for _, table := range tables {
						same(t, m, table, ids)
					}
				}
				if round == 80 { // what has come of ids until now is not moved
					for i := range tables {
						tables[i] = moved(t, isas[i], tables[i])
					}
					m.dropped, m.expired, m.evicted = 0, 0, 0
				}
			}
		})
	}
}

// Clear leaves nothing of an id: neither its row nor its sights.
func TestLifetimeClear(t *testing.T) {
	table := newTable(t, best(), lives(2, 5, 10))
	b := batchOf(t, []int64{1, 2}, make([]float32, 2*livesDim))
	for range 2 {
		require.NoError(t, table.Push(b, math.NaN(), 0))
		require.NoError(t, table.Push(b, math.NaN(), 0))
		assert.Len(t, all(t, table), 2)
		info, err := table.Info()
		require.NoError(t, err)
		assert.EqualValues(t, 2, info.Dropped)
		require.NoError(t, table.Clear())
		assert.Empty(t, all(t, table))
	}
}

// A refused push changes nothing, not even what was counted; an addition is a use.
func TestLifetimeRefusals(t *testing.T) {
	c := lives(2, 0, 0)
	c.Refuse, c.IDs = true, 100
	table := newTable(t, best(), c)
	nan := make([]float32, livesDim)
	nan[1] = float32(math.NaN())
	assert.Error(t, table.Push(batchOf(t, []int64{5}, nan), math.NaN(), 0))
	assert.Error(t, table.Push(batchOf(t, []int64{5, 100}, make([]float32, 2*livesDim)), math.NaN(), 0))
	one := batchOf(t, []int64{5}, []float32{1, 2, 3})
	u, err := table.Prepare(one, math.NaN())
	require.NoError(t, err)
	u.End()
	for want := range 3 {
		u, err := table.Prepare(one, math.NaN())
		require.NoError(t, err)
		require.NoError(t, u.Add())
		u.End()
		assert.Len(t, all(t, table), min(want, 1))
	}
	plain := newTable(t, best(), config("sgd", livesDim))
	one.Stamps = one.IDs
	assert.ErrorContains(t, plain.Write(one), "have no last uses")
	one.Stamps = one.Values
	assert.ErrorContains(t, table.Write(one), "last uses are 3 of float32; 1 ids need as many of int64")
	for text, change := range map[string]func(*Config){
		"admit_after=256 is not from 0 to 255": func(c *Config) { c.AdmitAfter = 256 },
		"admit_after=-1 is not":                func(c *Config) { c.AdmitAfter = -1 },
		"expire_after=-2 is below 0":           func(c *Config) { c.ExpireAfter = -2 },
		"max_rows=-3 is below 0":               func(c *Config) { c.MaxRows = -3 },
		"memory_limit=1000 is too little":      func(c *Config) { c.MemoryLimit = 1000 },
	} {
		wrong := lives(2, 3, 4)
		change(&wrong)
		_, err := New(wrong)
		assert.ErrorContains(t, err, text)
		assert.Equal(t, status.Argument, status.CodeOf(err))
	}
}

// Several threads that share a push do what one does.
func TestLifetimeThreadsAgree(t *testing.T) {
	c := config("row_wise_adagrad", sharedDim)
	c.AdmitAfter, c.ExpireAfter, c.MaxRows = 2, 3, 3000
	train := func(threads int) (rows []float32, info Info) {
		table := newTable(t, best(), c)
		table.Threads = threads
		random := rand.New(rand.NewPCG(8, 8))
		ids, of := tensor(t, op.Int64, make([]int64, sharedIDs))
		values, g := tensor(t, op.Float32, make([]float32, sharedIDs*sharedDim))
		for range 8 {
			for i := range of {
				of[i] = int64(math.Abs(random.NormFloat64()) * 2000)
			}
			for i := range g {
				g[i] = float32(i%7) - 3
			}
			require.NoError(t, table.Push(Batch{IDs: ids, Values: values}, math.NaN(), 0))
		}
		require.Equal(t, threads, max(1, table.threads(sharedIDs)))
		for i := range of {
			of[i] = int64(i)
		}
		require.NoError(t, table.Pull(Batch{IDs: ids, Values: values}))
		info, err := table.Info()
		require.NoError(t, err)
		info.Bytes = 0 // threads take slabs in any order
		info.IndexBytes = 0
		return g, info
	}
	want, one := train(1)
	got, three := train(3)
	assert.True(t, slices.Equal(want, got))
	assert.Equal(t, one, three)
	assert.Positive(t, one.Dropped)
	assert.Positive(t, one.Evicted)
}

// The cap holds at any time that another thread can see, with pushes of several threads, and rows
// are whole.
func TestCapUnderPushes(t *testing.T) {
	c := lives(2, 0, 500)
	c.Initializer = Initializer{Name: "zeros"}
	table := newTable(t, best(), c)
	var pushers, watcher sync.WaitGroup
	done := make(chan struct{})
	for thread := range 3 {
		random := rand.New(rand.NewPCG(uint64(thread), 1))
		ids, of := tensor(t, op.Int64, make([]int64, 200))
		values, _ := tensor(t, op.Float32, slices.Repeat([]float32{1}, 200*livesDim))
		pushers.Add(1)
		go func() {
			defer pushers.Done()
			for range 150 {
				for i := range of {
					of[i] = random.Int64N(2000)
				}
				assert.NoError(t, table.Push(Batch{IDs: ids, Values: values}, math.NaN(), 0))
			}
		}()
	}
	ids, of := tensor(t, op.Int64, make([]int64, 2000))
	for i := range of {
		of[i] = int64(i)
	}
	values, row := tensor(t, op.Float32, make([]float32, 2000*livesDim))
	watcher.Add(1)
	go func() {
		defer watcher.Done()
		for {
			select {
			case <-done:
				return
			default:
			}
			info, err := table.Info()
			assert.NoError(t, err)
			assert.LessOrEqual(t, info.Rows, c.MaxRows)
			assert.NoError(t, table.Pull(Batch{IDs: ids, Values: values}))
			for i := 0; i < len(row); i += livesDim {
				assert.Equal(t, row[i], row[i+livesDim-1])
			}
		}
	}()
	pushers.Wait()
	close(done)
	watcher.Wait()
	info, err := table.Info()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, info.Rows, c.MaxRows*15/16-200)
	assert.Zero(t, table.t.claims)
}

// A thousand rounds of new ids take no more memory than some rounds have.
func TestChurnTakesNoMemory(t *testing.T) {
	for _, c := range []Config{lives(0, 0, 600), lives(0, 3, 0)} {
		table := newTable(t, best(), c)
		ids, of := tensor(t, op.Int64, make([]int64, 200))
		values, _ := tensor(t, op.Float32, make([]float32, 200*livesDim))
		var early int64
		for round := range 1000 {
			for i := range of {
				of[i] = int64(round*200 + i)
			}
			require.NoError(t, table.Push(Batch{IDs: ids, Values: values}, math.NaN(), 0))
			if round == 50 {
				early = bytesOf(t, table)
			}
		}
		// A shard's part of the rows varies, and so do the slabs that its largest part took.
		assert.LessOrEqual(t, bytesOf(t, table), early*3/2, "%+v", c)
	}
}

// A table at its memory_limit takes pushes that need no more, refuses others whole, and gives back
// what it kept for a push.
func TestLifetimeAndTheLimit(t *testing.T) {
	c := lives(0, 0, 4000)
	c.MemoryLimit = 1 << 20
	table := newTable(t, best(), c)
	pushed := func(from, to int64) error {
		ids := make([]int64, 0, to-from)
		for id := from; id < to; id++ {
			ids = append(ids, id)
		}
		return table.Push(batchOf(t, ids, make([]float32, len(ids)*livesDim)), math.NaN(), 0)
	}
	for round := range int64(40) { // the rows of a cap fit
		require.NoError(t, pushed(round*500, round*500+500))
	}
	before := all(t, table)
	err := pushed(100000, 120000)
	assert.Equal(t, status.NoMemory, status.CodeOf(err))
	assert.Equal(t, before, all(t, table))
	for i := range table.t.shard {
		assert.Zero(t, table.t.shard[i].promised)
	}
	info, err := table.Info()
	require.NoError(t, err)
	assert.LessOrEqual(t, info.Bytes, c.MemoryLimit)
	assert.Greater(t, info.Rows, int64(3000))
}

func bytesOf(t testing.TB, table *Table) int64 {
	info, err := table.Info()
	require.NoError(t, err)
	return info.Bytes
}
