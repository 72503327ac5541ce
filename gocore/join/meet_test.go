package join

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

const patience = 20 * time.Second

var (
	secret = []byte("correct horse battery staple")
	server = card{Library: "1", MPI: "MPICH 5", Size: 2, Host: "node1", PID: 11}
	client = card{Library: "1", MPI: "MPICH 5", Size: 3, Host: "node2", PID: 22}
)

type outcome struct {
	peer *peer
	err  error
}

// accepting listens at the loopback and accepts in a goroutine.
func accepting(t testing.TB, secret []byte, limit time.Duration) (address string, came chan outcome) {
	t.Helper()
	l, err := listen("accept", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(context.Background(), limit)
	came = make(chan outcome, 1)
	go func() {
		defer stop()
		p, err := l.admit(ctx, secret, server)
		came <- outcome{p, err}
	}()
	return l.Addr().String(), came
}

func connecting(t testing.TB, address string, secret []byte, given card, limit time.Duration) (*peer, error) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	p, err := connect(ctx, address, secret, given)
	return p, Call{What: "connect", Timeout: limit}.unmet(address, err)
}

func TestTwoJobsMeet(t *testing.T) {
	address, came := accepting(t, secret, patience)
	there, err := connecting(t, address, secret, client, patience)
	require.NoError(t, err)
	defer there.Close()
	here := <-came
	require.NoError(t, here.err)
	defer here.peer.Close()
	assert.Equal(t, server, there.card)
	assert.Equal(t, client, here.peer.card)

	limit := time.Now().Add(patience)
	require.NoError(t, here.peer.TellPort("tag#0$description", limit))
	port, err := there.Port(limit)
	require.NoError(t, err)
	assert.Equal(t, "tag#0$description", port)

	assert.False(t, here.peer.Gone())
	settled := make(chan error)
	go func() { settled <- there.Settle(time.Now().Add(patience)) }()
	select {
	case <-settled:
		assert.Fail(t, "it has not waited for the other one")
	case <-time.After(20 * time.Millisecond):
	}
	assert.False(t, here.peer.Gone(), "it waits")
	require.NoError(t, here.peer.Settle(time.Now().Add(patience)))
	require.NoError(t, <-settled)
}

func TestAPeerThatEndsIsGone(t *testing.T) {
	address, came := accepting(t, secret, patience)
	there, err := connecting(t, address, secret, client, patience)
	require.NoError(t, err)
	here := <-came
	require.NoError(t, here.err)
	defer here.peer.Close()
	assert.False(t, here.peer.Gone())
	there.Close()
	assert.Eventually(t, here.peer.Gone, patience, time.Millisecond)
	assert.Error(t, here.peer.Settle(time.Now().Add(patience)))
}

func TestPortsAreChecked(t *testing.T) {
	for _, port := range []string{"", strings.Repeat("p", mostPort+1), "a\x00b"} {
		address, came := accepting(t, secret, patience)
		there, err := connecting(t, address, secret, client, patience)
		require.NoError(t, err)
		here := <-came
		require.NoError(t, here.err)
		require.NoError(t, here.peer.TellPort(port, time.Now().Add(patience)))
		_, err = there.Port(time.Now().Add(patience))
		assert.ErrorContains(t, err, "no port")
		here.peer.Close()
		there.Close()
	}
}

func TestAnotherSecretIsTurnedAway(t *testing.T) {
	address, came := accepting(t, secret, patience)
	_, err := connecting(t, address, []byte("guessed"), client, patience)
	assert.Equal(t, status.Argument, status.CodeOf(err))
	assert.ErrorContains(t, err, "the job there has another secret")
	there, err := connecting(t, address, secret, client, patience) // it waits on
	require.NoError(t, err)
	there.Close()
	(<-came).peer.Close()
}

func TestAListenerWithoutTheSecretIsFound(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Write(opening(nonce{1}))
		_, _ = io.ReadFull(c, make([]byte, openingBytes+proofBytes))
		_, _ = c.Write(append([]byte{welcome}, make([]byte, proofBytes)...))
		_, _ = c.Read(make([]byte, 1))
	}()
	_, err = connecting(t, l.Addr().String(), secret, client, patience)
	assert.ErrorContains(t, err, "does not know the secret")
}

func TestJobsThatDoNotFitAreToldWhy(t *testing.T) {
	for name, other := range map[string]card{
		"different MPIs":                  {Library: "1", MPI: "Intel MPI", Size: 1},
		"different versions of paddlempi": {Library: "2", MPI: "MPICH 5", Size: 1},
	} {
		address, came := accepting(t, secret, patience)
		_, err := connecting(t, address, secret, other, patience)
		assert.Equal(t, status.Argument, status.CodeOf(err), name)
		assert.ErrorContains(t, err, name)
		there, err := connecting(t, address, secret, client, patience) // the listener waits on
		require.NoError(t, err, name)
		there.Close()
		(<-came).peer.Close()
	}
}

