package client

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// inGeo makes trainers in geo training with two servers.
func inGeo(t *testing.T, every int64, c table.Optimizer, limit int64, ranks ...int) (all []*trainer, servers []*server.Server) {
	servers = newServers(t, false, ranks...)
	for _, rank := range ranks {
		one := newTrainer(t, rank, servers, nil)
		for _, on := range []*Table{one.t, one.u} {
			on.Config = table.Config{Dim: dim, DType: "float32", MemoryLimit: limit, Refuse: true, Initializer: table.Initializer{Name: "zeros"}, Optimizer: c}
			on.Refuse = true
		}
		one.SetGeo(every, len(ranks))
		all = append(all, one)
	}
	return all, servers
}

var plainSGD = table.Optimizer{Name: "sgd", LearningRate: 1}

// simulated is geo training in one process: a map of rows for the servers, and one for each copy.
type simulated struct {
	far   map[int64]float32
	own   []map[int64]float32
	base  []map[int64]float32
	steps []int64
	every int64
}

func newSimulated(trainers int, every int64) *simulated {
	s := &simulated{far: map[int64]float32{}, steps: make([]int64, trainers), every: every}
	for range trainers {
		s.own, s.base = append(s.own, map[int64]float32{}), append(s.base, map[int64]float32{})
	}
	return s
}

func (s *simulated) pull(who int, id int64) float32 {
	if v, is := s.own[who][id]; is {
		return v
	}
	return s.far[id]
}

func (s *simulated) push(who int, rate, gradient float32, ids []int64) {
	sums := map[int64]float32{}
	for _, id := range ids {
		sums[id] += gradient
	}
	for id, sum := range sums {
		if _, is := s.own[who][id]; !is {
			s.own[who][id], s.base[who][id] = s.far[id], s.far[id]
		}
		s.own[who][id] -= float32(rate * sum)
	}
	if s.steps[who]++; s.steps[who] == s.every {
		s.exchange(who)
	}
}

func (s *simulated) exchange(who int) {
	for id, v := range s.own[who] {
		s.far[id] += float32((float64(v) - float64(s.base[who][id])) / float64(len(s.own)))
	}
	clear(s.own[who])
	clear(s.base[who])
	s.steps[who] = 0
}

// TestGeoIsWhatASimulationGives has trainers pull, push and flush in random order, and compares
// each row bit by bit with a simulation in one process.
func TestGeoIsWhatASimulationGives(t *testing.T) {
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 0))
		every, n := 1+r.Int64N(5), 1+r.IntN(3)
		ranks := []int{0, 1, 2}[:n]
		all, _ := inGeo(t, every, plainSGD, 0, ranks...)
		s := newSimulated(n, every)
		if seed%3 == 0 { // a row in a request
			for _, one := range all {
				one.geo.most = 1
			}
		}
		for range 80 {
			who := r.IntN(n)
			one := all[who]
			ids := make([]int64, 1+r.IntN(6))
			for i := range ids {
				ids[i] = r.Int64N(9)
			}
			switch r.IntN(8) {
			case 0:
				require.NoError(t, one.Flush(0))
				s.exchange(who)
			case 1, 2, 3:
				rate, gradient := r.Float32(), r.Float32()-0.5
				rows := one.rows(one.t, gradient, ids...)
				rows.Rate = float64(rate)
				require.NoError(t, one.Push([]TableRows{rows}, 0))
				s.push(who, rate, gradient, ids)
			default:
				want := make([]float32, len(ids))
				for i, id := range ids {
					want[i] = s.pull(who, id)
				}
				one.pulled(want, ids...)
			}
		}
	}
}

