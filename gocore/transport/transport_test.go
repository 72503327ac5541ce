package transport_test

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/transport/transportfake"
)

var nodes = []int{5, 2, 5, 2, 9}

// implementations returns the ranks of every implementation, on the nodes.
func implementations() map[string][]transport.Exchange {
	over := make([]transport.Exchange, len(nodes))
	for i, lib := range mpifake.New(len(nodes), mpifake.Nodes(nodes)) {
		over[i] = mpifake.World(lib)
	}
	return map[string][]transport.Exchange{"mpi": over, "goroutines": transportfake.New(nodes)}
}

// spin waits as a caller with a deadline does.
func spin(done func() bool) error {
	for !done() {
		time.Sleep(time.Microsecond)
	}
	return nil
}

func TestExchange(t *testing.T) {
	for name, ranks := range implementations() {
		t.Run(name, func(t *testing.T) {
			transportfake.Each(ranks, func(x transport.Exchange) {
				assert.Equal(t, len(nodes), x.Size())
				for round, wait := range []transport.Wait{nil, spin, nil, spin} {
					words := []int64{int64(x.Rank()), int64(round) << 40}
					rows, err := x.Gather(words, wait)
					assert.NoError(t, err)
					assert.Len(t, rows, len(nodes))
					for r, row := range rows {
						assert.Equal(t, []int64{int64(r), int64(round) << 40}, row)
					}
				}
				words := []int64{int64(10 - x.Rank()), int64(x.Rank()), -1 << 63}
				assert.NoError(t, x.Min(words))
				assert.Equal(t, []int64{6, 0, -1 << 63}, words)

				node, err := x.Node()
				assert.NoError(t, err)
				rows, err := node.Gather([]int64{int64(x.Rank())}, nil)
				assert.NoError(t, err)
				assert.Equal(t, map[int][][]int64{5: {{0}, {2}}, 2: {{1}, {3}}, 9: {{4}}}[nodes[x.Rank()]], rows)
				assert.Equal(t, int64(x.Rank()), rows[node.Rank()][0])
				assert.Equal(t, len(rows), node.Size())
				assert.NoError(t, node.Free())
			})
		})
	}
}

// A wait that ends early is the caller's error on that rank.
func TestAnExchangeThatIsGivenUp(t *testing.T) {
	late := errors.New("late")
	for name, ranks := range implementations() {
		t.Run(name, func(t *testing.T) {
			_, err := ranks[0].Gather([]int64{1}, func(done func() bool) error {
				assert.False(t, done())
				return late
			})
			assert.Equal(t, late, err)
		})
	}
}

// world returns endpoints of n ranks, and memory of 16 bytes for each.
func world(t *testing.T, n int) (ranks []transport.Comm, room []unsafe.Pointer) {
	for _, lib := range mpifake.New(n) {
		p, err := mem.Alloc(16)
		require.NoError(t, err)
		t.Cleanup(func() { mem.Free(p) })
		ranks, room = append(ranks, mpifake.World(lib)), append(room, p)
	}
	return ranks, room
}

func bytesOf(p unsafe.Pointer) []byte { return unsafe.Slice((*byte)(p), 16) }

func TestEndpoint(t *testing.T) {
	ranks, room := world(t, 3)
	copy(bytesOf(room[0]), "a message")
	_, found, err := ranks[1].Probe(transport.AnySource, 3)
	require.NoError(t, err)
	assert.False(t, found)
	send, err := ranks[0].Send(room[0], 9, 1, 3)
	require.NoError(t, err)
	st, found, err := ranks[1].Probe(transport.AnySource, transport.AnyTag)
	require.NoError(t, err)
	assert.True(t, found)
	assert.Equal(t, transport.Status{Source: 0, Tag: 3, Bytes: 9}, st)

	m, found, err := ranks[1].Match(0, 3)
	require.NoError(t, err)
	require.True(t, found)
	assert.Equal(t, st, m.Status)
	_, found, err = ranks[1].Match(0, 3)
	require.NoError(t, err)
	assert.False(t, found, "it was taken out")
	require.NoError(t, transport.TakeNow(ranks[1], m, room[1], 16))
	assert.Equal(t, "a message", string(bytesOf(room[1])[:9]))
	require.True(t, transport.Over(ranks[0], send))
	assert.NoError(t, ranks[0].Err(send))
	ranks[0].Release(send)

	receive, err := ranks[2].Receive(room[2], 4, transport.AnySource, 7)
	require.NoError(t, err)
	assert.False(t, transport.Over(ranks[2], receive))
	send, err = ranks[0].Send(room[0], 9, 2, 7)
	require.NoError(t, err)
	require.True(t, transport.Over(ranks[2], receive))
	assert.ErrorContains(t, ranks[2].Err(receive), "MPI_Recv", "a longer message than the room")
	assert.Equal(t, []any{int32(0), int32(7)}, []any{receive.Source, receive.Tag})
	require.True(t, transport.Over(ranks[0], send))
	ranks[0].Release(send)
	ranks[2].Release(receive)
}

