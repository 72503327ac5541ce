package work

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAwait(t *testing.T) {
	never, closed, one := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	close(closed)
	assert.NoError(t, Await(closed, time.Time{}, nil))
	one <- struct{}{}
	assert.NoError(t, Await(one, time.Now().Add(time.Hour), func() error { return nil }))
	assert.Empty(t, one, "the value is taken")
	assert.ErrorIs(t, Await(never, time.Now().Add(time.Millisecond), nil), ErrDeadline)

	asked, stop := 0, errors.New("stop")
	began := time.Now()
	assert.ErrorIs(t, Await(never, time.Time{}, func() error {
		if asked++; asked < 3 {
			return nil
		}
		return stop
	}), stop)
	assert.Equal(t, 3, asked)
	assert.GreaterOrEqual(t, time.Since(began), 3*InterruptEvery-time.Millisecond)
}