func TestWhatAnExchangeSends(t *testing.T) {
	all, servers := inGeo(t, 3, plainSGD, 0, 0, 1)
	one, other := all[0], all[1]
	require.NoError(t, one.push(4, 0, 1))
	require.NoError(t, one.Push([]TableRows{one.rows(one.t, 2, 1), one.rows(one.u, 6, 5)}, 0))
	one.pulled([]float32{-4, -6, 0}, 0, 1, 2)
	other.pulled([]float32{0, 0}, 0, 1)
	rows, bytes := one.Copies()
	assert.EqualValues(t, 2*(2+1), rows)
	assert.Positive(t, bytes)
	require.NoError(t, one.Push(nil, 0)) // a step without rows
	for s, end := range one.link.ends {
		assert.Equal(t, request.Add, end.last().Op)
		assert.EqualValues(t, 1, servers[s].Statistics().Pushes, "server %d gets one request in three steps", s)
	}
	other.pulled([]float32{-2, -3}, 0, 1) // a half of it: there are two trainers
	one.pulled([]float32{-2, -3}, 0, 1)
	rows, _ = one.Copies()
	assert.Zero(t, rows, "what was exchanged is forgotten")
	require.NoError(t, one.push(2, 0))
	one.Removed() // the servers were restored: what came after the cut is lost
	require.NoError(t, one.Flush(0))
	one.pulled([]float32{-2}, 0)
}

// With one trainer, and with an optimizer that has states, geo training is training in one process.
func TestTheStatesStayWithTheTrainer(t *testing.T) {
	adam := table.Optimizer{Name: "adam", LearningRate: 0.1, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8}
	all, _ := inGeo(t, 2, adam, 1<<20, 0)
	one := all[0]
	alone, err := table.New(one.t.Config)
	require.NoError(t, err)
	t.Cleanup(alone.Free)
	for step := range 9 {
		ids := []int64{int64(step % 3), 7}
		r := one.rows(one.t, float32(step)+0.5, ids...)
		r.Rate = 0.1
		require.NoError(t, one.Push([]TableRows{r}, 0))
		require.NoError(t, alone.Push(table.Batch{IDs: r.IDs, Values: r.Values}, 0.1, 0))
		want := one.rows(one.t, 0, ids...)
		require.NoError(t, alone.Pull(table.Batch{IDs: want.IDs, Values: want.Values}))
		require.NoError(t, one.Pull([]TableRows{r}))
		assert.InDeltaSlice(t, valuesOf(want.Values), valuesOf(r.Values), 1e-6, "step %d", step)
	}
}

// A copy has the table's limit: one that is full is exchanged before its time.
func TestAFullCopyIsExchanged(t *testing.T) {
	all, servers := inGeo(t, 1000, plainSGD, 4<<20, 0)
	one := all[0]
	ids := make([]int64, 2000)
	for step := range int64(60) {
		for i := range ids {
			ids[i] = step*int64(len(ids)) + int64(i)
		}
		require.NoError(t, one.push(1, ids...))
	}
	_, bytes := one.Copies()
	assert.LessOrEqual(t, bytes, int64(2*4<<20))
	assert.Positive(t, servers[0].Statistics().Pushes)
	require.NoError(t, one.Flush(0))
	one.pulled([]float32{-1, -1}, 0, 119_999)
	adam := table.Optimizer{Name: "adagrad", LearningRate: 1}
	all, _ = inGeo(t, 1000, adam, 4<<20, 0)
	for step := range int64(60) {
		for i := range ids {
			ids[i] = step*int64(len(ids)) + int64(i)
		}
		err := all[0].push(1, ids...)
		if err != nil {
			assert.Equal(t, status.NoMemory, status.CodeOf(err))
			assert.ErrorContains(t, err, `table "t", this trainer's copy`)
			return
		}
	}
	t.Error("the states grow for ever")
}

