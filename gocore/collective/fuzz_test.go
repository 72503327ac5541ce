package collective

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// FuzzMismatch writes down what ranks have announced that say anything.
func FuzzMismatch(f *testing.F) {
	f.Add(uint64(3|12<<8|1<<16), uint64(5), uint64(0), uint64(3), uint64(0), uint64(1))
	f.Add(uint64(200|99<<8|9<<16), ^uint64(0), uint64(1), ^uint64(0), ^uint64(0), ^uint64(0))
	f.Add(uint64(3|12<<8|8<<16), uint64(5), uint64(7), uint64(1<<63), uint64(0), uint64(1))
	g := &Group{Member: Member{Size: 2, Ranks: []int{4, 7}}}
	f.Fuzz(func(t *testing.T, a, b, c, x, y, z uint64) {
		err := (&failure{request: &request{g: g}}).mismatch([]arrive.Entry{{Signature: arrive.Signature{a, b, c}}, {Signature: arrive.Signature{x, y, z}}})
		assert.Equal(t, status.Mismatch, status.CodeOf(err))
		assert.Less(t, len(err.Error()), 1000)
	})
}
