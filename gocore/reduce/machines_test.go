package reduce

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// bitsOfAllMachines is what TestBitsOfAllMachines found on an x86-64 processor.
const bitsOfAllMachines = 0xe2e735a311e68959

// Ranks on machines of different kinds get the same bits: every kernel and every conversion here
// gives those that were once written down on another kind of machine. In float32 and float64 a NaN
// counts as a NaN, because processors differ in which one they make.
func TestBitsOfAllMachines(t *testing.T) {
	for _, isa := range available() {
		assert.Equalf(t, uint64(bitsOfAllMachines), digest(t, int32(isa)), "%s", isaNames[isa])
	}
}

func digest(t *testing.T, isa int32) uint64 {
	const n = 1000 + 7
	sum := fnv.New64a()
	rng := rand.New(rand.NewPCG(19, 20))
	for d := op.DType(1); d.Valid(); d++ {
		for r := op.Sum; r.Valid(); r++ {
			if !op.Defined(r, d) {
				continue
			}
			for _, nsrc := range []int{1, 2, 5} {
				var srcs []unsafe.Pointer
				for range nsrc {
					src := outside[byte](t, n*d.Size(), 0)
					for i := range src {
						src[i] = byte(rng.Uint32()) // any bits
					}
					srcs = append(srcs, ptr(src))
				}
				out := outside[byte](t, n*d.Size(), 0)
				fold := NewFold(d, r, nsrc, 0.3)
				fold.isa = isa
				fold.Run(ptr(out), srcs, n)
				alikeNaNs(out, d)
				_, _ = sum.Write(out)
			}
		}
	}
	return sum.Sum64()
}

// alikeNaNs makes every NaN of float32 and float64 the same one.
func alikeNaNs(out []byte, d op.DType) {
	switch d {
	case op.Float32, op.Complex64:
		for i, v := range unsafe.Slice((*float32)(ptr(out)), len(out)/4) {
			if v != v {
				unsafe.Slice((*float32)(ptr(out)), len(out)/4)[i] = float32(math.NaN())
			}
		}
	case op.Float64, op.Complex128:
		for i, v := range unsafe.Slice((*float64)(ptr(out)), len(out)/8) {
			if v != v {
				unsafe.Slice((*float64)(ptr(out)), len(out)/8)[i] = math.NaN()
			}
		}
	}
}