func TestOneJobIsLetInAndTheOthersComeAgain(t *testing.T) {
	address, came := accepting(t, secret, patience)
	const jobs = 8
	let := make(chan outcome, jobs)
	for range jobs {
		go func() {
			p, err := connecting(t, address, secret, client, time.Second)
			let <- outcome{p, err}
		}()
	}
	here := <-came
	require.NoError(t, here.err)
	defer here.peer.Close()
	in := 0
	for range jobs {
		o := <-let
		if o.err == nil {
			in++
			o.peer.Close()
			continue
		}
		assert.Equal(t, status.Timeout, status.CodeOf(o.err), "nobody listens any more, and it has tried until its deadline")
		assert.ErrorContains(t, o.err, "after 1s no job had accepted this one; the last attempt: ")
	}
	assert.Equal(t, 1, in)
}

func TestDeadlines(t *testing.T) {
	_, came := accepting(t, secret, 50*time.Millisecond)
	assert.ErrorIs(t, (<-came).err, context.DeadlineExceeded)

	l, err := net.Listen("tcp", "127.0.0.1:0") // connections come about, and nobody serves them
	require.NoError(t, err)
	defer l.Close()
	began := time.Now()
	_, err = connecting(t, l.Addr().String(), secret, client, 100*time.Millisecond)
	assert.Equal(t, status.Timeout, status.CodeOf(err))
	assert.ErrorContains(t, err, "the last attempt: no greeting: ")
	assert.Less(t, time.Since(began), 3*time.Second)
}

// half connects and sends what a stranger may send.
func half(t testing.TB, address string, sent []byte) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	_, _ = c.Write(sent)
	return c
}

func TestHalfOpenConnectionsKeepNobodyOut(t *testing.T) {
	address, came := accepting(t, secret, patience)
	for i := range 1000 {
		c := half(t, address, opening(nonce{byte(i)})[:i%openingBytes])
		defer c.Close()
	}
	began := time.Now()
	there, err := connecting(t, address, secret, client, patience)
	require.NoError(t, err)
	there.Close()
	(<-came).peer.Close()
	assert.Less(t, time.Since(began), strangerLimit, "it need not wait until the strangers' time is over")
}

// TestHostileBytes sends what is no hello, and hellos that are almost right.
func TestHostileBytes(t *testing.T) {
	address, came := accepting(t, secret, patience)
	right := func(c net.Conn) []byte {
		listener, err := readOpening(c)
		require.NoError(t, err)
		mine := nonce{7}
		return append(opening(mine), proof(secret, "caller", listener, mine)...)
	}
	frame := func(kind byte, n uint32, body []byte) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{kind}, n), body...)
	}
	for name, change := range map[string]func(hello []byte) []byte{
		"nothing":              func([]byte) []byte { return nil },
		"another protocol":     func([]byte) []byte { return []byte("GET / HTTP/1.1\r\nHost: " + strings.Repeat("x", 200) + "\r\n\r\n") },
		"zeros":                func([]byte) []byte { return make([]byte, 1<<16) },
		"another version":      func(b []byte) []byte { b[len(magic)+3]++; return b },
		"one bit of the proof": func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"another challenge":    func(b []byte) []byte { b[openingBytes-1] ^= 1; return b },
		"no card":              func(b []byte) []byte { return append(b, frame(frameJoin, 0, make([]byte, proofBytes))...) },
		"a card that is not ours": func(b []byte) []byte {
			return append(b, frame(frameCard, 2, append([]byte("{}"), make([]byte, proofBytes)...))...)
		},
		"a frame of 4 GiB": func(b []byte) []byte { return append(b, frame(frameCard, 1<<32-1, make([]byte, 1<<16))...) },
	} {
		c := half(t, address, nil)
		_, _ = c.Write(change(right(c)))
		_ = c.(*net.TCPConn).CloseWrite()
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		_, err := io.Copy(io.Discard, c) // until the listener has closed it
		assert.False(t, os.IsTimeout(err), name)
		c.Close()
	}
	there, err := connecting(t, address, secret, client, patience)
	require.NoError(t, err)
	there.Close()
	(<-came).peer.Close()
}

func TestWhatTheOtherJobTells(t *testing.T) {
	for _, text := range []string{"", "[]", "{", `{"size": 0}`, `{"size": -1}`, `{"size": 1e30}`, `{"size": 2, "pid": -1}`, `{"size": "2"}`} {
		_, err := readCard([]byte(text))
		assert.Error(t, err, text)
	}
	c, err := readCard([]byte(`{"size": 2, "host": "a\u001b[31mb", "mpi": "` + strings.Repeat("m", 2000) + `"}`))
	require.NoError(t, err)
	assert.Equal(t, "a?[31mb", c.Host)
	assert.Len(t, c.MPI, mostText)
}

