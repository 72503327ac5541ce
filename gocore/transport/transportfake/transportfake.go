// Package transportfake is an exchange of N ranks in one process without MPI, for tests. mpifake has endpoints,
// too, and is strict where MPI is.
package transportfake

import (
	"slices"
	"sync"
	"time"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// exchange is one rank.
type exchange struct {
	*meeting
	rank  int
	nodes []int // of all ranks
}

// meeting is where the ranks lay down their words.
type meeting struct {
	size int

	mu    sync.Mutex
	over  int // rounds
	rows  [][]int64
	come  int
	last  [][]int64        // the words of the round that was over last
	parts map[int]*meeting // of the nodes
}

func newMeeting(size int) *meeting {
	return &meeting{size: size, rows: make([][]int64, size), parts: map[int]*meeting{}}
}

// New makes a rank for each node in the list.
func New(nodes []int) []transport.Exchange {
	all := newMeeting(len(nodes))
	ranks := make([]transport.Exchange, len(nodes))
	for i := range ranks {
		ranks[i] = &exchange{all, i, nodes}
	}
	return ranks
}

// Each runs f for every rank, each in a goroutine.
func Each(ranks []transport.Exchange, f func(transport.Exchange)) {
	var wg sync.WaitGroup
	for _, x := range ranks {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f(x)
		}()
	}
	wg.Wait()
}

func (x *exchange) Rank() int   { return x.rank }
func (x *exchange) Size() int   { return x.size }
func (x *exchange) Free() error { return nil }

func (x *exchange) Gather(words []int64, wait transport.Wait) ([][]int64, error) {
	m := x.meeting
	m.mu.Lock()
	round := m.over
	m.rows[x.rank] = slices.Clone(words)
	if m.come++; m.come == m.size {
		m.last, m.rows = m.rows, make([][]int64, m.size)
		m.come, m.over = 0, m.over+1
	}
	m.mu.Unlock()
	if wait == nil {
		wait = forever
	}
	if err := wait(func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.over > round
	}); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.last), nil // the next round is over only when this rank has come to it
}

func forever(done func() bool) error {
	for !done() {
		time.Sleep(10 * time.Microsecond)
	}
	return nil
}

func (x *exchange) Min(words []int64) error {
	rows, err := x.Gather(words, nil)
	for _, row := range rows {
		for i, w := range row {
			words[i] = min(words[i], w)
		}
	}
	return err
}

func (x *exchange) Node() (transport.Exchange, error) {
	node, rank, size := x.nodes[x.rank], 0, 0
	for i, n := range x.nodes {
		if n == node {
			size++
			if i < x.rank {
				rank++
			}
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.parts[node] == nil {
		x.parts[node] = newMeeting(size)
	}
	return &exchange{x.parts[node], rank, make([]int, size)}, nil
}
