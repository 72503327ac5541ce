package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cma"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
	"github.com/paddlempi/paddlempi/gocore/work/worktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// byPieces says that no rank may read another one's memory.
var byPieces bool

// All tests run in both ways, and with bells.
func TestMain(m *testing.M) {
	code := m.Run()
	byPieces = true
	code = max(code, m.Run())
	smallWorld = 0
	os.Exit(max(code, m.Run()))
}

// world returns n ranks in this process.
func world(t testing.TB, n int) []*Comm {
	t.Helper()
	p, err := mem.Alloc(Bytes(n))
	require.NoError(t, err)
	t.Cleanup(func() { mem.Free(p) })
	shared := unsafe.Slice((*byte)(p), Bytes(n))
	clear(shared)
	ranks := make([]*Comm, n)
	for i := range ranks {
		ranks[i], err = New(shared, i, n, nil)
		require.NoError(t, err)
		if byPieces {
			for r := range n {
				ranks[i].o.in[r].reads = mayNot
			}
		}
	}
	return ranks
}

// each runs f for every rank, each in a goroutine.
func each(ranks []*Comm, f func(c *Comm)) {
	var all sync.WaitGroup
	for _, c := range ranks {
		all.Add(1)
		go func() {
			defer all.Done()
			f(c)
		}()
	}
	all.Wait()
}

// room returns n bytes outside the Go heap.
func room(t testing.TB, n int) (unsafe.Pointer, []byte) {
	p, err := mem.Alloc(int64(max(1, n)))
	if err != nil {
		panic(err)
	}
	t.Cleanup(func() { mem.Free(p) })
	return p, unsafe.Slice((*byte)(p), n)
}

// finish waits for requests, and fails after half a minute.
func finish(t testing.TB, c *Comm, list ...*transport.Request) {
	t.Helper()
	late := time.Now().Add(30 * time.Second)
	for _, r := range list {
		for !transport.Over(c, r) {
			if time.Now().After(late) {
				t.Error("a request does not end")
				return
			}
			time.Sleep(time.Microsecond)
		}
	}
}

func fill(b []byte, seed uint64) {
	for i := range b {
		b[i] = byte(seed + uint64(i)*7 + uint64(i)>>8)
	}
}

var lengths = []int{0, 1, 7, 8, 100, short - 1, short, short + 1, piece, piece + 1, bulkFrom - 1, bulkFrom, bulkFrom + 100, ringBytes, longer + 7}

// Messages of all lengths arrive whole and in order, whether or not somebody waits for them.
func TestLengths(t *testing.T) {
	for _, early := range []bool{true, false} {
		ranks := world(t, 2)
		var received sync.WaitGroup
		received.Add(1)
		posted := make(chan bool, 1)
		go func() {
			defer received.Done()
			if !early {
				<-posted
			}
			var list []*transport.Request
			var got [][]byte
			for i, n := range lengths {
				p, b := room(t, n+i%2)
				r, err := ranks[1].Receive(p, int64(n+i%2), 0, transport.AnyTag)
				assert.NoError(t, err)
				list, got = append(list, r), append(got, b[:n])
			}
			finish(t, ranks[1], list...)
			for i, r := range list {
				want := make([]byte, lengths[i])
				fill(want, uint64(i))
				assert.Equal(t, want, got[i], "length %d", lengths[i])
				assert.Equal(t, []int64{int64(i), int64(lengths[i]), 0}, []int64{int64(r.Tag), r.Bytes, int64(r.Source)})
				assert.NoError(t, ranks[1].Err(r))
				ranks[1].Release(r)
			}
		}()
		var list []*transport.Request
		for i, n := range lengths {
			p, b := room(t, n)
			fill(b, uint64(i))
			r, err := ranks[0].Send(p, int64(n), 1, int32(i))
			require.NoError(t, err)
			list = append(list, r)
		}
		posted <- true
		finish(t, ranks[0], list...)
		received.Wait()
		for _, r := range list {
			assert.NoError(t, ranks[0].Err(r))
			ranks[0].Release(r)
		}
	}
}

func TestToOneself(t *testing.T) {
	c := world(t, 1)[0]
	for _, n := range lengths {
		for _, first := range []bool{true, false} {
			from, a := room(t, n)
			to, b := room(t, n)
			fill(a, 3)
			var list []*transport.Request
			for _, send := range []bool{first, !first} {
				var q *transport.Request
				var err error
				if send {
					q, err = c.Send(from, int64(n), 0, 5)
				} else {
					q, err = c.Receive(to, int64(n), transport.AnySource, 5)
				}
				require.NoError(t, err)
				list = append(list, q)
			}
			finish(t, c, list...)
			assert.Equal(t, a, b)
		}
	}
}

