package cuda

import (
	"bytes"
	"compress/bzip2"
	_ "embed" // the kernels
	"io"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// The kernels as PTX, which tools/ptx makes from kernels/*.cu: the texts of all modules, each after a line with its
// name, compressed. `make ptx` writes them to read. Each dtype has a module, so that its first use does not wait until
// the driver has compiled all of them.
//
//go:embed kernels/kernels.bz2
var packed []byte

const (
	// MaxArrays is the largest number of sources, and of destinations, of a reduction.
	MaxArrays = 64
	// MaxDims is the largest number of dimensions of a strided tensor, after mergeable ones were
	// merged.
	MaxDims = 16

	// Threads of a block, and blocks that each processor of a device runs at once, as in
	// kernels/dialect.h.
	blockThreads       = 256
	blocksPerProcessor = 4
	// The bytes that a thread moves at once.
	packBytes = 16
)

// ReduceArgs has the fields of pmpi_reduce_args in kernels/arguments.h. Every array of Dst becomes
// the reduction of the arrays of Src, in their order. Src and Dst are addresses that the device can
// access, aligned as their elements are. The caller keeps the memory until the kernel has run. A
// destination may be one of the sources. Otherwise it must not overlap any of them.
//
// Arrays whose addresses have the same remainder modulo 16 are read and written 16 bytes at a time,
// others element by element.
type ReduceArgs struct {
	Count int64 // elements of each array
	NSrc  int64 // 1 to MaxArrays
	NDst  int64 // 1 to MaxArrays
	Src   [MaxArrays]uint64
	Dst   [MaxArrays]uint64
	Scale [MaxArrays]float64 // for PREMUL_SUM: a factor for each source
}

// StridedArgs has the fields of pmpi_strided_args in kernels/arguments.h. It describes elements [From,
// From+Count), in row-major order, of the tensor at Strided, and flat memory whose first element is
// element From.
type StridedArgs struct {
	From      int64
	Count     int64
	NDim      int64 // 0: one dimension with the stride Strides[0]
	Flat      uint64
	Strided   uint64
	ToStrided int64 // 1: write the tensor; 0: write flat memory
	Shape     [MaxDims]int64
	Strides   [MaxDims]int64 // in elements
}

// NewStridedArgs describes a tensor by its shape and its strides in elements. Without strides the
// tensor has no gaps. Adjacent dimensions that continue each other in memory become one, because a
// kernel divides once for each dimension after the first.
func NewStridedArgs(shape, strides []int64) (StridedArgs, error) {
	a := StridedArgs{}
	a.Strides[0] = 1
	if strides == nil {
		return a, nil
	}
	if len(strides) != len(shape) {
		return a, status.New(status.Argument, "a tensor of %d dimensions has %d strides", len(shape), len(strides))
	}
	n := 0
	for i, size := range shape {
		switch {
		case size == 1: // its stride does not matter
			continue
		case n > 0 && a.Strides[n-1] == size*strides[i]:
			a.Shape[n-1] *= size
		case n == MaxDims:
			return a, status.New(status.Unsupported, "a tensor in device memory that is not contiguous may have %d dimensions, this one of shape %v and strides %v has more: pass a contiguous copy", MaxDims, shape, strides)
		default:
			n++
			a.Shape[n-1] = size
		}
		a.Strides[n-1] = strides[i]
	}
	a.NDim = int64(n)
	return a, nil
}

// Reduce queues the reduction r of elements of type d on s. It reads every source once and writes
// every destination once: (NSrc + NDst) * Count elements.
func (v *Device) Reduce(args *ReduceArgs, d op.DType, r op.ReduceOp, s Stream) error {
	k, ok := reduceKernels()[reduction{d, r}]
	if !ok {
		return status.New(status.Type, "%v is not defined for %v", r, d)
	}
	if args.Count < 0 || args.NSrc < 1 || args.NSrc > MaxArrays || args.NDst < 1 || args.NDst > MaxArrays {
		return status.New(status.Argument, "a reduction on a device wants 1 to %d sources and destinations and a count of 0 or more, not %d sources, %d destinations and a count of %d",
			MaxArrays, args.NSrc, args.NDst, args.Count)
	}
	return v.launch(k, args.Count*int64(d.Size()), unsafe.Pointer(args), s)
}

// CopyStrided queues a copy on s, between a tensor and flat memory. size is the bytes of an
// element.
func (v *Device) CopyStrided(args *StridedArgs, size int, s Stream) error {
	k, ok := stridedKernels[size]
	if !ok {
		return status.New(status.Argument, "an element has 1, 2, 4, 8 or 16 bytes, not %d", size)
	}
	if args.Count < 0 || args.From < 0 || args.NDim < 0 || args.NDim > MaxDims {
		return status.New(status.Argument, "elements [%d, %d) of a tensor of %d dimensions cannot be copied", args.From, args.From+args.Count, args.NDim)
	}
	// A thread copies four elements at once.
	return v.launch(k, args.Count*packBytes/4, unsafe.Pointer(args), s)
}

// kernel names a kernel: its module, and its name in the module.
type kernel struct{ module, name string }

// reduction is what a kernel of kernels/reduce.cu computes.
type reduction struct {
	dtype op.DType
	op    op.ReduceOp
}

// reduceKernels returns the kernel of every defined reduction.
var reduceKernels = sync.OnceValue(func() map[reduction]kernel {
	all := map[reduction]kernel{}
	for d := op.DType(1); d.Valid(); d++ {
		for r := op.ReduceOp(1); r.Valid(); r++ {
			if op.Defined(r, d) {
				all[reduction{d, r}] = kernel{"reduce_" + d.String(), "pmpi_reduce_" + d.String() + "_" + strings.ToLower(r.String())}
			}
		}
	}
	return all
})

// stridedKernels has the kernels that copy, by the bytes of an element.
var stridedKernels = func() map[int]kernel {
	all := map[int]kernel{}
	for _, size := range []int{1, 2, 4, 8, 16} {
		all[size] = kernel{"copy", "pmpi_copy_strided_" + strconv.Itoa(size)}
	}
	return all
}()

// texts has the PTX of each module, by the module's name. It is unpacked when a kernel is first used.
var texts = sync.OnceValues(func() (map[string]string, error) {
	all, err := io.ReadAll(bzip2.NewReader(bytes.NewReader(packed)))
	if err != nil {
		return nil, err
	}
	of := map[string]string{}
	for _, part := range strings.Split(string(all), "//# ")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		of[name] = text
	}
	return of, nil
})

// ptx returns the text of a module.
func ptx(module string) (string, error) {
	all, err := texts()
	if err != nil {
		return "", status.New(status.Cuda, "the kernels in the core cannot be unpacked: %v", err)
	}
	text, there := all[module]
	if !there {
		return "", status.New(status.Cuda, "the core has no kernels %s", module) // the tests would have found this
	}
	return text, nil
}

// grid returns the number of blocks of a launch that moves that many bytes through each array. It
// is at most what the device runs at once, because the kernels step by the whole grid.
func grid(bytes int64, processors int) uint32 {
	wanted := (bytes + packBytes*blockThreads - 1) / (packBytes * blockThreads)
	return uint32(max(1, min(wanted, int64(processors)*blocksPerProcessor)))
}

func (v *Device) launch(k kernel, bytes int64, args unsafe.Pointer, s Stream) error {
	if bytes == 0 {
		return nil
	}
	text, err := ptx(k.module)
	if err != nil {
		return err
	}
	f, err := v.Kernel(k.module, text, k.name)
	if err != nil {
		return err
	}
	return v.Launch(f, grid(bytes, v.processors), blockThreads, args, s)
}
