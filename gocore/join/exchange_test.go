package join

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// pair returns the exchange of a rank, and the end that serves it.
func pair(t *testing.T, rank, size int, interrupt work.Interrupt) (*exchange, net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	file := os.NewFile(uintptr(fds[1]), "server")
	server, err := net.FileConn(file)
	require.NoError(t, err)
	file.Close()
	x, err := newExchange(fds[0], rank, size, interrupt)
	require.NoError(t, err)
	t.Cleanup(func() { server.Close(); x.Free() })
	return x, server
}

// request reads what a rank gives.
func request(c net.Conn) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.LittleEndian.Uint32(length[:]))
	_, err := io.ReadFull(c, b)
	return b, err
}

// answer tells a rank what all give.
func answer(c net.Conn, rows ...[]byte) {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(rows)))
	for _, row := range rows {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(row))), row...)
	}
	_, _ = c.Write(b)
}

// ranks serves an exchange of n ranks until they end it.
func ranks(t *testing.T, n int, f func(x *exchange)) {
	var all sync.WaitGroup
	servers := make([]net.Conn, n)
	for r := range n {
		var x *exchange
		x, servers[r] = pair(t, r, n, nil)
		all.Add(1)
		go func() {
			defer all.Done()
			defer x.Free()
			f(x)
		}()
	}
	for {
		rows := make([][]byte, n)
		for r, c := range servers {
			var err error
			if rows[r], err = request(c); err != nil {
				all.Wait()
				return
			}
		}
		for _, c := range servers {
			answer(c, rows...)
		}
	}
}

func TestWords(t *testing.T) {
	ranks(t, 3, func(x *exchange) {
		rows, err := x.Gather([]int64{int64(x.Rank()), -5}, nil)
		assert.NoError(t, err)
		assert.Equal(t, [][]int64{{0, -5}, {1, -5}, {2, -5}}, rows)
		words := []int64{int64(10 - x.Rank()), int64(x.Rank())}
		assert.NoError(t, x.Min(words))
		assert.Equal(t, []int64{8, 0}, words)
		node, hosts, err := x.Nodes("world")
		assert.NoError(t, err)
		host, _ := os.Hostname()
		assert.Equal(t, []int{0, 0, 0}, node)
		assert.Equal(t, []string{host}, hosts)
		long := make([]byte, mostGiven)
		long[77] = byte(x.Rank())
		bytes, err := x.Bytes(long)
		assert.NoError(t, err)
		for r, row := range bytes {
			assert.Equal(t, byte(r), row[77])
		}
		_, err = x.Bytes(make([]byte, mostGiven+1))
		assert.Equal(t, status.Argument, status.CodeOf(err))
	})
}

func TestNodesOfOthers(t *testing.T) {
	x, server := pair(t, 0, 4, nil)
	go func() {
		own, _ := request(server)
		other := append(append([]byte("id/"), "boot/"...), "far/away"...)
		answer(server, own, other, own, other)
	}()
	node, hosts, err := x.Nodes("id")
	require.NoError(t, err)
	assert.Equal(t, []int{0, 1, 0, 1}, node)
	assert.Equal(t, "far/away", hosts[1])
	go func() {
		own, _ := request(server)
		answer(server, own, own, []byte("di/boot/x"), own)
	}()
	_, _, err = x.Nodes("id")
	assert.ErrorContains(t, err, `rank 2 is of the world "di"`)
}

// What the other end sends is not believed.
func TestWrongAnswers(t *testing.T) {
	number := func(n ...uint32) (b []byte) {
		for _, x := range n {
			b = binary.LittleEndian.AppendUint32(b, x)
		}
		return b
	}
	for text, b := range map[string][]byte{
		"the bytes of 3 ranks, and the job has 2":   number(3),
		"brings 1048577 bytes of rank 1":            number(2, 0, mostGiven+1),
		"what serves it has ended":                  number(2, 0, 9),
		"rank 0 gives 0 bytes where rank 0 gives 8": number(2, 0, 0),
		"rank 0 of 2: nobody came":                  append(number(noExchange, 11), "nobody came"...),
	} {
		x, server := pair(t, 0, 2, nil)
		go func() {
			_, _ = request(server)
			_, _ = server.Write(b)
			server.Close()
		}()
		_, err := x.Gather([]int64{1}, nil)
		assert.ErrorContains(t, err, text)
	}
}

func TestInterrupt(t *testing.T) {
	enough := errors.New("enough")
	looks := 0
	x, _ := pair(t, 0, 2, func() error {
		if looks++; looks > 2 {
			return enough
		}
		return nil
	})
	_, err := x.Bytes(nil)
	assert.Equal(t, enough, err)
}

func TestNewExchange(t *testing.T) {
	_, err := newExchange(1<<20, 0, 1, nil)
	assert.Error(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	fd, err := syscall.Dup(int(r.Fd()))
	require.NoError(t, err)
	r.Close()
	_, err = newExchange(fd, 0, 1, nil)
	assert.ErrorContains(t, err, "is no socket")
	assert.Error(t, syscall.Close(fd), "it was closed")
}