// A receive takes the first message that fits, and a wildcard the first of all of a sender.
func TestMatching(t *testing.T) {
	ranks := world(t, 3)
	send := func(from, to int, tag int32, n int, seed uint64) *transport.Request {
		p, b := room(t, n)
		fill(b, seed)
		r, err := ranks[from].Send(p, int64(n), int32(to), tag)
		require.NoError(t, err)
		return r
	}
	sent := []*transport.Request{send(0, 2, 7, 5, 1), send(0, 2, 8, 2*short, 2), send(1, 2, 8, 3, 3), send(0, 2, 7, 6, 4)}
	late := time.Now().Add(10 * time.Second)
	for st, found := (transport.Status{}), false; !found; st, found, _ = ranks[2].Probe(1, transport.AnyTag) {
		require.True(t, time.Now().Before(late))
		if found {
			assert.Equal(t, transport.Status{Source: 1, Tag: 8, Bytes: 3}, st)
		}
	}
	get := func(from, tag int32, n int) []byte {
		p, b := room(t, n)
		r, err := ranks[2].Receive(p, int64(n), from, tag)
		require.NoError(t, err)
		late := time.Now().Add(10 * time.Second)
		for !transport.Over(ranks[2], r) {
			ranks[0].o.Poll(nil)
			require.True(t, time.Now().Before(late))
		}
		require.NoError(t, ranks[2].Err(r))
		return b
	}
	want := func(n int, seed uint64) []byte {
		b := make([]byte, n)
		fill(b, seed)
		return b
	}
	assert.Equal(t, want(2*short, 2), get(0, 8, 2*short))
	m, found, err := ranks[2].Match(0, transport.AnyTag)
	require.NoError(t, err)
	require.True(t, found)
	assert.Equal(t, transport.Status{Source: 0, Tag: 7, Bytes: 5}, m.Status)
	assert.Equal(t, want(6, 4), get(0, 7, 6))
	_, found, err = ranks[2].Match(0, 7)
	assert.True(t, err == nil && !found)
	p, b := room(t, 5)
	require.NoError(t, transport.TakeNow(ranks[2], m, p, 5))
	assert.Equal(t, want(5, 1), b)
	_, err = ranks[2].Take(m, p, 5)
	assert.Equal(t, status.Argument, status.CodeOf(err))
	assert.Equal(t, want(3, 3), get(transport.AnySource, 8, 3))
	finish(t, ranks[0], sent[0], sent[1], sent[3])
}

func TestTruncationCancelAndWrongRanks(t *testing.T) {
	ranks := world(t, 2)
	for _, n := range []int{20, 3 * short} {
		p, _ := room(t, n)
		s, err := ranks[0].Send(p, int64(n), 1, 1)
		require.NoError(t, err)
		q, b := room(t, 16)
		fill(b, 9)
		before := append([]byte(nil), b[10:]...)
		r, err := ranks[1].Receive(q, 10, 0, 1)
		require.NoError(t, err)
		late := time.Now().Add(10 * time.Second)
		for !transport.Over(ranks[1], r) || !transport.Over(ranks[0], s) {
			ranks[0].o.Poll(nil)
			require.True(t, time.Now().Before(late))
		}
		assert.Equal(t, status.Truncate, status.CodeOf(ranks[1].Err(r)))
		assert.Equal(t, before, b[10:], "what is behind the room stays")
		assert.NoError(t, ranks[0].Err(s))
	}
	p, _ := room(t, 4)
	r, err := ranks[0].Receive(p, 4, 1, 0)
	require.NoError(t, err)
	require.NoError(t, ranks[0].Cancel(r))
	require.True(t, transport.Over(ranks[0], r))
	assert.EqualValues(t, 1, r.Cancelled)
	for _, rank := range []int32{-2, 2} {
		_, err = ranks[0].Send(p, 4, rank, 0)
		assert.Equal(t, status.Argument, status.CodeOf(err))
		_, err = ranks[0].Receive(p, 4, rank, 0)
		assert.Equal(t, status.Argument, status.CodeOf(err))
	}
	_, err = ranks[0].Send(p, 4, 1, -1)
	assert.Equal(t, status.Argument, status.CodeOf(err))
}

