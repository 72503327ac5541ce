package client

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

func TestATurn(t *testing.T) {
	turn, soon := newTurn(), func() time.Time { return time.Now().Add(50 * time.Millisecond) }
	require.NoError(t, turn.take("push", 7, soon(), nil))
	err := turn.take("push", 7, soon(), nil)
	assert.Equal(t, status.Reentrant, status.CodeOf(err), "a handler on the thread that holds it")
	assert.ErrorContains(t, err, "push: called by a signal handler")
	for _, other := range []int{0, 8} {
		assert.Equal(t, status.Timeout, status.CodeOf(turn.take("push", other, soon(), nil)))
	}
	stop := errors.New("Ctrl-C")
	assert.Equal(t, stop, turn.take("push", 8, time.Now().Add(time.Hour), func() error { return stop }))

	got := make(chan error)
	go func() { got <- turn.take("push", 8, time.Now().Add(time.Minute), nil) }()
	time.Sleep(10 * time.Millisecond)
	turn.give()
	require.NoError(t, <-got)
	assert.Equal(t, status.Timeout, status.CodeOf(turn.take("push", 7, soon(), nil)), "it has given it back")
	turn.give()
	for range 2 {
		require.NoError(t, turn.take("push", 0, soon(), nil))
		turn.give()
	}
}
