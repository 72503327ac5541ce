package coll

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// What is kept is what the registry says, for more signatures than there are places, also those that differ in one field.
func TestChoicesAreThoseOfTheRegistry(t *testing.T) {
	var k Choices
	for range 2 {
		for count := int64(1); count < 1<<30; count = count*3 + 1 {
			for _, agreed := range []arrive.Flags{0, Even, Even | Inline, Even | Mapped, Even | ForBounce} {
				for _, nodes := range []int{0, 2} {
					s := Sig{Code: op.AllReduce, DType: op.Float32, Root: -1, Count: count, Size: 4, Local: nodes == 0, Nodes: nodes, Agreed: agreed, Any: agreed}
					want, err := Choose(&s)
					require.NoError(t, err)
					got, err := k.Choose(&s)
					require.NoError(t, err)
					assert.Same(t, want, got, "%+v", s)
					s.Agreed |= arrive.Sync
					got, err = k.Choose(&s)
					require.NoError(t, err)
					assert.Same(t, want, got, "how the members come changes nothing: %+v", s)
				}
			}
		}
	}
}

// The registry is asked once for a signature.
func TestAChoiceIsKept(t *testing.T) {
	var k Choices
	s := Sig{Code: op.AllReduce, DType: op.Float32, Root: -1, Count: 4, Size: 2, Local: true, Agreed: Even | Inline, Any: Even | Inline}
	first, err := k.of(&s)
	require.NoError(t, err)
	again, err := k.of(&s)
	require.NoError(t, err)
	assert.Same(t, first, again)
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = k.of(&s) }))
}

// A signature that nothing serves is an error each time, and its scratch is that of what may serve a part of it.
func TestAChoiceThatThereIsNot(t *testing.T) {
	var k Choices
	s := Sig{Code: op.AllReduce, DType: op.Float32, Root: -1, Count: 4, Size: 2, NoMPI: true}
	for range 2 {
		_, err := k.Choose(&s)
		require.ErrorContains(t, err, "no algorithm for all_reduce")
	}
	assert.Zero(t, k.Scratch(&Args{Sig: s}, 0))
}
