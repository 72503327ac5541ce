package server

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/ps/request"
)

// compensating makes a server that compensates gradients, with a table of so many bytes at most.
func compensating(t *testing.T, lambda, decay float64, backups, limit int64, trainers ...int) *Server {
	s := New(Config{Servers: 1, Trainers: trainers, Rule: Rule{Mode: "dc_asgd", Lambda: lambda, Decay: decay, Backups: backups}})
	t.Cleanup(s.Tables.Free)
	m := meta("t")
	m.Config.MemoryLimit, m.Config.Optimizer.LearningRate = limit, 0.5
	_, err := s.Declare(trainers[0], m)
	require.NoError(t, err)
	return s
}

func backed(s *Server) int64 { return s.Statistics().Tables[0].Backups }

// TestDelaysAreCompensated has trainers pull and push in random order, and compares bit by bit with
// a simulation in one process.
func TestDelaysAreCompensated(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		lambda, decay := r.Float64(), float64(seed%2)*r.Float64() // constant, or divided by the root of a mean
		ranks := []int{0, 3, 5}
		s := compensating(t, lambda, decay, 100, 0, ranks...)
		rows, means, backup := map[int64][dim]float32{}, map[int64][dim]float32{}, map[int]map[int64][dim]float32{}
		for _, rank := range ranks {
			backup[rank] = map[int64][dim]float32{}
		}
		for range 150 {
			rank := ranks[r.IntN(len(ranks))]
			var ids []int64
			for id := range int64(6) {
				if r.IntN(2) == 0 {
					ids = append(ids, id)
				}
			}
			ids = outside(ids...)
			if r.IntN(2) == 0 {
				got := pull(t, s, rank, ids...)
				for i, id := range ids {
					assert.Equal(t, rows[id], [dim]float32(got[i*dim:]), "seed %d: row %d", seed, id)
					backup[rank][id] = rows[id]
				}
				continue
			}
			gradients := memory[float32](dim * len(ids))
			for i := range gradients {
				gradients[i] = r.Float32() - 0.5
			}
			given := slices.Clone(gradients)
			require.NoError(t, (<-push(s, rank, 0, ids, gradients)).err)
			assert.Equal(t, given, gradients, "the trainer's memory is as it was")
			for i, id := range ids {
				w := rows[id]
				before, is := backup[rank][id]
				for j := range w {
					g := given[i*dim+j]
					by, m := float32(lambda), float32(decay)
					if decay > 0 {
						mean := means[id]
						mean[j] = float32(m*mean[j]) + float32((1-m)*float32(g*g))
						means[id] = mean
						by /= float32(math.Sqrt(float64(mean[j] + 1e-7)))
					}
					if is {
						g += float32(float32(float32(by*g)*g) * (w[j] - before[j]))
					}
					w[j] -= float32(0.5 * g)
				}
				rows[id] = w
			}
		}
		require.NoError(t, s.Complete(3))
		assert.EqualValues(t, len(backup[0])+len(backup[5]), backed(s), "who has completed has no backups")
		s.Tables.ForgetBackups()
		assert.Zero(t, backed(s))
	}
}

// A row that a trainer has not pulled within its bound is updated as in asynchronous training.
func TestBackupsAreBounded(t *testing.T) {
	s := compensating(t, 1, 0, 8, 0, 0, 1)
	all := make([]int64, 40)
	for i := range all {
		all[i] = int64(i)
		pull(t, s, 0, all[i])
		assert.LessOrEqual(t, backed(s), int64(8))
	}
	assert.EqualValues(t, 8, backed(s), "each row at a time: the last ones")
	pull(t, s, 0, outside(all...)...)
	assert.EqualValues(t, 4, backed(s), "of more than fit the first half")
	pull(t, s, 0, 0, 1)
	pull(t, s, 1, 0, 39)
	ones := slices.Repeat([]float32{1}, 2*dim)
	require.NoError(t, (<-push(s, 1, 0, outside[int64](0, 39), outside(ones...))).err) // both rows are -0.5
	require.NoError(t, (<-push(s, 0, 0, outside[int64](0, 39), outside(ones...))).err)
	got := pull(t, s, 0, 0, 39)
	assert.Equal(t, []float32{-0.5 - 0.5*(1-0.5), -1}, []float32{got[0], got[dim]})

	dense := New(Config{Servers: 1, Trainers: []int{0}, Rule: Rule{Lambda: 1, Backups: 2}})
	t.Cleanup(dense.Tables.Free)
	m := meta("d")
	m.Dims = []int64{160}
	_, err := dense.Declare(0, m)
	require.NoError(t, err)
	pull(t, dense, 0, outside(all...)...)
	assert.EqualValues(t, 40, backed(dense), "a dense parameter has all of them")
}

