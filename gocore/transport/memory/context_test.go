package memory

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// arrive lets rank 0 send until a receive of rank 1 is done, and fails after half a minute.
func arrive(t *testing.T, ranks []*Comm, r *transport.Request) {
	t.Helper()
	for late := time.Now().Add(30 * time.Second); !transport.Over(ranks[1], r); ranks[0].o.Poll(nil) {
		require.True(t, time.Now().Before(late), "a receive does not end")
	}
	ranks[1].Release(r)
}

// A long message goes at once to a receive that waits for it, and to no other one.
func TestALongMessageThatIsWaitedFor(t *testing.T) {
	ranks := world(t, 2)
	p, sent := room(t, mostWhole)
	q, got := room(t, mostWhole)
	fill(sent, 3)
	send := func(tag int32) *transport.Request {
		r, err := ranks[0].Send(p, mostWhole, 1, tag)
		require.NoError(t, err)
		return r
	}
	receive := func(tag int32) *transport.Request {
		r, err := ranks[1].Receive(q, mostWhole, 0, tag)
		require.NoError(t, err)
		return r
	}
	other := receive(6)
	asked := send(5)
	assert.False(t, asked.Done())
	atOnce := send(6)
	assert.True(t, atOnce.Done())
	finish(t, ranks[1], other)
	assert.Equal(t, sent, got)
	again := send(6) // nobody waits for a second one
	assert.False(t, again.Done())
	cancelled := receive(7)
	require.NoError(t, ranks[1].Cancel(cancelled))
	late := send(7)
	assert.False(t, late.Done())
	clear(got)
	for _, r := range []*transport.Request{receive(7), receive(6), receive(5)} {
		arrive(t, ranks, r)
	}
	assert.Equal(t, sent, got)
	finish(t, ranks[0], asked, again, late)
}

// Messages of the application that nobody receives are kept up to a bound. Then their senders wait. Many of few bytes, or of none,
// take memory too, and no more time each than a few. Those of this core come all the same, and so does what a call waits for.
func TestKeptMessagesAreBounded(t *testing.T) {
	for _, bytes := range []int64{short, 8, 0} {
		t.Run(strconv.FormatInt(bytes, 10), func(t *testing.T) {
			ranks := world(t, 2)
			ranks[0].Bound()
			core, err := ranks[0].Dup(nil)
			require.NoError(t, err)
			there, err := ranks[1].Dup(nil)
			require.NoError(t, err)
			const inRings = ringBytes + mostBulk + ringBytes/align*besideKept
			messages := (mostKept+inRings)/(bytes+besideKept) + 2*ringBytes/align
			p, _ := room(t, short)
			done := 0
			list := make([]*transport.Request, messages)
			for i := range list {
				r, err := ranks[0].Send(p, bytes, 1, 0)
				require.NoError(t, err)
				list[i] = r
				ranks[1].o.Poll(nil)
			}
			for range 1000 {
				ranks[0].o.Poll(nil)
				ranks[1].o.Poll(nil)
			}
			for _, r := range list {
				if r.Done() {
					done++
				}
			}
			assert.Less(t, done, len(list))
			assert.LessOrEqual(t, ranks[1].o.kept, int64(mostKept+inRings))
			q, _ := room(t, short)
			told, err := core.Send(p, 8, 1, 3)
			require.NoError(t, err)
			finish(t, core.(*Comm), told)
			got, found, err := there.Match(0, 3)
			require.NoError(t, err)
			require.True(t, found, "a message of this core")
			require.NoError(t, transport.TakeNow(there, got, q, 8))
			probed, err := ranks[0].Send(p, bytes, 1, 2)
			require.NoError(t, err)
			for late := time.Now().Add(10 * time.Second); ; ranks[0].o.Poll(nil) {
				if _, found, err = ranks[1].Probe(0, 2); found {
					break
				}
				require.NoError(t, err)
				require.True(t, time.Now().Before(late), "what a probe waits for")
			}
			second, err := ranks[1].Receive(q, short, 0, 2)
			require.NoError(t, err)
			arrive(t, ranks, second)
			finish(t, ranks[0], probed)
			last, err := ranks[0].Send(p, bytes, 1, 1) // behind all others
			require.NoError(t, err)
			first, err := ranks[1].Receive(q, short, transport.AnySource, 1)
			require.NoError(t, err)
			arrive(t, ranks, first)
			finish(t, ranks[0], last)
			for range list {
				r, err := ranks[1].Receive(q, short, 0, 0)
				require.NoError(t, err)
				arrive(t, ranks, r)
			}
			finish(t, ranks[0], list...)
			assert.Zero(t, ranks[1].o.kept)
		})
	}
}

// A Comm that is freed leaves nothing that waits, also if a round of it was given up.
func TestAFreedCommWaitsForNothing(t *testing.T) {
	ranks := world(t, 2)
	p, _ := room(t, 8)
	for range 2 {
		dup, err := ranks[0].Dup(nil)
		require.NoError(t, err)
		_, err = dup.Receive(p, 8, 1, 0)
		require.NoError(t, err)
		_, err = dup.Receive(p, 8, transport.AnySource, 0)
		require.NoError(t, err)
		_, err = dup.Start(transport.Barrier, nil, nil, 0)
		require.NoError(t, err)
		assert.True(t, ranks[0].o.in[1].wants())
		require.NoError(t, dup.Free())
		assert.False(t, ranks[0].o.in[1].wants())
	}
}

// What comes for a Comm that was freed is kept by nobody, whether it had come, was looked at, or comes later.
func TestWhatComesForAFreedComm(t *testing.T) {
	ranks := world(t, 2)
	for _, n := range []int{0, 8, short, 2 * short} {
		for polls := range 3 {
			x, err := ranks[0].Dup(nil)
			require.NoError(t, err)
			y, err := ranks[1].Dup(nil)
			require.NoError(t, err)
			p, _ := room(t, n)
			for range 3 {
				_, err = x.Send(p, int64(n), 1, 7)
				require.NoError(t, err)
			}
			if polls > 0 {
				ranks[1].o.Poll(nil)
			}
			if polls > 1 {
				_, found, err := y.Match(0, 7)
				require.NoError(t, err)
				require.True(t, found)
			}
			require.NoError(t, y.Free())
			ranks[1].o.Poll(nil)
			_, err = x.Send(p, int64(n), 1, 7)
			require.NoError(t, err)
			ranks[1].o.Poll(nil)
			require.NoError(t, x.Free())
		}
	}
	o := ranks[1].o
	assert.Zero(t, o.kept)
	assert.Empty(t, o.matched)
	assert.LessOrEqual(t, len(o.contexts), 2, "of the world")
	for number := range uint64(2 * mostFreed) {
		o.freed.add(number)
	}
	assert.Len(t, o.freed.numbers, mostFreed)
}