func TestAReceiveIsCancelled(t *testing.T) {
	ranks, room := world(t, 2)
	r, err := ranks[0].Receive(room[0], 4, 1, 0)
	require.NoError(t, err)
	require.NoError(t, ranks[0].Cancel(r))
	require.True(t, transport.Over(ranks[0], r))
	assert.EqualValues(t, 1, r.Cancelled)
	ranks[0].Release(r)
	_, err = ranks[0].Send(room[0], 4, 2, 0)
	assert.Error(t, err, "no such rank")
}

func TestRounds(t *testing.T) {
	for what, want := range map[transport.Round][]int64{transport.Barrier: nil, transport.Min: {-6}, transport.Gather: {-6, 1}} {
		ranks, room := world(t, 2)
		var under []*transport.Request
		for i, c := range ranks {
			words := unsafe.Slice((*int64)(room[i]), 2)
			words[0] = []int64{-6, 1}[i]
			all, err := mem.Alloc(16)
			require.NoError(t, err)
			defer mem.Free(all)
			r, err := c.Start(what, room[i], all, 1)
			require.NoError(t, err)
			room[i], under = all, append(under, r)
			assert.Equal(t, i == 1, transport.Over(c, r))
		}
		require.True(t, transport.Over(ranks[0], under[0]))
		for i, c := range ranks {
			assert.NoError(t, c.Err(under[i]))
			c.Release(under[i])
			assert.Equal(t, want, append([]int64(nil), unsafe.Slice((*int64)(room[i]), 2)[:len(want)]...))
		}
	}
}

func TestOtherCommsOfTheSameRanks(t *testing.T) {
	ranks, room := world(t, 3)
	all := make([]transport.Exchange, 3)
	for i, c := range ranks {
		all[i] = c
	}
	transportfake.Each(all, func(x transport.Exchange) {
		c := x.(transport.Comm)
		for _, wait := range []transport.Wait{nil, spin} {
			dup, err := c.Dup(wait)
			if assert.NoError(t, err) {
				assert.Equal(t, []int{c.Rank(), 3}, []int{dup.Rank(), dup.Size()})
				assert.NoError(t, dup.Free())
			}
		}
		if c.Rank() == 1 {
			return
		}
		two, err := c.Create([]int{2, 0}, 1<<63+5)
		if !assert.NoError(t, err) {
			return
		}
		assert.Equal(t, []int{map[int]int{2: 0, 0: 1}[c.Rank()], 2}, []int{two.Rank(), two.Size()})
		rows, err := two.Gather([]int64{int64(c.Rank())}, nil)
		assert.NoError(t, err)
		assert.Equal(t, [][]int64{{2}, {0}}, rows)
		if two.Rank() == 0 {
			r, err := two.Send(room[2], 1, 1, 0)
			assert.NoError(t, err)
			assert.NoError(t, spin(func() bool { return transport.Over(two, r) }))
			two.Release(r)
			return
		}
		_, found, err := c.Probe(transport.AnySource, transport.AnyTag)
		assert.NoError(t, err)
		assert.False(t, found, "a message of another Comm")
		assert.NoError(t, spin(func() bool { _, found, _ = two.Match(0, 0); return found }))
	})
}
