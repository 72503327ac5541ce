package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/cuda/cudafake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/reduce"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// arena is device memory, and host memory with its content before and after a kernel. The tests
// compare all of it, so they find writes outside of the arrays.
type arena struct {
	device *Device
	data   unsafe.Pointer
	bytes  []byte // on the host
}

// newArena needs no GPU: the fake driver runs the kernels on the host.
func newArena(t *testing.T, size int) *arena {
	t.Helper()
	if Loaded() == nil {
		t.Setenv(Setting, cudafake.Build(t))
	}
	driver, err := Open()
	require.NoError(t, err)
	device, err := driver.Device(0)
	require.NoError(t, err)
	data, err := device.Alloc(int64(size))
	require.NoError(t, err)
	host, err := device.HostAlloc(int64(size))
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, device.Free(data))
		assert.NoError(t, device.HostFree(host))
	})
	return &arena{device, data, unsafe.Slice((*byte)(host), size)}
}

// address returns the address of byte i on the device.
func (a *arena) address(i int) uint64 { return uint64(uintptr(a.data)) + uint64(i) }

// run copies the host's memory to the device, launches, and returns what the device's memory holds
// then.
func (a *arena) run(t *testing.T, launch func() error) []byte {
	t.Helper()
	return a.runPart(t, len(a.bytes), launch)
}

// runPart does the same for the first size bytes.
func (a *arena) runPart(t *testing.T, size int, launch func() error) []byte {
	t.Helper()
	d, host := a.device, unsafe.Pointer(unsafe.SliceData(a.bytes))
	before := append([]byte(nil), a.bytes[:size]...)
	require.NoError(t, d.Copy(a.data, host, int64(size), d.Comm))
	require.NoError(t, launch())
	require.NoError(t, d.Copy(host, a.data, int64(size), d.Comm))
	done, err := d.GetEvent()
	require.NoError(t, err)
	require.NoError(t, d.Record(done, d.Comm))
	require.NoError(t, d.Wait(done))
	d.PutEvent(done)
	after := append([]byte(nil), a.bytes[:size]...)
	copy(a.bytes, before)
	return after
}

// reals returns the type of the real numbers of which an element of d consists.
func reals(d op.DType) op.DType {
	switch d {
	case op.Complex64:
		return op.Float32
	case op.Complex128:
		return op.Float64
	}
	return d
}

// fill gives a quarter of the numbers any bits, an eighth a special value, and the others values of
// similar size, whose sums and products need rounding.
func fill(rng *rand.Rand, b []byte, d op.DType) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	specials := []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), 0x1p-1074, 0x1p-149, 0x1p-24, 1, -1}
	number := func() float64 {
		if rng.IntN(6) == 0 {
			return specials[rng.IntN(len(specials))]
		}
		return rng.NormFloat64() * 4
	}
	size := reals(d).Size()
	for i := 0; i+size <= len(b); i += size {
		if rng.IntN(4) == 0 {
			continue
		}
		switch reals(d) {
		case op.Bool:
			b[i] = byte(rng.IntN(3) * 127) // a bool that is neither 0 nor 1 in memory is true
		case op.Float16, op.BFloat16:
			// The upper bits of a float32 are a bfloat16, or a float16 of a wide range.
			binary.NativeEndian.PutUint16(b[i:], uint16(math.Float32bits(float32(number()))>>16))
		case op.Float32:
			binary.NativeEndian.PutUint32(b[i:], math.Float32bits(float32(number())))
		case op.Float64:
			binary.NativeEndian.PutUint64(b[i:], math.Float64bits(number()))
		}
	}
}

