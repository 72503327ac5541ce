package coll

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// reductions calls f for every world size, and every dtype with every reduce op that is defined for
// it.
func reductions(t *testing.T, f func(t *testing.T, w *fakeWorld, rng *rand.Rand, like Args)) {
	for _, size := range worldSizes() {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newWorld(size)
			rng := rand.New(rand.NewSource(int64(size)))
			for d := op.DType(1); d <= lastDType; d++ {
				for r := op.ReduceOp(1); r <= lastReduceOp; r++ {
					if op.Defined(r, d) {
						f(t, w, rng, Args{Sig: Sig{DType: d, Reduce: r}, Scale: 0.5})
					}
				}
			}
		})
	}
}

// contributions returns one vector for each rank.
func contributions(rng *rand.Rand, d op.DType, size, n int) [][]complex128 {
	out := make([][]complex128, size)
	for i := range out {
		out[i] = whole(rng, d, n)
	}
	return out
}

// places says where the input is: in the result's memory, passed in two ways, or in a separate
// tensor.
var places = []string{"in place", "same memory", "out of place"}

// give puts this rank's contribution where place says, and returns the result's tensor.
func (s *rankCall) give(rng *rand.Rand, place string, v []complex128) *tensor {
	input := encode(s.args.DType, v)
	content := input
	if place == "out of place" {
		content = noise(rng, s.args.DType, len(v))
		s.args.Send = []Part{s.tensor(input).Part}
	}
	x := s.tensor(content)
	s.args.Recv = []Part{x.Part}
	if place == "same memory" {
		s.args.Send = []Part{x.Part}
	}
	return x
}

func TestAllReduce(t *testing.T) {
	reductions(t, func(t *testing.T, w *fakeWorld, rng *rand.Rand, a Args) {
		size := len(w.libs)
		for i, n := range lengths {
			a.Code, a.Count = op.AllReduce, int64(n)
			place := places[(i+int(a.DType)+int(a.Reduce))%3]
			w.everyAlgorithm(t, what(a, size, a.Reduce.String()+" "+place), signature(a, size, true), func() []*rankCall {
				parts := contributions(rng, a.DType, size, n)
				want := encode(a.DType, folded(a.Reduce, a.DType, parts, a.Scale))
				calls := w.calls(a)
				for r, s := range calls {
					s.give(rng, place, parts[r]).want = want
				}
				return calls
			})
		}
	})
}

func TestAllReduceCoalesced(t *testing.T) {
	reductions(t, func(t *testing.T, w *fakeWorld, rng *rand.Rand, a Args) {
		size := len(w.libs)
		for _, counts := range [][]int{{5}, {1, 0, 40, 3}, {0, 0}, {500, 700}} {
			a.Code, a.Count = op.AllReduceCoalesced, int64(sum(counts))
			w.everyAlgorithm(t, what(a, size, a.Reduce.String()), signature(a, size, true), func() []*rankCall {
				parts := contributions(rng, a.DType, size, sum(counts))
				want := cut(a.DType, encode(a.DType, folded(a.Reduce, a.DType, parts, a.Scale)), counts)
				calls := w.calls(a)
				for r, s := range calls {
					var outs []*tensor
					s.args.Recv, outs = s.lay(false, cut(a.DType, encode(a.DType, parts[r]), counts))
					wants(outs, want)
				}
				return calls
			})
		}
	})
}

func TestReduce(t *testing.T) {
	reductions(t, func(t *testing.T, w *fakeWorld, rng *rand.Rand, a Args) {
		size := len(w.libs)
		for i, n := range lengths {
			a.Code, a.Count, a.Root = op.Reduce, int64(n), rng.Intn(size)
			place := places[(i+int(a.DType))%3]
			w.everyAlgorithm(t, what(a, size, a.Reduce.String()+" "+place), signature(a, size, true), func() []*rankCall {
				parts := contributions(rng, a.DType, size, n)
				calls := w.calls(a)
				for r, s := range calls {
					if r != a.Root { // the tensor of every other rank stays as it is
						s.args.Send = []Part{s.tensor(encode(a.DType, parts[r])).Part}
						continue
					}
					s.give(rng, place, parts[r]).want = encode(a.DType, folded(a.Reduce, a.DType, parts, a.Scale))
				}
				return calls
			})
		}
	})
}