// A server may have got an exchange that has failed: it is not sent again. One that nobody has got
// is.
func TestAnExchangeThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		fate  fate
		after []float32
	}{"full": {full, []float32{-1, -1}}, "its answer is lost": {unheard, []float32{-1, -1}}, "it is lost": {lost, []float32{-1, 0}}} {
		t.Run(name, func(t *testing.T) {
			all, _ := inGeo(t, 100, plainSGD, 0, 0)
			one := all[0]
			require.NoError(t, one.push(1, 0, 1))
			one.link.ends[1].next(c.fate)
			err := one.soon(func() error { return one.Flush(0) })
			assert.Equal(t, status.Timeout, status.CodeOf(err))
			require.NoError(t, one.Flush(0))
			one.pulled(c.after, 0, 1)
		})
	}
	t.Run("in pieces", func(t *testing.T) {
		all, _ := inGeo(t, 100, plainSGD, 0, 0)
		one := all[0]
		one.geo.most = 2 * 4 * dim
		require.NoError(t, one.push(1, 0, 1, 2, 3, 4, 5))
		one.link.ends[0].next(well, unheard) // a server may have got the second of three pieces
		assert.Equal(t, status.Timeout, status.CodeOf(one.soon(func() error { return one.Flush(0) })))
		one.pulled([]float32{-1, -1, -1, -1, -1, -1}, 0, 1, 2, 3, 4, 5)
		one.link.ends[1].next(full) // and nobody this
		assert.Error(t, one.soon(func() error { return one.Flush(0) }))
		require.NoError(t, one.push(1, 0))
		require.NoError(t, one.Flush(0))
		one.pulled([]float32{-2, -1, -1, -1, -1, -1}, 0, 1, 2, 3, 4, 5)
		rows, _ := one.Copies()
		assert.Zero(t, rows)
	})
	all, _ := inGeo(t, 100, plainSGD, 0, 0)
	one := all[0]
	bad := one.rows(one.t, 1, 0, 1)
	floatsOf(bad.Values)[1] = float32(math.NaN())
	assert.ErrorContains(t, one.Push([]TableRows{bad}, 0), "not finite")
	assert.ErrorContains(t, one.Push([]TableRows{one.rows(one.u, 1, 0), bad}, 0), "not finite")
	require.NoError(t, one.Flush(0))
	one.pulled([]float32{0, 0}, 0, 1)
	assert.ErrorContains(t, one.Push([]TableRows{one.rows(one.t, 1, 0), one.rows(one.t, 1, 0)}, 0), "named twice")
	one.Complete()
	assert.Error(t, one.push(1, 0))
}

// What a refused push has fetched is no copy: pulls bring what the servers have.
func TestARefusedPushLeavesNoCopies(t *testing.T) {
	for name, c := range map[string]table.Optimizer{"without states": plainSGD, "with states": {Name: "adagrad", LearningRate: 1}} {
		t.Run(name, func(t *testing.T) {
			all, _ := inGeo(t, 100, c, 4<<20, 0, 1)
			one, other := all[0], all[1]
			written := func(value float32, ids ...int64) {
				t.Helper()
				require.NoError(t, other.Write([]TableRows{other.rows(one.t, value, ids...)}))
				one.pulled(slices.Repeat([]float32{value}, len(ids)), ids...)
			}
			bad := one.rows(one.t, 1, 0, 1)
			floatsOf(bad.Values)[1] = float32(math.NaN())
			refused := func(tables ...TableRows) {
				t.Helper()
				assert.Error(t, one.Push(tables, 0))
			}
			refused(bad)
			written(5, 0, 1)
			refused(one.rows(one.u, 1, 0), bad)
			written(6, 0, 1)
			require.NoError(t, one.push(0, 7)) // a push before, and one behind
			refused(bad)
			written(7, 0, 1)
			refused(one.rows(one.t, 1, 2), one.rows(one.u, float32(math.Inf(1)), 3))
			written(8, 0, 1, 2)
			require.NoError(t, one.push(0, 1))
			require.NoError(t, one.Flush(0))
			written(9, 0, 1, 2, 7)

			// Rows that do not fit into the limit, without a push before and behind one.
			var many [100_000]int64
			for i := range many {
				many[i] = int64(i)
			}
			for range 2 {
				assert.Equal(t, status.NoMemory, status.CodeOf(one.push(1, many[:]...)))
				written(10, 0, 1, 2, 99_999)
				require.NoError(t, one.push(0, 7))
			}
			one.Removed()
			written(11, 0, 7)
		})
	}
}

// Other threads pull while a trainer pushes and exchanges: what they see is a row that there was.
func TestPullsBesidePushes(t *testing.T) {
	all, _ := inGeo(t, 3, plainSGD, 0, 0)
	one := all[0]
	var end atomic.Bool
	var pulling sync.WaitGroup
	for range 2 {
		pulling.Add(1)
		go func() {
			defer pulling.Done()
			var before float32
			for !end.Load() {
				got, err := one.pull(0, 1, 0)
				assert.NoError(t, err)
				assert.LessOrEqual(t, got[0], before, "it falls")
				assert.LessOrEqual(t, got[2], before)
				before = max(got[0], got[2])
			}
		}()
	}
	for range 200 {
		assert.NoError(t, one.push(1, 0, 1))
	}
	end.Store(true)
	pulling.Wait()
	one.pulled([]float32{-200, -200}, 0, 1)
}
