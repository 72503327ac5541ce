package route

import "github.com/paddlempi/paddlempi/gocore/status"

// Split returns into how many blocks a dense parameter is cut, and the elements of a block; the last
// block may be shorter. It is the rule of Fluid's parameter server: at most one block for each server,
// none of fewer than minBlock elements unless the whole parameter is smaller, and every block of whole
// rows of cols elements (1 for a parameter of one dimension).
func Split(elements, cols int64, servers int, minBlock int64) (blocks, block int64, err error) {
	switch {
	case elements < 1:
		return 0, 0, status.New(status.Argument, "a parameter of %d elements cannot be split; it must have 1 or more", elements)
	case cols < 1 || elements%cols != 0:
		return 0, 0, status.New(status.Argument, "a parameter of %d elements does not have rows of %d", elements, cols)
	case servers < 1:
		return 0, 0, status.New(status.Argument, "servers=%d is below 1", servers)
	case minBlock < 1:
		return 0, 0, status.New(status.Argument, "min_block=%d is below 1", minBlock)
	}
	blocks = min(int64(servers), max(1, elements/minBlock))
	block = ceil(ceil(elements, blocks), cols) * cols
	return ceil(elements, block), block, nil
}

func ceil(a, b int64) int64 { return (a-1)/b + 1 }
