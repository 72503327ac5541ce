package reduce

import (
	"math"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// The reference: conversions by the definition of the formats, in float64. They share no code with
// the kernels.

// format describes a 16-bit float: the bits of its fraction, and the exponent of the smallest
// normal number.
type format struct {
	fraction int
	minExp   int
}

var (
	half  = format{10, -14}
	brain = format{7, -126}
)

func formatOf(d op.DType) format {
	if d == op.BFloat16 {
		return brain
	}
	return half
}

func (f format) decode(h uint16) float64 {
	sign := 1.0
	if h&0x8000 != 0 {
		sign = -1
	}
	frac := int(h) & (1<<f.fraction - 1)
	exp := int(h&0x7fff) >> f.fraction
	top := 1<<(15-f.fraction) - 1
	switch {
	case exp == top && frac != 0:
		return math.NaN()
	case exp == top:
		return math.Inf(int(sign))
	case exp == 0:
		return sign * math.Ldexp(float64(frac), f.minExp-f.fraction)
	}
	return sign * math.Ldexp(float64(frac+1<<f.fraction), f.minExp+exp-1-f.fraction)
}

// encode rounds to nearest even. A NaN becomes the positive quiet one.
func (f format) encode(v float64) uint16 {
	top := uint16(1<<(15-f.fraction)-1) << f.fraction
	if math.IsNaN(v) {
		return top | 1<<(f.fraction-1)
	}
	sign := uint16(0)
	if math.Signbit(v) {
		sign = 0x8000
		v = -v
	}
	if math.IsInf(v, 0) {
		return sign | top
	}
	if v == 0 {
		return sign
	}
	_, exp := math.Frexp(v) // v = [0.5, 1) * 2^exp
	exp = max(exp-1, f.minExp)
	units := math.RoundToEven(math.Ldexp(v, f.fraction-exp)) // exact except for the rounding
	h := (exp-f.minExp)<<f.fraction + int(units)             // a carry goes into the exponent
	return sign | uint16(min(h, int(top)))
}

func fold32(a, b float32, r op.ReduceOp) float32 {
	switch r {
	case op.Product:
		return a * b
	case op.Min:
		if a < b || a != a {
			return a
		}
		return b
	case op.Max:
		if a > b || a != a {
			return a
		}
		return b
	}
	return a + b
}

// reference16 returns Reduce16's result for the i-th element of each source.
func reference16(srcs [][]uint16, i int, d op.DType, r op.ReduceOp, scales []float64) uint16 {
	f := formatOf(d)
	var acc float32
	for k, s := range srcs {
		v := float32(f.decode(s[i]))
		if scales != nil {
			v = float32(v * float32(scales[k]))
		}
		if k == 0 {
			acc = v
		} else {
			acc = fold32(acc, v, r)
		}
	}
	if r == op.Avg {
		acc /= float32(len(srcs))
	}
	return f.encode(float64(acc))
}
