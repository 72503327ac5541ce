package channel

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
)

// receive waits for a message.
func receive(t *testing.T, c *Channel) (from int, message string) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		if from, b, ok := c.Receive(); ok {
			return from, string(b)
		}
	}
	require.Fail(t, "no message came")
	return 0, ""
}

func TestMessages(t *testing.T) {
	libs := mpifake.New(3)
	here := make([]*Channel, 3)
	for i, lib := range libs {
		here[i] = New(mpifake.World(lib), Groups, 8)
	}
	_, _, ok := here[2].Receive()
	assert.False(t, ok)

	require.NoError(t, here[0].Send(2, []byte("ab"), nil, []byte("cd")))
	from, message := receive(t, here[2])
	assert.Equal(t, 0, from)
	assert.Equal(t, "abcd", message)

	require.NoError(t, here[1].Send(2))
	from, message = receive(t, here[2])
	assert.Equal(t, 1, from)
	assert.Empty(t, message)

	require.NoError(t, here[2].Send(2, bytes.Repeat([]byte("x"), 20))) // beyond the limit
	from, message = receive(t, here[2])
	assert.Equal(t, 2, from)
	assert.Equal(t, "xxxxxxxx", message)

	for _, c := range here {
		assert.Eventually(t, c.Sent, 20*time.Second, time.Millisecond)
	}
}

func TestRoomsDoNotMeet(t *testing.T) {
	libs := mpifake.New(2)
	other := Groups + 1
	require.NoError(t, New(mpifake.World(libs[0]), Groups, 8).Send(1, []byte("first")))
	require.NoError(t, New(mpifake.World(libs[0]), other, 8).Send(1, []byte("second")))
	_, message := receive(t, New(mpifake.World(libs[1]), other, 8))
	assert.Equal(t, "second", message)
	_, message = receive(t, New(mpifake.World(libs[1]), Groups, 8))
	assert.Equal(t, "first", message)
}

func TestMessagesBeyondTheLimitAreNotReceived(t *testing.T) {
	libs := mpifake.New(2)
	require.NoError(t, New(mpifake.World(libs[0]), Groups, 64).Send(1, make([]byte, 64)))
	short := New(mpifake.World(libs[1]), Groups, 8)
	for i := 0; i < 100; i++ {
		_, _, ok := short.Receive()
		assert.False(t, ok)
	}
	require.NoError(t, New(mpifake.World(libs[0]), Groups, 64).Send(1, []byte("short")))
	_, message := receive(t, short)
	assert.Equal(t, "short", message)
}