func TestAnswersToAConnect(t *testing.T) {
	for name, sent := range map[string]string{
		"no job of this library": strings.Repeat("SSH-2.0-OpenSSH", 10),
		"another version":        string(opening(nonce{}))[:len(magic)] + "\x00\x00\x00\x09" + strings.Repeat("n", nonceBytes),
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = c.Write([]byte(sent))
				_, _ = c.Read(make([]byte, 1))
				c.Close()
			}
		}()
		_, err = connecting(t, l.Addr().String(), secret, client, patience)
		assert.Equal(t, status.Argument, status.CodeOf(err), name)
		assert.ErrorContains(t, err, name)
		l.Close()
	}
}

func TestSecretsInFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte("s3cret\n"), 0o600))
	got, err := Other{SecretFile: path}.secret("accept")
	require.NoError(t, err)
	assert.Equal(t, "s3cret", string(got))

	spoiled := []struct {
		says  string
		spoil func()
	}{
		{"others have rights", func() { require.NoError(t, os.Chmod(path, 0o640)) }},
		{"has 0 bytes", func() {
			require.NoError(t, os.Chmod(path, 0o600))
			require.NoError(t, os.WriteFile(path, []byte("\n"), 0o600))
		}},
		{"has 4097 bytes", func() { require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600)) }},
		{"it is no file", func() {
			require.NoError(t, os.Remove(path))
			require.NoError(t, syscall.Mkfifo(path, 0o600))
		}},
		{"no such file", func() { require.NoError(t, os.Remove(path)) }},
	}
	for _, s := range spoiled {
		s.spoil()
		_, err := Other{SecretFile: path}.secret("accept")
		assert.Equal(t, status.Argument, status.CodeOf(err), s.says)
		assert.ErrorContains(t, err, s.says)
	}
}

func TestAddresses(t *testing.T) {
	for _, address := range []string{"", "node1", "node1:", "::1:5"} {
		_, err := Call{What: "accept"}.find(t.Context(), Other{Address: address, Secret: secret}, true)
		assert.Equal(t, status.Argument, status.CodeOf(err), address)
	}
	l, err := listen("accept", "127.0.0.1:0")
	require.NoError(t, err)
	_, err = listen("accept", l.Addr().String())
	assert.ErrorContains(t, err, "cannot listen there")
	l.Close()
	l.Close()
}

// FuzzHello sends bytes to a listener, in the place of a hello and what follows. Then a job comes that knows the secret.
func FuzzHello(f *testing.F) {
	f.Add([]byte{}, true)
	f.Add(opening(nonce{1}), false)
	f.Add(append(opening(nonce{1}), make([]byte, proofBytes)...), true)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), false)
	f.Fuzz(func(t *testing.T, sent []byte, ends bool) {
		address, came := accepting(t, secret, patience)
		c := half(t, address, sent)
		defer c.Close()
		if ends {
			c.Close()
		}
		there, err := connecting(t, address, secret, client, patience)
		require.NoError(t, err)
		there.Close()
		(<-came).peer.Close()
	})
}

// FuzzFrame sends bytes in the place of a frame, by a process that has shown the secret or not.
func FuzzFrame(f *testing.F) {
	f.Add([]byte{}, byte(frameCard))
	f.Add([]byte(`{"size": 3, "pid": 5}`), byte(frameCard))
	f.Add([]byte("no"), byte(frameRefuse))
	f.Add([]byte{1, 255, 255, 255, 255}, byte(0))
	f.Fuzz(func(t *testing.T, body []byte, kind byte) {
		mine, theirs := net.Pipe()
		defer mine.Close()
		defer theirs.Close()
		reader := &peer{key: secret, me: "listener", other: "caller"}
		writer := &peer{key: secret, me: "caller"}
		raw := body
		if kind != 0 && len(body) <= mostFrame { // a right frame, whose content is made up
			raw = append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body))), body...)
			raw = append(raw, writer.code("caller", 0, kind, body)...)
		}
		go func() {
			_, _ = theirs.Write(raw)
			theirs.Close()
		}()
		got, text, err := reader.read(mine)
		if kind != 0 && len(body) <= mostFrame {
			require.NoError(t, err)
			assert.Equal(t, kind, got)
			assert.Equal(t, len(body), len(text))
			if c, err := readCard(text); err == nil {
				assert.Positive(t, c.Size)
			}
		} else {
			assert.Error(t, err)
		}
	})
}
