package world

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/segment"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/transport/transportfake"
)

// blind is an exchange of a rank that cannot open the files of some ranks through /proc: it learns addresses of
// processes that do not exist.
type blind struct {
	transport.Exchange
	to      []int
	gathers int
}

func (b *blind) Gather(words []int64, wait transport.Wait) ([][]int64, error) {
	rows, err := b.Exchange.Gather(words, wait)
	if b.gathers++; b.gathers == 1 && err == nil {
		rows = slices.Clone(rows)
		for _, r := range b.to {
			rows[r] = slices.Clone(rows[r])
			rows[r][0] = 1 << 30
		}
	}
	return rows, err
}

// TestHandover has ranks 0, 1, 2 on one node and 3, 4 on another.
func TestHandover(t *testing.T) {
	nodes := [][]int{{0, 1, 2}, {3, 4}}
	for name, c := range map[string]struct {
		blind            map[int][]int // by rank
		without          int           // a rank that has no file; -1: none
		opened, complete []bool
	}{
		"all open":         {nil, -1, []bool{true, true, true, true, true}, []bool{true, true, true, true, true}},
		"one lacks one":    {map[int][]int{1: {0}}, -1, []bool{true, false, true, true, true}, []bool{true, true, true, true, true}},
		"all lack some":    {map[int][]int{0: {1, 2}, 1: {2}, 2: {0}, 3: {4}, 4: {3}}, -1, []bool{false, false, false, false, false}, []bool{true, true, true, true, true}},
		"one has no file":  {nil, 2, []bool{false, false, false, true, true}, []bool{false, false, false, true, true}},
		"and one is blind": {map[int][]int{4: {3}}, 0, []bool{false, false, false, true, false}, []bool{false, false, false, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			began := time.Now()
			transportfake.Each(transportfake.New([]int{0, 0, 0, 1, 1}), func(x transport.Exchange) {
				rank, peers := x.Rank(), nodes[x.Rank()/3]
				taken := map[int]*segment.File{}
				h := handover{comm: &blind{Exchange: x, to: c.blind[rank]}, peers: peers, givers: peers, size: 4096}
				h.take = func(r int, f *segment.File) error {
					taken[r] = f
					return nil
				}
				file, err := segment.New("test", 4096)
				assert.NoError(t, err)
				defer file.Close()
				if rank != c.without {
					h.file = file
				}
				opened, complete, failed := h.run()
				mu.Lock()
				defer mu.Unlock()
				assert.NoError(t, failed)
				assert.Equal(t, c.opened, opened)
				assert.Equal(t, c.complete, complete)
				for _, r := range peers {
					assert.Equal(t, r != rank && r != c.without, taken[r] != nil, "file of %d on %d", r, rank)
					if taken[r] != nil {
						assert.Equal(t, taken[r].PID() == 0, slices.Contains(c.blind[rank], r), "file of %d on %d", r, rank)
						taken[r].Close()
					}
				}
				assert.Equal(t, len(c.blind[rank]) > 0, h.refused != nil)
			})
			assert.Less(t, time.Since(began), takeLimit, "a giver waited for ranks that do not come")
		})
	}
}

// If the memory for messages cannot be made, the rank that should have made it knows why, and the others know which
// rank that is.
func TestMemoryThatCannotBeMade(t *testing.T) {
	transportfake.Each(transportfake.New([]int{0, 0, 0}), func(x transport.Exchange) {
		c, refused, err := connect(sharing(x, transport.EveryRank(3), messagesFile, -1))
		assert.NoError(t, err)
		assert.Nil(t, c)
		why := "its own error says why"
		if x.Rank() == 0 {
			why = "cannot size shared memory"
		}
		assert.ErrorContains(t, refused, "rank 0 cannot share memory")
		assert.ErrorContains(t, refused, why)
		assert.Equal(t, []int{0}, status.Plain(refused).Ranks)
	})
}