// onHost computes the reduction with the host's kernels, in memory outside the Go heap.
func onHost(t *testing.T, dst []byte, srcs [][]byte, d op.DType, r op.ReduceOp, scales []float64) {
	t.Helper()
	n := int64(len(dst) / d.Size())
	at := func(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }
	if r != op.PremulSum {
		scales = nil
	}
	if reduce.Is16(d) {
		var pointers []unsafe.Pointer
		for _, s := range srcs {
			pointers = append(pointers, at(s))
		}
		require.NoError(t, reduce.Reduce16(at(dst), pointers, n, d, r, scales))
		return
	}
	scaled := make([]byte, len(dst))
	for j, s := range srcs {
		copy(scaled, s)
		if scales != nil {
			require.NoError(t, reduce.Scale(at(scaled), n, d, scales[j]))
		}
		if j == 0 {
			copy(dst, scaled)
		} else {
			require.NoError(t, reduce.Combine(at(dst), at(scaled), n, d, r))
		}
	}
	if r == op.Avg {
		require.NoError(t, reduce.Divide(at(dst), n, d, len(srcs)))
	}
	if d == op.Bool && len(srcs) == 1 { // the host copies it without normalising
		for i := range dst {
			if dst[i] != 0 {
				dst[i] = 1
			}
		}
	}
}

// same compares bits, but any NaN of 32 bits or more equals any other, because the machine chooses
// which one an addition returns.
func same(got, want []byte, d op.DType) bool {
	size := reals(d).Size()
	for i := 0; i+size <= len(want); i += size {
		switch reals(d) {
		case op.Float32:
			g, w := binary.NativeEndian.Uint32(got[i:]), binary.NativeEndian.Uint32(want[i:])
			if x, y := math.Float32frombits(g), math.Float32frombits(w); g != w && (x == x || y == y) {
				return false
			}
		case op.Float64:
			g, w := binary.NativeEndian.Uint64(got[i:]), binary.NativeEndian.Uint64(want[i:])
			if x, y := math.Float64frombits(g), math.Float64frombits(w); g != w && (x == x || y == y) {
				return false
			}
		default:
			if string(got[i:i+size]) != string(want[i:i+size]) {
				return false
			}
		}
	}
	return true
}

// reduceCase is one launch. Its sources and destinations follow each other in memory. Each begins
// skip elements after a multiple of 16 bytes, and every second one shift elements later.
type reduceCase struct {
	d           op.DType
	r           op.ReduceOp
	srcs, dsts  int
	n           int
	skip, shift int
	alias       int // the source that is the first destination, or -1
}

func (c reduceCase) stride() int {
	return (c.n*c.d.Size()+15)/16*16 + 2*16 + 16*c.d.Size() // from one array to the next
}

// array returns the i-th array of the case, whose memory begins at base.
func (c reduceCase) array(memory []byte, base, i int) []byte {
	at := base + i*c.stride() + 16 + (c.skip+i%2*c.shift)*c.d.Size()
	return memory[at : at+c.n*c.d.Size()]
}

// dst returns the number of the array that is destination j.
func (c reduceCase) dst(j int) int {
	if j == 0 && c.alias >= 0 {
		return c.alias
	}
	return c.srcs + j
}

// prepare fills in the sources of a case, returns its arguments, and puts the expected result into
// whole, the expected content of the arena after the launch.
func (c reduceCase) prepare(t *testing.T, rng *rand.Rand, a *arena, base int, whole []byte) ReduceArgs {
	t.Helper()
	address := func(i int) uint64 {
		array := c.array(a.bytes, base, i)
		return a.address(cap(a.bytes) - cap(array))
	}
	args := ReduceArgs{Count: int64(c.n), NSrc: int64(c.srcs), NDst: int64(c.dsts)}
	var srcs [][]byte
	for j := range c.srcs {
		src := c.array(a.bytes, base, j)
		fill(rng, src, c.d)
		copy(c.array(whole, base, j), src)
		srcs = append(srcs, src)
		args.Src[j], args.Scale[j] = address(j), rng.NormFloat64()
	}
	want := make([]byte, c.n*c.d.Size())
	if c.n > 0 {
		onHost(t, want, srcs, c.d, c.r, args.Scale[:c.srcs])
	}
	for j := range c.dsts {
		args.Dst[j] = address(c.dst(j))
		copy(c.array(whole, base, c.dst(j)), want)
	}
	return args
}

