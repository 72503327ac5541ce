package world

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Only a collective during which no other one was under way was alone: neither one that had begun before, nor one that came later,
// whether or not it is over.
func TestWhatIsAlone(t *testing.T) {
	var o Overlap
	assert.True(t, o.End(o.Begin()))
	first := o.Begin()
	second := o.Begin()
	assert.False(t, o.End(second))
	assert.False(t, o.End(first))
	first = o.Begin()
	second = o.Begin()
	assert.False(t, o.End(first))
	assert.False(t, o.End(second))
	assert.True(t, o.End(o.Begin()), "nothing is left of them")
}
