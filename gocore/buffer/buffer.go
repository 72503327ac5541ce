// Package buffer has what an operation does with the memory that its caller gave it, whatever the operation: it checks
// it, copies it where it is not contiguous, and finds out on which device it is and when that device is done with it.
package buffer

import (
	"math"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Check returns what is wrong with one buffer, without a look at the others.
func Check(code op.Code, side string, i int, b *op.Buf) error {
	switch {
	case !b.DType.Valid():
		return status.New(status.Type, "%s: %s tensor %d has dtype number %d, which does not exist", code, side, i, int32(b.DType))
	case b.Count < 0 || b.Count > math.MaxInt64/16:
		return status.New(status.Argument, "%s: %s tensor %d has a count of %d elements", code, side, i, b.Count)
	case b.Count > 0 && b.Data == nil:
		return status.New(status.Argument, "%s: %s tensor %d has %d elements and no memory", code, side, i, b.Count)
	}
	return nil
}

// OverlapError is the error that the elements of a tensor to receive into share memory.
func OverlapError(code op.Code, i int) error {
	return status.New(status.Argument, "%s: recv tensor %d has elements that share memory (a stride of 0 or overlapping ones); pass a copy", code, i)
}

// Overlap tells whether two ranges share memory.
func Overlap(x unsafe.Pointer, xBytes int64, y unsafe.Pointer, yBytes int64) bool {
	from, to := uintptr(x), uintptr(y)
	return xBytes > 0 && yBytes > 0 && from < to+uintptr(yBytes) && to < from+uintptr(xBytes)
}