func TestRoundsAndOtherComms(t *testing.T) {
	each(world(t, 5), func(c *Comm) {
		for round := range 20 {
			rows, err := c.Gather([]int64{int64(c.Rank()), int64(round)}, nil)
			assert.NoError(t, err)
			for r, row := range rows {
				assert.Equal(t, []int64{int64(r), int64(round)}, row)
			}
			words := []int64{int64(10 - c.Rank()), int64(c.Rank()), -1 << 63}
			assert.NoError(t, c.Min(words))
			assert.Equal(t, []int64{6, 0, -1 << 63}, words)
		}
		// A receive from any tag does not meet a round.
		p, b := room(t, 1)
		caught, err := c.Receive(p, 1, transport.AnySource, transport.AnyTag)
		assert.NoError(t, err)
		dup, err := c.Dup(nil)
		assert.NoError(t, err)
		_, err = dup.Gather([]int64{1}, nil)
		assert.NoError(t, err)
		assert.False(t, transport.Over(c, caught))
		_, err = dup.Gather(nil, nil) // nobody has sent anything before
		assert.NoError(t, err)
		q, one := room(t, 1)
		one[0] = byte(40 + c.Rank())
		sent, err := c.Send(q, 1, int32((c.Rank()+1)%5), 9)
		assert.NoError(t, err)
		finish(t, c, caught, sent)
		assert.EqualValues(t, 40+(c.Rank()+4)%5, b[0])

		if c.Rank()%2 == 0 {
			some, err := c.Create([]int{4, 0, 2}, 77)
			assert.NoError(t, err)
			rows, err := some.Gather([]int64{int64(c.Rank())}, nil)
			assert.NoError(t, err)
			assert.Equal(t, [][]int64{{4}, {0}, {2}}, rows)
			assert.NoError(t, some.Free())
		}
		node, err := dup.Node()
		assert.NoError(t, err)
		assert.Equal(t, []int{c.Rank(), 5}, []int{node.Rank(), node.Size()})
		assert.NoError(t, node.Free())
		assert.NoError(t, dup.Free())
	})
}

// A wait that ends early is the caller's error on that rank.
func TestAGatherThatIsGivenUp(t *testing.T) {
	late := errors.New("late")
	_, err := world(t, 2)[0].Gather([]int64{1}, func(done func() bool) error {
		assert.False(t, done())
		return late
	})
	assert.Equal(t, late, err)
}

// Ranks send each other random messages, and take them in another order.
func TestManyMessages(t *testing.T) {
	const n, messages = 4, 300
	ranks := world(t, n)
	each(ranks, func(c *Comm) {
		random := rand.New(rand.NewPCG(1, uint64(c.Rank())))
		var list []*transport.Request
		var wanted, got [][]byte
		for to := range n {
			for tag := range messages {
				p, b := room(t, lengths[(tag+to)%(len(lengths)-1)])
				fill(b, uint64(c.Rank()*n*messages+tag))
				r, err := c.Send(p, int64(len(b)), int32(to), int32(tag))
				assert.NoError(t, err)
				list = append(list, r)
			}
		}
		for _, at := range random.Perm(n * messages) {
			from, tag := at/messages, at%messages
			p, b := room(t, lengths[(tag+c.Rank())%(len(lengths)-1)])
			want := make([]byte, len(b))
			fill(want, uint64(from*n*messages+tag))
			r, err := c.Receive(p, int64(len(b)), int32(from), int32(tag))
			assert.NoError(t, err)
			list, wanted, got = append(list, r), append(wanted, want), append(got, b)
		}
		finish(t, c, list...)
		for i := range wanted {
			if !assert.Equal(t, wanted[i], got[i]) {
				return
			}
		}
		_, err := c.Gather(nil, nil) // others still need what this rank moves
		assert.NoError(t, err)
	})
	for _, c := range ranks {
		assert.Zero(t, c.o.kept)
	}
}

