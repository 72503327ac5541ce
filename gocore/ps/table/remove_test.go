package table

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Rows that are removed are as if they had never been made, and their memory is used again.
func TestRemove(t *testing.T) {
	for name, config := range map[string]Config{"rows stay": lives(0, 0, 0), "rows come and go": lives(0, 1000, 0)} {
		t.Run(name, func(t *testing.T) {
			table, err := New(config)
			require.NoError(t, err)
			defer table.Free()
			first := initials(t, config)
			random := rand.New(rand.NewPCG(1, 2))
			there := map[int64]int{} // how often an id was pushed
			var bytes int64
			for round := range 60 {
				chosen := map[int64]bool{}
				for range 500 {
					chosen[random.Int64N(2000)-1000] = true
				}
				ids := make([]int64, 0, len(chosen))
				for id := range chosen {
					ids = append(ids, id)
				}
				values := make([]float32, len(ids)*livesDim)
				for i := range values {
					values[i] = 1
				}
				require.NoError(t, table.Push(batchOf(t, ids, values), 1, 0))
				for _, id := range ids {
					there[id]++
				}
				gone, expected := make([]int64, 0, 700), int64(0)
				for range 700 { // some have no row, some come twice
					id := random.Int64N(2400) - 1200
					gone = append(gone, id)
					if there[id] > 0 {
						expected++
						delete(there, id)
					}
				}
				list, _ := tensor(t, op.Int64, gone)
				removed, err := table.Remove(list)
				require.NoError(t, err)
				assert.Equal(t, expected, removed)
				info, err := table.Info()
				require.NoError(t, err)
				require.EqualValues(t, len(there), info.Rows)
				if round == 20 {
					bytes = info.Bytes
				}
			}
			info, err := table.Info()
			require.NoError(t, err)
			assert.LessOrEqual(t, info.Bytes, bytes+bytes/2)
			every := make([]int64, 0, 2000)
			_, found := tensor(t, op.UInt8, make([]byte, 2000))
			for id := int64(-1000); id < 1000; id++ {
				every = append(every, id)
			}
			batch := batchOf(t, every, make([]float32, len(every)*livesDim))
			_, values := tensor(t, op.Float32, make([]float32, len(every)*livesDim))
			batch.Values, values = tensor(t, op.Float32, values)
			require.NoError(t, table.Find(batch, found))
			for i, id := range every {
				require.Equal(t, there[id] > 0, found[i] == 1, id)
				if there[id] == 0 {
					continue
				}
				expected, speed := first(id)[0], float32(0)
				for range there[id] { // momentum begins anew with a row that is made anew
					speed = speed*0.5 + 1
					expected -= speed
				}
				require.InDelta(t, expected, values[i*livesDim], 1e-4, id)
			}
		})
	}
}

func TestRemoveBesideOtherCalls(t *testing.T) {
	table, err := New(lives(0, 0, 0))
	require.NoError(t, err)
	ids := make([]int64, 1000)
	for i := range ids {
		ids[i] = int64(i)
	}
	var all sync.WaitGroup
	for k := range 3 {
		batch := batchOf(t, ids, make([]float32, len(ids)*livesDim))
		all.Add(1)
		go func() {
			defer all.Done()
			for range 50 {
				switch k {
				case 0:
					assert.NoError(t, table.Pull(batch))
				case 1:
					assert.NoError(t, table.Push(batch, 1, 0))
				default:
					_, err := table.Remove(batch.IDs)
					assert.NoError(t, err)
				}
			}
		}()
	}
	all.Wait()
	list, _ := tensor(t, op.Int64, ids)
	_, err = table.Remove(list)
	require.NoError(t, err)
	info, err := table.Info()
	require.NoError(t, err)
	assert.Zero(t, info.Rows)
	floats, _ := tensor(t, op.Float32, []float32{1})
	_, err = table.Remove(floats)
	require.ErrorContains(t, err, "remove: ids are of float32")
	table.Free()
	_, err = table.Remove(list)
	require.ErrorContains(t, err, "the table was closed")
}
