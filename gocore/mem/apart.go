package mem

import (
	"math"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// Apart tells whether two tensors certainly share no memory. It is true for tensors in different places, and for many
// that lie between each other: columns of one array, every second element and those between. It is false for every two
// that share an element, and for some that do not.
func Apart(x, y *op.Buf) bool {
	if x.Count == 0 || y.Count == 0 {
		return true
	}
	from, length := extent(x, math.MaxInt64)
	other, itsLength := extent(y, math.MaxInt64)
	if from+length <= other || other+itsLength <= from {
		return true
	}
	for _, b := range []*op.Buf{x, y} {
		for _, step := range b.Steps() {
			if g := magnitude(step) * int64(b.DType.Size()); g > 0 && apartModulo(x, y, g) {
				return true
			}
		}
	}
	return false
}

// apartModulo tells whether no address of x equals one of y modulo g. Each of the two has one range of addresses then.
func apartModulo(x, y *op.Buf, g int64) bool {
	from, length := extent(x, g)
	other, itsLength := extent(y, g)
	behind := ((other-from)%g + g) % g // from the begin of x to that of y
	return length <= behind && itsLength <= g-behind
}

// extent returns the addresses of the elements of b, modulo g: where they begin, and how many bytes from the first to the
// last one. Steps that are multiples of g lead to the same address.
func extent(b *op.Buf, g int64) (from, length int64) {
	elem := int64(b.DType.Size())
	from, length = int64(uintptr(b.Data)), elem
	if b.Contiguous() {
		return from, b.Bytes()
	}
	for i, n := range b.Dims() {
		step := b.Steps()[i] * elem
		if step%g == 0 {
			continue
		}
		length += magnitude(step) * (n - 1)
		if step < 0 {
			from += step * (n - 1)
		}
	}
	return from, length
}

func magnitude(v int64) int64 { return max(v, -v) }
