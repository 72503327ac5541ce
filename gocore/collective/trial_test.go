package collective

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A collective that nobody has taken further for long counts for nothing: its time says when its caller came.
func TestTimesThatNobodyPolled(t *testing.T) {
	for _, c := range []struct {
		since, unpolled time.Duration // it was announced, and left
		counts          bool
	}{
		{10 * time.Millisecond, 9 * time.Millisecond, false},
		{10 * time.Millisecond, 2 * time.Millisecond, true},
		{100 * time.Microsecond, 90 * time.Microsecond, true},
		{10 * time.Millisecond, 0, true},
	} {
		now := time.Now()
		try := trial{begun: now.Add(-c.since)}
		if c.unpolled > 0 {
			try.polled = now.Add(-c.unpolled)
		}
		try.poll()
		assert.Equal(t, c.counts, try.took() > 0, "%v", c)
		try.left()
		assert.Less(t, time.Since(try.polled), time.Since(now)+time.Microsecond)
		try.begun = now.Add(-time.Second)
		assert.Positive(t, try.took(), "it is a small part of a long time")
	}
	var none trial
	none.left()
	none.poll()
	assert.Equal(t, trial{}, none)
}
