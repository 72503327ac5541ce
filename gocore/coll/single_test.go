package coll

import (
	"fmt"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/cuda"
	"github.com/paddlempi/paddlempi/gocore/cuda/cudafake"
	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// device returns device 0 of the driver that plays a GPU.
func device(t *testing.T) *cuda.Device {
	t.Helper()
	if cuda.Loaded() == nil {
		require.NoError(t, os.Setenv(cuda.Setting, cudafake.Build(t))) // for the process, because the driver is loaded once
	}
	driver, err := cuda.Open()
	require.NoError(t, err)
	d, err := driver.Device(0)
	require.NoError(t, err)
	return d
}

// In a group of one rank the result is where the caller wants it, also in device memory.
func TestAloneOnADevice(t *testing.T) {
	d := device(t)
	lib := mpifake.New(1)[0]
	for _, c := range collectives()[1:] { // a barrier has no tensors
		if c.Trait().Neighbours { // their tensors are in host memory
			continue
		}
		for _, r := range []op.ReduceOp{op.Sum, op.PremulSum} {
			if !c.Trait().Reduces && r != op.Sum {
				continue
			}
			for _, inPlace := range []bool{false, true} {
				if send := c.Trait().Send; !send.Accepts(1, 1, true) && !inPlace || !send.Accepts(0, 1, true) && inPlace {
					continue
				}
				what := fmt.Sprintf("%s of %s, in place: %v", c, r, inPlace)
				in, out := onto(t, d, 1, 2, 3), onto(t, d, 7, 8, 9)
				a := Args{MPI: On(mpifake.World(lib), nil), Scale: 2, Recv: []Part{out}, DeviceArgs: &DeviceArgs{Device: d, PieceBytes: 64},
					Sig: Sig{Code: c, DType: op.Float32, Reduce: r, Count: 3, Size: 1, Local: true, Agreed: Even, Any: Even | Device}}
				want := []float32{7, 8, 9}
				if !inPlace {
					a.Send = []Part{in}
					want = []float32{1, 2, 3}
				}
				if !a.WritesRecv() {
					want = []float32{7, 8, 9}
				} else if r == op.PremulSum {
					for i := range want {
						want[i] *= 2
					}
				}
				require.NoError(t, d.Mark(&a.DeviceArgs.Ready, d.In))
				alg, err := Choose(&a.Sig)
				require.NoError(t, err, what)
				require.Same(t, &singleOnDevice, alg, what)
				cover(alg)
				var p Program
				p.Reset(lib)
				require.NoError(t, p.Reserve(alg.scratch(&a)))
				require.NoError(t, alg.build(&a, &p), what)
				require.NoError(t, finish(&p, polled), what)
				for _, s := range []cuda.Stream{d.In, d.Out, d.Comm} {
					require.NoError(t, d.StreamSync(s))
				}
				assert.Equal(t, want, contents(t, d, out), what)
				assert.Equal(t, []float32{1, 2, 3}, contents(t, d, in), what)
				for _, e := range []cuda.Event{a.DeviceArgs.Ready, a.DeviceArgs.Tail} {
					if e != 0 {
						d.PutEvent(e)
					}
				}
				require.NoError(t, d.Free(in.Data))
				require.NoError(t, d.Free(out.Data))
			}
		}
	}
}

// onto makes a tensor in device memory, which the host cannot touch.
func onto(t *testing.T, d *cuda.Device, v ...float32) Part {
	t.Helper()
	at, err := d.Alloc(int64(4 * len(v)))
	require.NoError(t, err)
	block, host := onHostOf(t, len(v))
	defer mem.Free(block)
	copy(host, v)
	require.NoError(t, d.Copy(at, block, int64(4*len(v)), d.In))
	require.NoError(t, d.StreamSync(d.In))
	return Part{Data: at, Count: int64(len(v)), OnDevice: true}
}

// contents returns what a tensor in device memory holds.
func contents(t *testing.T, d *cuda.Device, part Part) []float32 {
	t.Helper()
	block, host := onHostOf(t, int(part.Count))
	defer mem.Free(block)
	require.NoError(t, d.Copy(block, part.Data, 4*part.Count, d.Out))
	require.NoError(t, d.StreamSync(d.Out))
	return append([]float32(nil), host...)
}

func onHostOf(t *testing.T, n int) (unsafe.Pointer, []float32) {
	t.Helper()
	block, err := mem.Alloc(int64(4 * n))
	require.NoError(t, err)
	return block, unsafe.Slice((*float32)(block), n)
}