func TestReduceScatter(t *testing.T) {
	reductions(t, func(t *testing.T, w *fakeWorld, rng *rand.Rand, a Args) {
		size := len(w.libs)
		for _, n := range []int{0, 33, 1100} {
			for _, kind := range []string{"one", "many", "uneven"} {
				counts, isEven := even(size, n), true
				a.Code, a.Count = op.ReduceScatter, int64(n)
				if kind == "uneven" {
					counts, isEven, a.Count = uneven(size, n), size == 1, 0 // a single rank's length is 0
				}
				w.everyAlgorithm(t, what(a, size, a.Reduce.String()+" "+kind), signature(a, size, isEven), func() []*rankCall {
					parts := contributions(rng, a.DType, size, sum(counts))
					want := cut(a.DType, encode(a.DType, folded(a.Reduce, a.DType, parts, a.Scale)), counts)
					calls := w.calls(a)
					for r, s := range calls {
						s.args.Send, _ = s.lay(kind == "one", cut(a.DType, encode(a.DType, parts[r]), counts))
						x := s.tensor(noise(rng, a.DType, counts[r]))
						x.want = want[r]
						s.args.Recv = []Part{x.Part}
					}
					return calls
				})
			}
		}
	})
}

func TestPrefixes(t *testing.T) {
	reductions(t, func(t *testing.T, w *fakeWorld, rng *rand.Rand, a Args) {
		if a.Reduce == op.Avg { // gocore/group refuses this
			return
		}
		size := len(w.libs)
		for _, code := range collectives() {
			if !code.Trait().Prefix {
				continue
			}
			for i, n := range lengths {
				a.Code, a.Count = code, int64(n)
				place := places[(i+int(a.DType)+int(code))%3]
				w.everyAlgorithm(t, what(a, size, a.Reduce.String()+" "+place), signature(a, size, true), func() []*rankCall {
					parts := contributions(rng, a.DType, size, n)
					calls := w.calls(a)
					for r, s := range calls {
						x := s.give(rng, place, parts[r])
						before := parts[:r+1]
						if code.Trait().Gets == op.ExceptFirst {
							before = parts[:r]
						}
						if len(before) > 0 { // rank 0 of an exscan keeps its tensor
							x.want = encode(a.DType, folded(a.Reduce, a.DType, before, a.Scale))
						}
					}
					return calls
				})
			}
		}
	})
}

// A sum that is rounded at every step would be wrong by a third.
func Test16BitsAreRoundedOnce(t *testing.T) {
	const size, n = 5, 100
	w := newWorld(size)
	for _, d := range []op.DType{op.Float16, op.BFloat16} {
		big := map[op.DType]float64{op.Float16: 2048, op.BFloat16: 256}[d] // big + 1 is rounded to big
		for _, code := range []op.Code{op.AllReduce, op.Reduce, op.Scan, op.ReduceScatter} {
			a := Args{Sig: Sig{Code: code, DType: d, Reduce: op.Sum, Count: n}}
			w.everyAlgorithm(t, what(a, size, "rounding"), signature(a, size, true), func() []*rankCall {
				calls := w.calls(a)
				for r, s := range calls {
					v, total := 1.0, big+4
					if r == 0 {
						v = big
					}
					if code == op.Scan {
						total = big + float64(r)
					}
					fill := func(x float64, n int) []byte { return encode(d, filled(x, n)) }
					switch {
					case code == op.ReduceScatter:
						s.args.Send = []Part{s.tensor(fill(v, n*size)).Part}
						x := s.tensor(fill(0, n))
						x.want = fill(total, n)
						s.args.Recv = []Part{x.Part}
					case code == op.Reduce && r > 0:
						s.args.Send = []Part{s.tensor(fill(v, n)).Part}
					default:
						x := s.tensor(fill(v, n))
						x.want = fill(total, n)
						s.args.Recv = []Part{x.Part}
					}
				}
				return calls
			})
		}
	}
}

func filled(x float64, n int) []complex128 {
	v := make([]complex128, n)
	for i := range v {
		v[i] = complex(x, 0)
	}
	return v
}