func TestBackupsCountInTheLimit(t *testing.T) {
	const limit = 8 << 20
	s := compensating(t, 1, 0, 1<<20, limit, 0, 1)
	ids := memory[int64](4000)
	most, dropped := int64(0), false
	for step := range int64(60) {
		for i := range ids {
			ids[i] = step*int64(len(ids)) + int64(i)
		}
		out := memory[float32](dim * len(ids))
		r := <-send(s, int(step%2), request.Head{Op: request.Pull, Seen: -1}, ids, nil, out)
		if r.err != nil {
			assert.ErrorContains(t, r.err, "memory_limit")
			break
		}
		told := s.Statistics().Tables[0]
		assert.LessOrEqual(t, told.Bytes, int64(limit))
		dropped = dropped || told.Backups < most
		most = max(most, told.Backups)
	}
	assert.True(t, dropped, "backups give way to rows")
	assert.Greater(t, s.Statistics().Tables[0].Rows, int64(100_000))
}

// A push that is refused leaves the means of squares as they were, of all its tables: the next push
// is what it would have been without it.
func TestARefusedPushLeavesTheMeans(t *testing.T) {
	var rows [2][]float32
	for i := range rows {
		s := compensating(t, 1, 0.5, 8, 0, 0, 1)
		other := meta("u")
		other.Config.Refuse = true
		_, err := s.Declare(0, other)
		require.NoError(t, err)
		ids, ones := outside[int64](1), outside(slices.Repeat([]float32{1}, dim)...)
		require.NoError(t, (<-push(s, 0, 0, ids, ones)).err)
		pull(t, s, 0, 1)
		require.NoError(t, (<-push(s, 1, 0, ids, ones)).err)
		if i == 1 {
			gradients := outside(slices.Repeat([]float32{100}, 2*dim)...)
			gradients[dim] = float32(math.NaN())
			head := request.Head{Op: request.Push, Seen: -1, Tables: []request.TableRows{{Table: 0, Count: 1, Rate: math.NaN()}, {Table: 1, Count: 1, Rate: math.NaN()}}}
			refused := make(chan error, 1)
			s.Handle(&Incoming{From: 0, Header: head.Encode(), IDs: outside[int64](1, 1), Values: bytesOf(gradients), Reply: func(_ []byte, err error) { refused <- err }})
			require.ErrorContains(t, <-refused, "not finite")
		}
		require.NoError(t, (<-push(s, 0, 0, ids, ones)).err)
		rows[i] = pull(t, s, 1, 1)
	}
	assert.Equal(t, rows[0], rows[1])
}

// Trainers push at the same time: each update is of a row that is not changed meanwhile. With a
// gradient of 1 and lambda 1 the compensated one is 1 + w - backup.
func TestCompensatedPushesAtTheSameTime(t *testing.T) {
	s := compensating(t, 1, 0, 100, 0, 0, 1, 2, 3)
	var all sync.WaitGroup
	for rank := range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			ids, gradient := outside[int64](1), outside[float32](1, 1, 1, 1)
			for range 50 {
				pull(t, s, rank, ids...)
				assert.NoError(t, (<-push(s, rank, 0, ids, gradient)).err)
			}
		}()
	}
	all.Wait()
	got := pull(t, s, 0, 1)
	assert.Equal(t, []float32{got[0], got[0], got[0], got[0]}, got)
	assert.False(t, math.IsNaN(float64(got[0])))
}
