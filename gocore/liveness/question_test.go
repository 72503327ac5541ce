package liveness

import (
	"encoding/binary"
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var question = [QuestionBytes]byte{7, 0, 9}

func TestAsk(t *testing.T) {
	ranks := job(t, 0, 0, 1, 2)
	for asker, l := range ranks {
		for asked := range ranks {
			if asked == asker {
				continue
			}
			answer, err := l.Ask([]int{asked}, question, patience)
			require.NoError(t, err)
			assert.Equal(t, append([]byte{byte(asked)}, question[:]...), answer)
		}
	}
	assert.False(t, ranks[0].AnyDead())
}

// mute returns what asks as l does, and finds rank r at a port where connections are made, and nobody
// accepts them, as with a process that is stopped. It also returns the descriptor of the port.
func mute(t *testing.T, l *Liveness, r int) (*Liveness, int) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	t.Cleanup(func() { syscall.Close(fd) })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, syscall.Listen(fd, 8))
	at, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	places := append([]Place(nil), l.places...)
	places[r] = Place{Host: "h", Port: uint16(at.(*syscall.SockaddrInet4).Port), Addresses: places[0].Addresses}
	return &Liveness{limits: l.limits, tree: l.tree, tokens: l.tokens, places: places}, fd
}

func TestAProcessThatIsStoppedDoesNotAnswer(t *testing.T) {
	ranks := job(t, 0, 1, 1)
	asker, _ := mute(t, ranks[0], 1)
	_, err := asker.Ask([]int{1}, question, 100*time.Millisecond)
	assert.Equal(t, ErrSilent, err)
	answer, err := asker.Ask([]int{1, 2}, question, patience) // the first answer counts
	require.NoError(t, err)
	assert.Equal(t, byte(2), answer[0])
}

func TestAnotherProcessAtThePort(t *testing.T) {
	for name, c := range map[string]struct {
		sends func(l *Liveness) []byte
		err   error
	}{
		"a wrong token": {func(l *Liveness) []byte { return make([]byte, 100) }, errStranger},
		"too long": {func(l *Liveness) []byte {
			return append(l.tokens.reply.with(1), binary.LittleEndian.AppendUint16(nil, MostAnswer+1)...)
		}, errRubbish},
		"cut off": {func(l *Liveness) []byte {
			return append(binary.LittleEndian.AppendUint16(l.tokens.reply.with(1), 10), 1, 2, 3)
		}, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			l, fd := mute(t, job(t, 0, 1)[0], 1)
			go func() {
				if err := syscall.SetNonblock(fd, false); err != nil {
					return
				}
				if got, _, err := syscall.Accept(fd); err == nil {
					_, _ = syscall.Write(got, c.sends(l))
					_ = syscall.Shutdown(got, syscall.SHUT_WR)
					_, _ = syscall.Read(got, make([]byte, 100)) // a close with unread bytes would reset the connection
					time.Sleep(100 * time.Millisecond)
					syscall.Close(got)
				}
			}()
			_, err := l.Ask([]int{1}, question, patience)
			assert.True(t, errors.Is(err, c.err), "%v", err)
		})
	}
}

func TestNobodyListens(t *testing.T) {
	ranks := job(t, 0, 1)
	ranks[1].Close()
	_, err := ranks[0].Ask([]int{1}, question, patience)
	assert.Error(t, err)
	assert.NotEqual(t, ErrSilent, err)
}

func TestAQuestionThatIsCutOff(t *testing.T) {
	l := job(t, 0, 1)[0]
	s := stranger(t, l)
	require.NoError(t, s.write(append(l.tokens.hello.with(1, 0), fact{ask, 1, 1}.encode()...)))
	require.NoError(t, s.write(question[:3]))
	_, err := io.ReadFull(s.conn, make([]byte, tokenBytes+4))
	require.NoError(t, err)
	require.NoError(t, s.conn.CloseWrite())
	assert.Empty(t, closedOnUs(t, s))
	assert.False(t, l.AnyDead())
}

// A question is none of the messages of the tree.
func TestAskOnAConnectionOfTheTree(t *testing.T) {
	ranks := job(t, 0, 0, 1)
	s := connectAs(t, ranks[1], 2)
	require.NoError(t, s.write(fact{ask, 2, 2}.encode()))
	agree(t, ranks, []int{0, 1}, 2)
	assert.Contains(t, ranks[0].Why(2), "what is no message of this library")
}

func TestNotices(t *testing.T) {
	ranks := job(t, 0, 0, 1, 1, 2, 3, 4, 5)
	ranks[3].Notify(1<<32 - 1)
	for r, l := range ranks {
		eventually(t, "all ranks hear of it", func() bool { return l.Noticed(1<<32-1, patience) })
		assert.False(t, l.Noticed(5, patience), "rank %d", r)
		assert.False(t, l.Noticed(1<<32-1, 0), "rank %d", r)
		assert.False(t, l.AnyDead(), "rank %d", r)
	}
	var none Liveness
	none.Notify(1)
	assert.False(t, none.Noticed(1, patience))
}

// A rank that sends notices without end does not fill the job with them.
func TestAFloodOfNotices(t *testing.T) {
	l := job(t, 0, 1)[0]
	for id := range uint32(10 * keptNotices) {
		l.Notify(id)
	}
	assert.Len(t, l.notices, keptNotices)
	assert.True(t, l.Noticed(0, patience))
	assert.False(t, l.Noticed(10*keptNotices-1, patience))
}
