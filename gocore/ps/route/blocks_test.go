package route

import (
	"testing"

	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		elements, cols  int64
		servers         int
		least           int64
		blocks, ofBlock int64
	}{
		{1, 1, 4, 8192, 1, 1},                    // smaller than a block
		{8191, 1, 4, 8192, 1, 8191},              //
		{16384, 1, 4, 8192, 2, 8192},             // as many blocks as are large enough
		{16385, 1, 4, 8192, 2, 8193},             // the last one is shorter
		{1000000, 1, 4, 8192, 4, 250000},         // one for each server
		{1000000, 1000, 3, 8192, 3, 334000},      // whole rows
		{30 * 10000, 10000, 20, 8192, 15, 20000}, // fewer blocks because of whole rows: 20 would have 1.5
		{10, 10, 3, 1, 1, 10},                    // one row is never split
		{1 << 62, 1, 2, 1, 2, 1 << 61},           // no overflow
	} {
		blocks, block, err := Split(c.elements, c.cols, c.servers, c.least)
		require.NoError(t, err)
		assert.Equal(t, []int64{c.blocks, c.ofBlock}, []int64{blocks, block}, "%+v", c)
	}
}

// Blocks cover the parameter, are not empty, and none but the last is of another size.
func TestSplitCovers(t *testing.T) {
	for rows := int64(1); rows < 60; rows++ {
		for _, cols := range []int64{1, 3, 100} {
			for servers := 1; servers < 9; servers++ {
				for _, least := range []int64{1, 7, 250} {
					blocks, block, err := Split(rows*cols, cols, servers, least)
					require.NoError(t, err)
					assert.LessOrEqual(t, blocks, int64(servers))
					assert.Zero(t, block%cols)
					assert.Less(t, (blocks-1)*block, rows*cols)
					assert.GreaterOrEqual(t, blocks*block, rows*cols)
					assert.True(t, blocks == 1 || block >= least)
				}
			}
		}
	}
}

func TestSplitRefuses(t *testing.T) {
	for _, c := range []struct {
		elements, cols int64
		servers        int
		least          int64
		text           string
	}{
		{0, 1, 1, 1, "0 elements"}, {-5, 1, 1, 1, "-5 elements"}, {10, 0, 1, 1, "rows of 0"}, {10, 3, 1, 1, "rows of 3"},
		{10, 1, 0, 1, "servers=0"}, {10, 1, 1, 0, "min_block=0"},
	} {
		_, _, err := Split(c.elements, c.cols, c.servers, c.least)
		assert.ErrorContains(t, err, c.text)
		assert.Equal(t, status.Argument, status.CodeOf(err))
	}
}
