package liveness

import (
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stranger connects to a rank without being one.
func stranger(t testing.TB, l *Liveness) *socket {
	t.Helper()
	s, err := dial(netip.AddrPortFrom(loopback, l.Place().Port), limitsOf(defaultAfter))
	require.NoError(t, err)
	require.NoError(t, s.conn.SetDeadline(time.Now().Add(patience)))
	t.Cleanup(s.close)
	return s
}

// closedOnUs waits until the rank has closed the connection, and returns what it sent before.
func closedOnUs(t testing.TB, s *socket) []byte {
	t.Helper()
	var got []byte
	b := make([]byte, 64)
	for {
		n, err := s.conn.Read(b)
		got = append(got, b[:n]...)
		if err != nil {
			assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection is still open")
			return got
		}
	}
}

// connectAs shows the token and takes the connection.
func connectAs(t testing.TB, l *Liveness, rank int) *socket {
	t.Helper()
	s := stranger(t, l)
	require.NoError(t, s.write(l.tokens.hello.with(rank, l.tree.rank)))
	reply := make([]byte, tokenBytes+4)
	_, err := io.ReadFull(s.conn, reply)
	require.NoError(t, err)
	assert.Equal(t, l.tokens.reply.with(l.tree.rank), reply)
	require.NoError(t, s.write(fact{begin, rank, rank}.encode()))
	first := make([]byte, factBytes)
	_, err = io.ReadFull(s.conn, first)
	require.NoError(t, err)
	assert.Equal(t, fact{begin, l.tree.rank, l.tree.rank}.encode(), first)
	return s
}

func TestAWrongTokenIsRefused(t *testing.T) {
	ranks := job(t, 0, 1)
	right := ranks[0].tokens.hello.with(1, 0)
	wrong := append([]byte(nil), right...)
	wrong[tokenBytes-1] ^= 1
	for name, sent := range map[string][]byte{
		"one bit":               wrong,
		"the parent's token":    ranks[0].tokens.reply.with(1),
		"another rank wanted":   ranks[0].tokens.hello.with(1, 1),
		"no rank of the job":    ranks[0].tokens.hello.with(2, 0),
		"this rank's own":       ranks[0].tokens.hello.with(0, 0),
		"a negative rank":       ranks[0].tokens.hello.with(-1, 0),
		"right, then not begin": append(append([]byte(nil), right...), fact{died, 1, 1}.encode()...),
		"begin of another rank": append(append([]byte(nil), right...), fact{begin, 0, 0}.encode()...),
	} {
		s := stranger(t, ranks[0])
		require.NoError(t, s.write(sent), name)
		got := closedOnUs(t, s)
		if len(sent) == len(right) {
			assert.Empty(t, got, name)
		}
	}
	time.Sleep(10 * time.Millisecond)
	assert.False(t, ranks[0].AnyDead())
	assert.False(t, ranks[1].AnyDead())
}

func TestNothingIsReadBehindAWrongToken(t *testing.T) {
	l := job(t, 0, 1)[0]
	at, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer at.Close()
	sends, err := net.DialTCP("tcp", nil, at.Addr().(*net.TCPAddr))
	require.NoError(t, err)
	defer sends.Close()
	_, err = sends.Write(make([]byte, 100))
	require.NoError(t, err)
	conn, err := at.AcceptTCP()
	require.NoError(t, err)
	file, err := conn.File() // shows what is left
	require.NoError(t, err)
	defer file.Close()
	_, ok := l.greet(wrap(conn))
	assert.False(t, ok)
	n, err := syscall.Read(int(file.Fd()), make([]byte, 200))
	require.NoError(t, err)
	assert.Equal(t, 100-tokenBytes, n)
}

func TestAStrangerThatSaysNothingKeepsNobodyOut(t *testing.T) {
	ranks := job(t, 0, 1)
	for range strangers - 1 {
		stranger(t, ranks[0])
	}
	connectAs(t, ranks[0], 1)
}

func TestATruncatedHelloOrFact(t *testing.T) {
	ranks := job(t, 0, 0, 1)
	s := stranger(t, ranks[0])
	require.NoError(t, s.write(ranks[0].tokens.hello.with(1, 0)[:tokenBytes+3]))
	s.close()
	assert.False(t, ranks[0].AnyDead())

	s = connectAs(t, ranks[1], 2) // rank 2 is no child of rank 1, but may become one
	require.NoError(t, s.write(fact{died, 0, 2}.encode()[:factBytes-1]))
	s.close()
	agree(t, ranks, []int{0, 1}, 2) // a connection that ends in the middle of a message has ended
}

func TestRubbishIsTheEndOfItsSender(t *testing.T) {
	for name, sent := range map[string][]byte{
		"kind 0":           {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"kind excluded":    fact{excluded, 0, 0}.encode(),
		"kind 255":         {255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"a rank too high":  fact{died, 3, 0}.encode(),
		"a node too high":  fact{lost, 2, 0}.encode(),
		"a negative rank":  fact{died, -1, 0}.encode(),
		"by a rank of far": fact{died, 1, 1 << 30}.encode(),
		"padding":          {byte(died), 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"over of a rank":   fact{over, 1, 1}.encode(),
		"begin once more":  fact{begin, 2, 2}.encode(),
	} {
		t.Run(name, func(t *testing.T) {
			ranks := job(t, 0, 0, 1)
			s := connectAs(t, ranks[1], 2)
			require.NoError(t, s.write(sent))
			agree(t, ranks, []int{0, 1}, 2)
			why := ranks[0].Why(2)
			assert.Equal(t, "its process on host h1 sent rank 1 on host h0 what is no message of this library", why)
			closedOnUs(t, s)
		})
	}
}

func FuzzWhatAConnectionSends(f *testing.F) {
	f.Add([]byte{}, true)
	f.Add(make([]byte, 100), false)
	f.Add(fact{died, 1, 2}.encode(), true)
	f.Add(append(fact{lost, 1, 0}.encode(), fact{over, 0, 0}.encode()...), true)
	f.Add(append(fact{left, 2, 2}.encode(), 1, 2, 3), true)
	f.Add(fact{died, 0, 1}.encode(), true)
	f.Fuzz(func(t *testing.T, sent []byte, token bool) {
		l, err := Listen(defaultAfter)
		require.NoError(t, err)
		defer l.Close()
		places := []Place{l.Place(), {Port: 1}, {Port: 1}}
		require.NoError(t, l.Start(Job{Rank: 0, Node: []int{0, 0, 1}, Places: places, Secret: Secret{1, 2, 3, 4}}))
		var s *socket
		if token {
			s = connectAs(t, l, 2)
		} else {
			s = stranger(t, l)
		}
		_ = s.write(sent)
		s.close()
		if token {
			eventually(t, "rank 2 is gone", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return !l.living(2) || l.over })
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		deaths := 0
		for r, g := range l.gone {
			assert.Less(t, r, 3)
			if g.why.kind.death() {
				deaths++
				assert.NotEmpty(t, l.explain(g.why))
			}
		}
		assert.EqualValues(t, deaths, l.deaths.Load())
		assert.LessOrEqual(t, len(l.facts), 2*len(places)+1, "facts do not pile up")
	})
}