// check runs cases of one dtype, which follow each other in the arena.
func check(t *testing.T, rng *rand.Rand, a *arena, cases ...reduceCase) {
	t.Helper()
	bases, used := []int{}, 0
	for _, c := range cases {
		bases = append(bases, used)
		used += (c.srcs + c.dsts) * c.stride()
	}
	require.LessOrEqual(t, used, len(a.bytes))
	whole := append([]byte(nil), a.bytes[:used]...)
	var launches []ReduceArgs
	for i, c := range cases {
		launches = append(launches, c.prepare(t, rng, a, bases[i], whole))
	}
	after := a.runPart(t, used, func() error {
		for i := range launches {
			if err := a.device.Reduce(&launches[i], cases[i].d, cases[i].r, a.device.Comm); err != nil {
				return err
			}
		}
		return nil
	})
	for i, c := range cases {
		for j := range c.dsts {
			got, want := c.array(after, bases[i], c.dst(j)), c.array(whole, bases[i], c.dst(j))
			if !same(got, want, c.d) {
				t.Fatalf("%+v, destination %d:\ngot  %x\nwant %x", c, j, got, want)
			}
			copy(got, want) // if it is another NaN
		}
	}
	require.True(t, string(whole) == string(after), "%+v: something was written elsewhere", cases)
}

