package mem

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// MoveStrided queues a kernel on s that copies elements [from, from+count), in row-major order, of
// the tensor b in device memory to flat, or from flat to b if toTensor is set. The device must
// reach flat, so it is pinned or device memory.
func MoveStrided(d *cuda.Device, flat unsafe.Pointer, b *op.Buf, from, count int64, toTensor bool, s cuda.Stream) error {
	if count == 0 {
		return nil
	}
	args, err := cuda.NewStridedArgs(b.Dims(), b.Steps())
	if err != nil {
		return err
	}
	args.From, args.Count = from, count
	args.Flat, args.Strided = uint64(uintptr(flat)), uint64(uintptr(b.Data))
	if toTensor {
		args.ToStrided = 1
	}
	return d.CopyStrided(&args, b.DType.Size(), s)
}
