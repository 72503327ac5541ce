package neighbours

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/paddlempi/paddlempi/gocore/grid"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Patterns are the patterns of a group: who exchanges with whom. A call names one by its number. They stay as long as
// the group; equal ones have one number. The zero value is ready for use; all methods are safe for concurrent use.
type Patterns struct {
	mu     sync.Mutex
	list   atomic.Pointer[[]*pattern]
	number map[string]int32
}

// pattern is a halo on a grid, or a graph.
type pattern struct {
	halo  *grid.Halo
	pairs []grid.Pair
	hash  uint64 // of the halo
	// Of a graph: the members to which this one gives, and from which it gets. toOrder and fromOrder sort them.
	to, from           []int
	toOrder, fromOrder []int
	plans              atomic.Pointer[[]*plan] // of a halo, the newest first
}

// NewHalo returns the number of the pattern for a halo on a grid of all members of a group of size.
func (p *Patterns) NewHalo(size int, h *grid.Halo) (int32, error) {
	if h.Size() != size {
		return 0, status.New(status.Argument, "a grid of %v has %d ranks, the group has %d", h.Dims, h.Size(), size)
	}
	key := fmt.Sprint("halo", h.Dims, h.Periodic, h.Widths)
	return p.add(key, func() *pattern {
		sum := fnv.New64a()
		sum.Write([]byte(key))
		return &pattern{halo: h, pairs: h.Pairs(), hash: sum.Sum64()}
	}), nil
}

// NewGraph returns the number of the pattern of a graph: the member rank gives to some members, and gets from some.
func (p *Patterns) NewGraph(size, rank int, to, from []int) (int32, error) {
	for _, r := range slices.Concat(to, from) {
		if r < 0 || r >= size {
			return 0, status.New(status.Argument, "rank %d is not in the group, which has ranks 0 to %d", r, size-1)
		}
	}
	if count(to, rank) != count(from, rank) {
		return 0, status.New(status.Argument, "rank %d of the group gives to itself %d times, and gets from itself %d times", rank, count(to, rank), count(from, rank))
	}
	return p.add(fmt.Sprint("graph", to, from), func() *pattern {
		return &pattern{to: to, from: from, toOrder: inOrder(to), fromOrder: inOrder(from)}
	}), nil
}

func count(ranks []int, rank int) (n int) {
	for _, r := range ranks {
		if r == rank {
			n++
		}
	}
	return n
}

// inOrder returns the indexes of ranks, by rank. Equal ones keep their order.
func inOrder(ranks []int) []int {
	order := make([]int, len(ranks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return ranks[x] - ranks[y] })
	return order
}

func (p *Patterns) add(key string, make func() *pattern) int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number, ok := p.number[key]; ok {
		return number
	}
	var list []*pattern
	if old := p.list.Load(); old != nil {
		list = slices.Clone(*old)
	}
	list = append(list, make())
	p.list.Store(&list)
	if p.number == nil {
		p.number = map[string]int32{}
	}
	p.number[key] = int32(len(list) - 1)
	return int32(len(list) - 1)
}

func (p *Patterns) get(number int32) *pattern {
	list := p.list.Load()
	if list == nil || number < 0 || int(number) >= len(*list) {
		return nil
	}
	return (*list)[number]
}
