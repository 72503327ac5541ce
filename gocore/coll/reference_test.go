package coll

import (
	"encoding/binary"
	"math"
	"math/rand"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// The reference arithmetic. Elements are complex128 with whole numbers, so small that no dtype
// rounds them in a reduction. Only an average is rounded, and only at its end.

func whole(rng *rand.Rand, d op.DType, n int) []complex128 {
	v := make([]complex128, n)
	for i := range v {
		switch d {
		case op.Bool:
			v[i] = complex(float64(rng.Intn(2)), 0)
		case op.UInt8, op.UInt16, op.UInt32, op.UInt64:
			v[i] = complex(float64(rng.Intn(4)), 0)
		case op.Complex64, op.Complex128:
			v[i] = complex(float64(rng.Intn(7)-3), float64(rng.Intn(5)-2))
		default:
			// 0 is left out, because a product would tell 0 and -0 apart.
			v[i] = complex(float64(1+rng.Intn(3))*float64(2*rng.Intn(2)-1), 0)
		}
	}
	return v
}

// encode writes elements in the format of the dtype. Integers wrap.
func encode(d op.DType, v []complex128) []byte {
	b := make([]byte, 0, len(v)*d.Size())
	le := binary.LittleEndian
	for _, z := range v {
		x := real(z)
		switch d {
		case op.Bool, op.Int8, op.UInt8:
			b = append(b, byte(int64(x)))
		case op.Int16, op.UInt16:
			b = le.AppendUint16(b, uint16(int64(x)))
		case op.Int32, op.UInt32:
			b = le.AppendUint32(b, uint32(int64(x)))
		case op.Int64, op.UInt64:
			b = le.AppendUint64(b, uint64(int64(x)))
		case op.Float16:
			b = le.AppendUint16(b, float16(x))
		case op.BFloat16:
			bits := math.Float32bits(float32(x))
			b = le.AppendUint16(b, uint16((bits+0x7fff+bits>>16&1)>>16))
		case op.Float32:
			b = le.AppendUint32(b, math.Float32bits(float32(x)))
		case op.Float64:
			b = le.AppendUint64(b, math.Float64bits(x))
		case op.Complex64:
			b = le.AppendUint32(b, math.Float32bits(float32(x)))
			b = le.AppendUint32(b, math.Float32bits(float32(imag(z))))
		case op.Complex128:
			b = le.AppendUint64(b, math.Float64bits(x))
			b = le.AppendUint64(b, math.Float64bits(imag(z)))
		}
	}
	return b
}

// float16 rounds to nearest even. x must be 0 or a normal number of the format.
func float16(x float64) uint16 {
	if x == 0 {
		return 0
	}
	sign := uint16(0)
	if x < 0 {
		sign, x = 0x8000, -x
	}
	_, exp := math.Frexp(x)
	units := math.RoundToEven(math.Ldexp(x, 11-exp)) // [1024, 2048]
	return sign | uint16((exp+13)<<10+int(units))
}

// folded reduces the ranks' elements. scale is the factor of PREMUL_SUM.
func folded(r op.ReduceOp, d op.DType, parts [][]complex128, scale float64) []complex128 {
	out := make([]complex128, len(parts[0]))
	for i := range out {
		var acc complex128
		for rank, part := range parts {
			v := part[i]
			if r == op.PremulSum {
				v = complex(real(v)*scale, imag(v)*scale)
			}
			if rank == 0 {
				acc = v
				continue
			}
			acc = pair(r, acc, v)
		}
		n := float64(len(parts))
		switch {
		case d == op.Bool && acc != 0:
			acc = 1
		case r == op.Avg && (d == op.Float16 || d == op.BFloat16): // divided in float32
			acc = complex(float64(float32(real(acc))/float32(n)), 0)
		case r == op.Avg && op.Defined(op.BAnd, d): // rounded toward zero
			acc = complex(math.Trunc(real(acc)/n), 0)
		case r == op.Avg:
			acc = complex(real(acc)/n, imag(acc)/n)
		}
		out[i] = acc
	}
	return out
}

func pair(r op.ReduceOp, a, b complex128) complex128 {
	integer := func(f func(a, b int64) int64) complex128 {
		return complex(float64(f(int64(real(a)), int64(real(b)))), 0)
	}
	switch r {
	case op.Product:
		return a * b
	case op.Min:
		return complex(min(real(a), real(b)), 0)
	case op.Max:
		return complex(max(real(a), real(b)), 0)
	case op.BAnd:
		return integer(func(a, b int64) int64 { return a & b })
	case op.BOr:
		return integer(func(a, b int64) int64 { return a | b })
	case op.BXor:
		return integer(func(a, b int64) int64 { return a ^ b })
	}
	return a + b
}

// The last dtype and the last reduce op.
const (
	lastDType    = op.DType(op.NumDTypes - 1)
	lastReduceOp = op.ReduceOp(op.NumReduceOps - 1)
)