// Whatever another process writes into a ring, this one ends the pair and nothing else.
func FuzzDamage(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0}, uint64(40))
	f.Add([]byte{4, 0, 0, 0, 1}, uint64(1<<63))
	f.Fuzz(func(t *testing.T, bytes []byte, head uint64) {
		ranks := world(t, 3)
		const packetBytes = int(unsafe.Sizeof(packet{}))
		var whole [packetBytes]byte
		copy(whole[:], bytes)
		out := &ranks[0].o.out[1]
		data := unsafe.Slice((*byte)(unsafe.Pointer(out.data)), ringBytes)
		copy(data, whole[:])
		copy(data[packetBytes:], bytes)
		*(*uint64)(&out.mine) = uint64(inRing(len(bytes)))
		if head%3 == 0 {
			head = uint64(out.mine)
		}
		atomic.StoreUint64((*uint64)(out.head), head)
		p, b := room(t, 8)
		waits, err := ranks[1].Receive(p, 8, 0, 99)
		require.NoError(t, err)
		for range 3 {
			ranks[1].o.Poll([]uintptr{waits.Address()})
		}
		q, _ := room(t, 8)
		binary.LittleEndian.PutUint64(b, 5)
		sent, err := ranks[2].Send(p, 8, 1, 1)
		require.NoError(t, err)
		r, err := ranks[1].Receive(q, 8, 2, 1)
		require.NoError(t, err)
		finish(t, ranks[1], r)
		finish(t, ranks[2], sent)
		require.NoError(t, ranks[1].Err(r))
	})
}

func BenchmarkPingPong(b *testing.B) {
	for _, n := range []int{8, 4096, 65536, 1 << 20, 32 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ranks := world(b, 2)
			b.SetBytes(int64(2 * n))
			each(ranks, func(c *Comm) {
				p, _ := room(b, n)
				other := int32(1 - c.Rank())
				for range b.N {
					for _, send := range []bool{c.Rank() == 0, c.Rank() != 0} {
						var r *transport.Request
						if send {
							r, _ = c.Send(p, int64(n), other, 0)
						} else {
							r, _ = c.Receive(p, int64(n), other, 0)
						}
						for !transport.Over(c, r) {
						}
						c.Release(r)
					}
				}
			})
		})
	}
}

// Only what proves that it is the sender is read, and that is found out once.
func TestProofs(t *testing.T) {
	if byPieces {
		return // no rank reads
	}
	for name, change := range map[string]func(*cma.Proof){
		"another process": func(p *cma.Proof) { p.PID = 1 << 30 },
		"another address": func(p *cma.Proof) { p.At += 8 },
		"no address":      func(p *cma.Proof) { p.At = 0 },
		"another number":  func(p *cma.Proof) { p.Nonce[3]++ },
		"nothing":         func(p *cma.Proof) { *p = cma.Proof{} },
	} {
		t.Run(name, func(t *testing.T) {
			ranks := world(t, 2)
			change(ranks[0].o.out[1].proof)
			send, b := room(t, 1<<20)
			fill(b, 3)
			into, got := room(t, 1<<20)
			out, err := ranks[0].Send(send, 1<<20, 1, 0)
			require.NoError(t, err)
			in, err := ranks[1].Receive(into, 1<<20, 0, 0)
			require.NoError(t, err)
			for !out.Done() || !in.Done() {
				transport.Over(ranks[0], out)
				transport.Over(ranks[1], in)
			}
			assert.NoError(t, ranks[1].Err(in))
			assert.Equal(t, b, got)
			assert.Equal(t, mayNot, ranks[1].o.in[0].reads)
		})
	}
}

// The memory is given back when the last of the Comms is freed. A poll may come later.
func TestRelease(t *testing.T) {
	given := 0
	shared := make([]byte, Bytes(1))
	c, err := New(shared, 0, 1, func() { given++ })
	require.NoError(t, err)
	d, err := c.Dup(nil)
	require.NoError(t, err)
	require.NoError(t, c.Free())
	assert.Equal(t, 0, given)
	require.NoError(t, d.Free())
	assert.Equal(t, 1, given)
	assert.Equal(t, 0, c.Poller().Poll(nil))
}

// Comms of this rank alone are apart, although they have one key.
func TestCommsOfOne(t *testing.T) {
	all := world(t, 2)
	first, err := all[1].Create([]int{1}, 0)
	require.NoError(t, err)
	second, err := all[1].Create([]int{1}, 0)
	require.NoError(t, err)
	p, b := room(t, 8)
	fill(b, 5)
	out, err := first.Send(p, 8, 0, 3)
	require.NoError(t, err)
	_, found, err := second.Probe(0, 3)
	require.NoError(t, err)
	assert.False(t, found)
	q, got := room(t, 8)
	in, err := first.Receive(q, 8, 0, 3)
	require.NoError(t, err)
	finish(t, all[1], out, in)
	assert.Equal(t, b, got)
}

