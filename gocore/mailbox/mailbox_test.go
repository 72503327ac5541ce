package mailbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
)

// two returns the mailboxes of two ranks.
func two(t *testing.T) (a, b *Mailbox) {
	libs := mpifake.New(2)
	a, b = New(mpifake.World(libs[0])), New(mpifake.World(libs[1]))
	t.Cleanup(func() { assert.Eventually(t, a.Sent, 20*time.Second, time.Millisecond) })
	return a, b
}

// arrives pumps until a letter is there, and takes it.
func arrives(t *testing.T, m *Mailbox, kind Kind, from int, key uint64) []byte {
	t.Helper()
	var body []byte
	assert.Eventually(t, func() (ok bool) { m.Pump(); body, ok = m.Take(kind, from, key); return ok }, 20*time.Second, time.Millisecond)
	return body
}

func TestLetters(t *testing.T) {
	a, b := two(t)
	first, second := []byte("12345678"), []byte("abcdefgh")
	a.Send(1, Hello, 7, first)
	a.Send(1, Hello, 7, second) // takes the place of the first
	a.Send(1, Go, 8, first)
	assert.Equal(t, first, arrives(t, b, Go, 0, 8))
	assert.True(t, b.Has(Hello))
	body, ok := b.Peek(Hello, 0, 7)
	assert.True(t, ok)
	assert.Equal(t, second, body)
	a.Send(1, Bye, 7, nil)
	a.Send(1, Absent, OfProcess, nil)
	arrives(t, b, Absent, 0, OfProcess)
	assert.False(t, b.Has(Hello), "it was taken back")
}

// A kind that has a handler does not come into the inbox. A rank that is dead is sent nothing.
func TestLettersThatAreHandled(t *testing.T) {
	a, b := two(t)
	var got []uint64
	b.Handle(Ask, func(from int, key uint64, body []byte) {
		assert.Equal(t, 0, from)
		assert.Len(t, body, 8)
		got = append(got, key)
	})
	dead := true
	a.Skip(func(rank int) bool { return dead && rank == 1 })
	a.Send(1, Ask, 5, make([]byte, 8))
	dead = false
	a.Send(1, Ask, 6, make([]byte, 8))
	a.Send(1, Absent, 0, nil)
	arrives(t, b, Absent, 0, 0)
	assert.Equal(t, []uint64{6}, got)
	assert.False(t, b.Has(Ask))
}

// What no rank sends is dropped: other lengths and kinds, no header, more letters than a rank has threads.
func TestLettersThatNoRankSends(t *testing.T) {
	a, b := two(t)
	_ = a.channel.Send(1, []byte("no header"))
	for kind := range Revoke {
		a.Send(1, kind, 1, []byte("123"))
	}
	for kind := range Kind(5) {
		a.Send(1, Revoke+kind, 1, make([]byte, mostText+1))
	}
	for key := range uint64(mostLetters + 10) {
		a.Send(1, Absent, key, nil)
	}
	arrives(t, b, Absent, 0, mostLetters-1)
	a.Send(1, Go, 9, make([]byte, 8)) // there is room again
	arrives(t, b, Go, 0, 9)
	assert.Len(t, b.inbox, mostLetters-1)
	assert.Equal(t, map[int]int{0: mostLetters - 1}, b.letters)
}
