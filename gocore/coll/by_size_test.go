package coll

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// The tests of this package take other lengths for levels: see init in tensors_test.go.
func withUsualLeast(t *testing.T) {
	least, sliced := levelLeast, slicedLeast
	levelLeast, slicedLeast = 1<<20, 64<<10
	t.Cleanup(func() { levelLeast, slicedLeast = least, sliced })
}

func servedOf(list []Served, operation, dtype string) (found []Served) {
	for _, row := range list {
		if row.Operation == operation && row.DType == dtype {
			found = append(found, row)
		}
	}
	return found
}

func TestAlgorithmsBySize(t *testing.T) {
	withUsualLeast(t)
	const room, sums, gathered, alone = 16 << 10, 128 << 10, 96 << 10, 256 << 10
	rooms := arrive.Rooms{Payload: room, Gathered: gathered, Alone: alone, Sum: sums}
	list := AlgorithmsBySize(Sig{Size: 4, Nodes: 2, Rails: 2}, rooms)
	assert.Equal(t, []Served{{"all_reduce", "float32", 4, "inline"}, {"all_reduce", "float32", room + 4, "leaders"}, {"all_reduce", "float32", sums + 4, "levels"}},
		servedOf(list, "all_reduce", "float32"))
	assert.Empty(t, servedOf(list, "all_reduce", "bfloat16"), "it is served by the same ones")
	without := AlgorithmsBySize(Sig{Size: 4, Nodes: 2, Rails: 2, Forced: WithoutLevels}, rooms)
	assert.Equal(t, []Served{{"all_reduce", "bfloat16", 2, "inline"}, {"all_reduce", "bfloat16", room + 2, "slices16"}},
		servedOf(without, "all_reduce", "bfloat16"))
	// A rank gives a quarter of what it gets, or the reverse.
	assert.Equal(t, []Served{{"all_gather", "float32", 16, "inline"}, {"all_gather", "float32", 4 * (gathered + 4), "levels"}},
		servedOf(list, "all_gather", "float32"))
	assert.Equal(t, []Served{{"reduce_scatter", "float32", 16, "inline"}, {"reduce_scatter", "float32", room + 16, "leaders"}, {"reduce_scatter", "float32", 2*sums + 16, "levels"}},
		servedOf(list, "reduce_scatter", "float32"))
	eight := AlgorithmsBySize(Sig{Size: 8, Nodes: 2, Rails: 4}, arrive.Rooms{Payload: room / 2, Sum: sums})
	assert.Equal(t, []Served{{"all_to_all", "float32", 32, "inline"}, {"all_to_all", "float32", room/2 + 32, "mpi"}, {"all_to_all", "float32", 1 << 20, "levels"}, {"all_to_all", "float32", 8*512<<10 + 32, "mpi"}},
		servedOf(eight, "all_to_all", "float32"))
	assert.Len(t, servedOf(list, "all_to_all", "float32"), 2, "inline and mpi: two ranks a node are too few")
	assert.Equal(t, []Served{{"broadcast", "float32", 4, "inline"}, {"broadcast", "float32", alone + 4, "levels"}}, servedOf(list, "broadcast", "float32"))
	// Of two ranks each tells the share of the other one.
	two := AlgorithmsBySize(Sig{Size: 2, Nodes: 2}, rooms)
	assert.Equal(t, []Served{{"reduce_scatter", "float32", 8, "inline"}, {"reduce_scatter", "float32", 2*room + 8, "slices"}}, servedOf(two, "reduce_scatter", "float32"))
	assert.Equal(t, []Served{{"reduce", "float32", 4, "inline"}, {"reduce", "float32", room + 4, "slices"}}, servedOf(two, "reduce", "float32"))
	assert.Empty(t, servedOf(list, "barrier", "float32"), "it has no length")
	assert.Empty(t, servedOf(list, "broadcast", "bfloat16"), "it is served as any dtype")
}

func TestLevelsAndSlicesCanBeSwitchedOff(t *testing.T) {
	withUsualLeast(t)
	for _, s := range []Sig{{Size: 4, Nodes: 2, Rails: 2}, {Size: 4, Nodes: 4}} {
		name := map[int]string{2: "levels", 0: "slices"}[s.Rails]
		with := func(forced Forced) (found bool) {
			s.Forced = forced
			for _, row := range AlgorithmsBySize(s, arrive.Rooms{Payload: 1 << 10, Sum: 1 << 17}) {
				found = found || row.Algorithm == name
			}
			return found
		}
		assert.True(t, with(0))
		assert.False(t, with(WithoutLevels))
		forced, err := ParseForced("all_reduce:" + name)
		assert.NoError(t, err)
		assert.True(t, with(forced))
		assert.False(t, with(forced|WithoutLevels), "off is off")
	}
	for c := range registry {
		assert.Nil(t, WithoutLevels.of(op.Code(c)), "%s is forced by the bit", op.Code(c))
	}
}