// The requests with a rank that has died end. What it had sent can be received.
func TestBury(t *testing.T) {
	ranks := world(t, 3)
	long, _ := room(t, 1<<20)
	into, _ := room(t, 1<<20)
	p, b := room(t, 8)
	fill(b, 9)
	came, err := ranks[1].Send(p, 8, 0, 5)
	require.NoError(t, err)
	var list []*transport.Request
	add := func(r *transport.Request, err error) {
		t.Helper()
		require.NoError(t, err)
		list = append(list, r)
	}
	add(ranks[0].Send(long, 1<<20, 1, 0))
	add(ranks[0].Receive(into, 1<<20, 1, 0))
	other, err := ranks[0].Receive(into, 8, 2, 0)
	require.NoError(t, err)
	ranks[0].FailPeer(1)
	ranks[0].FailPeer(1)
	add(ranks[0].Send(long, 8, 1, 0))
	add(ranks[0].Receive(into, 8, 1, 1))
	finish(t, ranks[0], list...)
	for _, r := range list {
		assert.Equal(t, status.ProcFailed, status.CodeOf(ranks[0].Err(r)))
	}
	assert.False(t, other.Done())
	q, got := room(t, 8)
	in, err := ranks[0].Receive(q, 8, 1, 5)
	require.NoError(t, err)
	finish(t, ranks[0], in)
	assert.NoError(t, ranks[0].Err(in))
	assert.Equal(t, b, got)
	finish(t, ranks[1], came)
	ranks[2].FailPeer(2) // itself
	assert.Zero(t, ranks[2].o.in[2].broken)
}

// What a rank has sent before its death can be received, also where this process keeps so much that it reads no further.
func TestBuryReadsAll(t *testing.T) {
	ranks := world(t, 2)
	p, b := room(t, 8)
	fill(b, 9)
	for tag := range int32(3) {
		_, err := ranks[1].Send(p, 8, 0, tag)
		require.NoError(t, err)
	}
	ranks[0].o.kept += mostKept
	ranks[0].o.Poll(nil)
	ranks[0].FailPeer(1)
	ranks[0].o.kept -= mostKept
	for tag := range int32(3) {
		q, got := room(t, 8)
		in, err := ranks[0].Receive(q, 8, 1, tag)
		require.NoError(t, err)
		finish(t, ranks[0], in)
		assert.NoError(t, ranks[0].Err(in))
		assert.Equal(t, b, got)
	}
}

// A process that has the number of one that has ended is not read.
func TestAnotherProcessIsNotRead(t *testing.T) {
	if byPieces {
		return // no rank reads
	}
	ranks := world(t, 2)
	in := &ranks[1].o.in[0]
	require.True(t, ranks[1].o.in[0].mayRead())
	in.shown.Nonce[0]++
	from, sent := room(t, 1<<20)
	fill(sent, 9)
	into, got := room(t, 1<<20)
	clear(got)
	_, err := ranks[0].Send(from, 1<<20, 1, 0)
	require.NoError(t, err)
	r, err := ranks[1].Receive(into, 1<<20, 0, 0)
	require.NoError(t, err)
	ranks[1].o.Poll(nil)
	assert.Equal(t, mayNot, in.reads)
	ranks[1].FailPeer(0)
	finish(t, ranks[1], r)
	assert.Equal(t, status.ProcFailed, status.CodeOf(ranks[1].Err(r)))
}

// A rank rings when it has written a message, and when it has read one, for whose room others may wait.
func TestRings(t *testing.T) {
	ranks := world(t, 2)
	out, _ := room(t, 8)
	in, _ := room(t, 8)
	var sent, received *transport.Request
	assert.True(t, worktest.Rings(t, func() { sent, _ = ranks[0].Send(out, 8, 1, 0) }), "a message is written")
	assert.False(t, worktest.Rings(t, func() { ranks[0].Poller().Poll(nil) }), "a look")
	assert.True(t, worktest.Rings(t, func() {
		received, _ = ranks[1].Receive(in, 8, 0, 0)
		finish(t, ranks[1], received)
	}), "a message is read")
	finish(t, ranks[0], sent)
	own := worktest.Bells(t, 2)[0]
	own.Answer(false)
	defer own.Ignore()
	seen := own.Enter()
	sent, _ = ranks[0].Send(out, 8, 0, 0)
	assert.NotEqual(t, seen, own.Enter(), "other threads of its process may wait for what a rank sends to itself")
	received, _ = ranks[0].Receive(in, 8, 0, 0)
	finish(t, ranks[0], sent, received)
}
