package memory

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/transport"
)

// sendFrom sends a long message which its receiver looks for at an address.
func sendFrom(t *testing.T, c *Comm, b []byte, to int, tag int32, at uint64) *transport.Request {
	r, err := newRequest()
	require.NoError(t, err)
	o := c.o
	o.mu.Lock()
	defer o.mu.Unlock()
	o.numbers++
	o.asked[o.numbers] = &sending{span: span{data: b, length: int64(len(b))}, r: r, to: to}
	o.out[to].send(&outgoing{head: packet{kind: ask, context: c.context, tag: tag, bytes: int64(len(b)), number: o.numbers, answer: at}})
	return r
}

// pollBoth takes the requests of two ranks to their end.
func pollBoth(t *testing.T, ranks []*Comm, list ...*transport.Request) {
	t.Helper()
	late := time.Now().Add(20 * time.Second)
	for _, r := range list {
		for !r.Done() {
			ranks[0].o.Poll(nil)
			ranks[1].o.Poll(nil)
			require.True(t, time.Now().Before(late), "a request does not end")
		}
	}
}

// A message that its receiver may not read comes through the ring, from its beginning, and so do all later ones: whether it has read
// none of it before, or has taken pieces that its sender has written.
func TestAMessageThatMayNotBeRead(t *testing.T) {
	if byPieces {
		return // no rank reads
	}
	const n, nowhere = longer + 100, 8
	for _, way := range []way{reading, asking} {
		ranks := world(t, 2)
		in := &ranks[1].o.in[0]
		require.True(t, ranks[1].o.in[0].mayRead())
		in.costs[class(n)].perByte = [2]float64{1 + float64(way), 2 - float64(way)}
		var list []*transport.Request
		var sent, got [][]byte
		for i := range 3 {
			_, from := room(t, n)
			fill(from, uint64(i))
			into, b := room(t, n)
			list = append(list, sendFrom(t, ranks[0], from, 1, int32(i), nowhere))
			r, err := ranks[1].Receive(into, n, 0, int32(i))
			require.NoError(t, err)
			list, sent, got = append(list, r), append(sent, from), append(got, b)
		}
		if way == asking {
			ranks[1].o.Poll(nil)
			ranks[0].o.Poll(nil) // writes what there is room for
			require.Equal(t, asking, in.longs[0].way)
			for range patience {
				ranks[1].o.in[0].readOn()
			}
			assert.Equal(t, []any{mayNot, 1}, []any{in.reads, len(in.stale)})
		}
		pollBoth(t, ranks, list...)
		for i, r := range list {
			assert.NoError(t, ranks[i%2].Err(r))
		}
		for i := range sent {
			assert.True(t, bytes.Equal(sent[i], got[i]), i)
		}
		assert.Equal(t, mayNot, in.reads)
		assert.Empty(t, in.stale)
	}
}

// A receive that is given up ends at once, whatever has come of its message, and nothing is written to its memory any more. Its sender
// is done, and the next messages come.
func TestAReceiveIsGivenUpWhileItsMessageComes(t *testing.T) {
	const n = longer + 100
	for _, which := range []int{0, 1} { // the first one moves, the second one waits for it
		ranks := world(t, 2)
		for turn, polls := range []int{0, 1, 2, 3} {
			var sends, receives []*transport.Request
			var sent, got [][]byte
			for i := range 3 {
				from, b := room(t, n)
				fill(b, uint64(turn+i))
				r, err := ranks[0].Send(from, n, 1, int32(i))
				require.NoError(t, err)
				sends, sent = append(sends, r), append(sent, b)
			}
			ranks[1].o.Poll(nil)
			for i := range 3 {
				into, b := room(t, n)
				r, err := ranks[1].Receive(into, n, transport.AnySource, int32(i))
				require.NoError(t, err)
				receives, got = append(receives, r), append(got, b)
			}
			for range polls {
				ranks[0].o.Poll(nil)
				if which == 1 || ranks[1].o.in[0].reads != may {
					ranks[1].o.Poll(nil)
				}
			}
			left := receives[which]
			if !left.Done() {
				require.NoError(t, ranks[1].Cancel(left))
				require.True(t, left.Done())
				assert.EqualValues(t, 1, left.Cancelled)
				clear(got[which])
				sent[which] = make([]byte, n)
			}
			pollBoth(t, ranks, append(sends, receives...)...)
			for i := range 3 {
				assert.NoError(t, ranks[0].Err(sends[i]))
				assert.NoError(t, ranks[1].Err(receives[i]))
			}
			for i := range sent {
				assert.True(t, bytes.Equal(sent[i], got[i]), i)
			}
		}
		o := ranks[1].o
		assert.Zero(t, o.longs+len(o.in[0].longs))
		assert.Zero(t, ranks[0].o.streams+len(ranks[0].o.asked))
	}
}

// So does one whose message was sent unasked, and has come in part.
func TestAReceiveIsGivenUpBetweenPieces(t *testing.T) {
	ranks := world(t, 2)
	into, b := room(t, 2*piece)
	r, err := ranks[1].Receive(into, 2*piece, 0, 0)
	require.NoError(t, err)
	_, part := room(t, piece)
	fill(part, 3)
	ranks[0].o.out[1].send(&outgoing{head: packet{kind: whole, context: ranks[0].context, bytes: 2 * piece}, from: part})
	ranks[1].o.Poll(nil)
	assert.True(t, bytes.Equal(part, b[:piece]))
	clear(b)
	require.NoError(t, ranks[1].Cancel(r))
	assert.True(t, r.Done())
	assert.EqualValues(t, 1, r.Cancelled)
	ranks[0].o.out[1].send(&outgoing{head: packet{kind: more, bytes: piece}, from: part})
	from, next := room(t, 8)
	fill(next, 4)
	to, got := room(t, 8)
	out, err := ranks[0].Send(from, 8, 1, 0)
	require.NoError(t, err)
	in, err := ranks[1].Receive(to, 8, 0, 0)
	require.NoError(t, err)
	pollBoth(t, ranks, out, in)
	assert.Equal(t, next, got)
	assert.True(t, bytes.Equal(make([]byte, 2*piece), b))
}