// Every reduction gives the same bits as the host's kernels: for any number of sources and
// destinations, in place, for counts that do not fill a pack, and for all alignments of the arrays.
func TestReduceIsTheHosts(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	a := newArena(t, 4<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	launches := 0
	for d := op.DType(1); d.Valid(); d++ {
		for r := op.ReduceOp(1); r.Valid(); r++ {
			if !op.Defined(r, d) {
				continue
			}
			var cases []reduceCase
			for _, srcs := range []int{1, 2, 3, 4, 5, 8, 11} {
				for _, n := range []int{1, 7 + rng.IntN(20), 130 + rng.IntN(100)} {
					c := reduceCase{d, r, srcs, 1 + rng.IntN(3), n, rng.IntN(17), 0, rng.IntN(srcs+1) - 1}
					shifted := c
					shifted.shift = 1 + rng.IntN(3)
					cases = append(cases, c, shifted)
				}
			}
			check(t, rng, a, cases...)
			launches += len(cases)
		}
	}
	assert.Equal(t, 103*7*3*2, launches)
}

func TestReduceOfAsManyArraysAsThereMayBe(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	a := newArena(t, 1<<17)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, d := range []op.DType{op.Int8, op.BFloat16, op.Float32, op.Complex128} {
		check(t, rng, a, reduceCase{d, op.Sum, MaxArrays, MaxArrays, 9, 1, 0, 63})
	}
	check(t, rng, a, reduceCase{op.Float32, op.PremulSum, MaxArrays, 1, 0, 0, 0, -1})
}

// The results are every float16 and bfloat16, and values exactly at the middle between two numbers
// of the format, just below it and just above it, and beyond its range.
func TestReduceRounds16BitsAsTheHost(t *testing.T) {
	a := newArena(t, 2<<17)
	for i := range 1 << 16 {
		binary.NativeEndian.PutUint16(a.bytes[2*i:], uint16(i))
	}
	src, want := a.bytes[:1<<17], make([]byte, 1<<17)
	for _, d := range []op.DType{op.Float16, op.BFloat16} {
		for _, factor := range []float64{1, 0.5, 1.5, 0.75, 1 + 0x1p-11, 1 - 0x1p-11, 1 + 0x1p-8, 1 + 0x1p-9, 1 - 0x1p-24, 0x1p-20, 0x1p20, -3, 0} {
			args := ReduceArgs{Count: 1 << 16, NSrc: 1, NDst: 1}
			args.Src[0], args.Dst[0], args.Scale[0] = a.address(0), a.address(1<<17), factor
			onHost(t, want, [][]byte{src}, d, op.PremulSum, []float64{factor})
			got := a.run(t, func() error { return a.device.Reduce(&args, d, op.PremulSum, a.device.Comm) })[1<<17:]
			require.True(t, string(want) == string(got), "%v times %v", d, factor)
		}
	}
}

// A sum of 16-bit floats is rounded once. If every step rounded, 256 + 1 would stay 256 in
// bfloat16.
func TestReduceRoundsOnce(t *testing.T) {
	a := newArena(t, 1<<12)
	args := ReduceArgs{Count: 1, NSrc: MaxArrays, NDst: 1}
	args.Dst[0] = a.address(2048)
	for j := range MaxArrays {
		args.Src[j] = a.address(16 * j)
		binary.NativeEndian.PutUint16(a.bytes[16*j:], 0x3f80) // 1
	}
	binary.NativeEndian.PutUint16(a.bytes, 0x4380) // 256
	got := a.run(t, func() error { return a.device.Reduce(&args, op.BFloat16, op.Sum, a.device.Comm) })
	assert.Equal(t, uint16(0x43a0), binary.NativeEndian.Uint16(got[2048:]), "320: 256 + 63, to nearest")
}

// A kernel covers all elements with any grid.
func TestReduceOnAnyGrid(t *testing.T) {
	a := newArena(t, 1<<15)
	const n = 1001
	for i := range n {
		binary.NativeEndian.PutUint32(a.bytes[4*i:], uint32(i))
	}
	args := ReduceArgs{Count: n, NSrc: 2, NDst: 1}
	args.Src[0], args.Src[1], args.Dst[0] = a.address(0), a.address(4), a.address(8192)
	k := reduceKernels()[reduction{op.Int32, op.Sum}]
	text, err := ptx(k.module)
	require.NoError(t, err)
	f, err := a.device.Kernel(k.module, text, k.name)
	require.NoError(t, err)
	for _, g := range [][2]uint32{{1, 1}, {1, blockThreads}, {3, 7}, {40, blockThreads}} {
		for _, args.Dst[0] = range []uint64{a.address(8192), a.address(8192 + 4)} {
			at := args.Dst[0] - a.address(0)
			after := a.run(t, func() error {
				return a.device.Launch(f, g[0], g[1], unsafe.Pointer(&args), a.device.Comm)
			})
			for i := range n - 1 {
				require.Equal(t, uint32(2*i+1), binary.NativeEndian.Uint32(after[at+uint64(4*i):]), "%v, element %d", g, i)
			}
		}
	}
}

// The launches for large arrays fill the device once.
func TestGrid(t *testing.T) {
	assert.Equal(t, uint32(1), grid(1, 132))
	assert.Equal(t, uint32(1), grid(4096, 132))
	assert.Equal(t, uint32(2), grid(4097, 132))
	assert.Equal(t, uint32(528), grid(1<<40, 132))
}

func TestReduceRefuses(t *testing.T) {
	d := newArena(t, 1<<12).device
	one := ReduceArgs{NSrc: 1, NDst: 1}
	assert.NoError(t, d.Reduce(&one, op.Float32, op.Sum, d.Comm), "nothing to do")
	assert.Equal(t, status.Type, status.CodeOf(d.Reduce(&one, op.Float8E5M2, op.Sum, d.Comm)))
	assert.Equal(t, status.Type, status.CodeOf(d.Reduce(&one, op.Complex64, op.Max, d.Comm)))
	for _, args := range []ReduceArgs{{NSrc: 0, NDst: 1}, {NSrc: 1, NDst: 0}, {NSrc: MaxArrays + 1, NDst: 1}, {NSrc: 1, NDst: MaxArrays + 1}, {Count: -1, NSrc: 1, NDst: 1}} {
		assert.Equal(t, status.Argument, status.CodeOf(d.Reduce(&args, op.Float32, op.Sum, d.Comm)), "%d %d %d", args.Count, args.NSrc, args.NDst)
	}
}

// The kernels read these offsets: PTX has offsets in bytes, not fields.
func TestLayouts(t *testing.T) {
	var r ReduceArgs
	assert.Equal(t, []uintptr{0, 8, 16, 24, 536, 1048, 1560}, []uintptr{unsafe.Offsetof(r.Count), unsafe.Offsetof(r.NSrc),
		unsafe.Offsetof(r.NDst), unsafe.Offsetof(r.Src), unsafe.Offsetof(r.Dst), unsafe.Offsetof(r.Scale), unsafe.Sizeof(r)})
	var s StridedArgs
	assert.Equal(t, []uintptr{0, 8, 16, 24, 32, 40, 48, 176, 304}, []uintptr{unsafe.Offsetof(s.From), unsafe.Offsetof(s.Count),
		unsafe.Offsetof(s.NDim), unsafe.Offsetof(s.Flat), unsafe.Offsetof(s.Strided), unsafe.Offsetof(s.ToStrided),
		unsafe.Offsetof(s.Shape), unsafe.Offsetof(s.Strides), unsafe.Sizeof(s)})
	for size, all := range map[uintptr][]kernel{unsafe.Sizeof(r): values(reduceKernels()), unsafe.Sizeof(s): values(stridedKernels)} {
		for _, k := range all {
			text, err := ptx(k.module)
			require.NoError(t, err)
			assert.Contains(t, text, fmt.Sprintf(".entry %s(\n\t.param .align 8 .b8 %s_param_0[%d]\n)\n.maxntid %d, 1, 1\n", k.name, k.name, size, blockThreads))
		}
	}
	assert.Equal(t, kernel{"reduce_bfloat16", "pmpi_reduce_bfloat16_premul_sum"}, reduceKernels()[reduction{op.BFloat16, op.PremulSum}])
	_, err := ptx("reduce_float8_e5m2")
	assert.Error(t, err)
}

func values[K comparable, V any](m map[K]V) (all []V) {
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

func TestNewStridedArgs(t *testing.T) {
	for _, c := range []struct {
		shape, strides []int64
		wantShape      []int64
		wantStrides    []int64
	}{
		{nil, nil, nil, nil},
		{[]int64{3, 4}, nil, nil, nil},
		{[]int64{3, 4}, []int64{4, 1}, []int64{12}, []int64{1}},
		{[]int64{3, 4}, []int64{1, 3}, []int64{3, 4}, []int64{1, 3}},
		{[]int64{2, 3, 4}, []int64{24, 8, 2}, []int64{24}, []int64{2}},
		{[]int64{2, 3, 4}, []int64{100, 4, 1}, []int64{2, 12}, []int64{100, 1}},
		{[]int64{5, 1, 4}, []int64{8, 77, 1}, []int64{5, 4}, []int64{8, 1}},
		{[]int64{1, 1}, []int64{9, 9}, nil, nil},
		{[]int64{4, 3}, []int64{0, -1}, []int64{4, 3}, []int64{0, -1}},
	} {
		a, err := NewStridedArgs(c.shape, c.strides)
		require.NoError(t, err)
		n := len(c.wantShape)
		assert.Equal(t, int64(n), a.NDim, "%v", c)
		if n == 0 {
			assert.Equal(t, int64(1), a.Strides[0])
			continue
		}
		assert.Equal(t, c.wantShape, a.Shape[:n], "%v", c)
		assert.Equal(t, c.wantStrides, a.Strides[:n], "%v", c)
	}
	var shape, strides []int64
	for i := range MaxDims + 1 {
		shape, strides = append(shape, 2), append(strides, int64(3*i))
	}
	_, err := NewStridedArgs(shape[1:], strides[1:])
	assert.NoError(t, err)
	_, err = NewStridedArgs(shape, strides)
	assert.Equal(t, status.Unsupported, status.CodeOf(err))
	_, err = NewStridedArgs(shape, strides[1:])
	assert.Equal(t, status.Argument, status.CodeOf(err))
}

// offsets returns where the elements [from, from+count) of a tensor are, by counting.
func offsets(shape, strides []int64, from, count int64) (all []int64) {
	for e := from; e < from+count; e++ {
		rest, at := e, int64(0)
		for d := len(shape) - 1; d >= 0; d-- {
			at += rest % shape[d] * strides[d]
			rest /= shape[d]
		}
		all = append(all, at)
	}
	return all
}

func TestCopyStrided(t *testing.T) {
	a := newArena(t, 1<<16)
	rng := rand.New(rand.NewPCG(5, 6))
	const flat, tensor = 512, 1 << 15 // in bytes
	for _, size := range []int{1, 2, 4, 8, 16} {
		for _, c := range []struct {
			shape, strides []int64
			from, count    int64
		}{
			{[]int64{300}, []int64{3}, 0, 300},
			{[]int64{30, 10}, []int64{1, 30}, 0, 300},
			{[]int64{30, 10}, []int64{1, 30}, 7, 280},
			{[]int64{30, 10}, []int64{10, 1}, 13, 200},
			{[]int64{4, 5, 6}, []int64{-7, 40, -1}, 1, 117},
			{[]int64{2, 2, 2, 2, 2, 2, 2}, []int64{1, 128, 2, 64, 4, 32, 8}, 5, 100},
			{[]int64{1 << 34, 11}, []int64{0, 3}, 3<<32 - 20, 300}, // beyond 32 bits
			{[]int64{1 << 33, 3}, []int64{0, 5}, 1<<32 - 300, 300}, // just within 32 bits
			{[]int64{3, 1 << 33}, []int64{5, 0}, 1 << 20, 50},
		} {
			args, err := NewStridedArgs(c.shape, c.strides)
			require.NoError(t, err)
			args.From, args.Count, args.Flat, args.Strided = c.from, c.count, a.address(flat), a.address(tensor)
			at := offsets(c.shape, c.strides, c.from, c.count)
			for args.ToStrided = range int64(2) {
				if args.ToStrided == 1 && c.shape[0]+c.shape[len(c.shape)-1] > 1<<32 {
					continue // elements overlap
				}
				fill(rng, a.bytes, op.UInt8)
				want := append([]byte(nil), a.bytes...)
				for i, o := range at {
					x, y := flat+i*size, tensor+int(o)*size
					if args.ToStrided == 1 {
						x, y = y, x
					}
					copy(want[x:x+size], a.bytes[y:y+size])
				}
				got := a.run(t, func() error { return a.device.CopyStrided(&args, size, a.device.Comm) })
				require.True(t, string(want) == string(got), "%d bytes, %+v, to strided %d", size, c, args.ToStrided)
			}
		}
	}
}

func TestCopyStridedRefuses(t *testing.T) {
	d := newArena(t, 1<<12).device
	assert.NoError(t, d.CopyStrided(&StridedArgs{}, 4, d.Comm), "nothing to do")
	assert.Equal(t, status.Argument, status.CodeOf(d.CopyStrided(&StridedArgs{}, 3, d.Comm)))
	for _, args := range []StridedArgs{{Count: -1}, {From: -1}, {NDim: MaxDims + 1}, {NDim: -1}} {
		assert.Equal(t, status.Argument, status.CodeOf(d.CopyStrided(&args, 4, d.Comm)))
	}
}

// The PTX text has no paths, so it does not depend on the machine that made it.
func TestPTXIsTheSameEverywhere(t *testing.T) {
	for _, k := range append(values(reduceKernels()), values(stridedKernels)...) {
		text, err := ptx(k.module)
		require.NoError(t, err)
		for _, line := range strings.Split(text, "\n")[1:] {
			require.NotContains(t, line, "/", k.module)
		}
	}
}
