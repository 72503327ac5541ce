package coll

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// Send and receive buffers share memory in every way that a caller may choose. The result must be
// the same as with separate tensors.
func TestSentAndFilledMemoryMayOverlap(t *testing.T) {
	for _, size := range worldSizes() {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newWorld(size)
			rng := rand.New(rand.NewSource(int64(size)))
			for _, code := range []op.Code{op.AllGather, op.Gather, op.Scatter, op.AllToAll, op.ReduceScatter} {
				for _, d := range []op.DType{op.UInt8, op.BFloat16, op.Complex128} {
					for _, n := range []int{1, 5, 900} {
						overlapping(t, w, rng, Args{Sig: Sig{Code: code, DType: d, Count: int64(n)}}, n)
					}
				}
			}
		})
	}
}

func overlapping(t *testing.T, w *fakeWorld, rng *rand.Rand, a Args, n int) {
	size := len(w.libs)
	a.Root = rng.Intn(size)
	sent, got := n, n
	switch a.Code {
	case op.AllGather, op.Gather:
		got *= size
	case op.Scatter, op.ReduceScatter:
		sent *= size
	case op.AllToAll:
		sent, got = n*size, n*size
	}
	if a.Code == op.ReduceScatter {
		a.Reduce = op.Sum
	}
	room := sent + got
	for trial := range 4 {
		w.everyAlgorithm(t, what(a, size, "overlapping"), signature(a, size, true), func() []*rankCall {
			calls := w.calls(a)
			x := make([][]complex128, size)
			from, to := make([]int, size), make([]int, size)
			for r := range calls {
				x[r] = whole(rng, a.DType, room)
				switch trial { // where the parts are in x[r]
				case 0: // one at the beginning of the other
				case 1: // the small one in its place in the other
					if sent < got {
						from[r] = r * n
					} else if got < sent {
						to[r] = r * n
					}
				default:
					from[r], to[r] = rng.Intn(room-sent+1), rng.Intn(room-got+1)
				}
			}
			part := func(r, i int) []complex128 { return x[r][from[r]+i*n:][:n] }
			for r, s := range calls {
				var result []complex128
				for other := range size {
					switch a.Code {
					case op.AllGather, op.Gather:
						result = append(result, part(other, 0)...)
					case op.AllToAll:
						result = append(result, part(other, r)...)
					}
				}
				switch a.Code {
				case op.Scatter:
					result = part(a.Root, r)
				case op.ReduceScatter:
					var parts [][]complex128
					for other := range size {
						parts = append(parts, part(other, r))
					}
					result = folded(a.Reduce, a.DType, parts, 1)
				}
				all := s.tensor(encode(a.DType, x[r]))
				sends := a.Code != op.Scatter || r == a.Root
				fills := a.Code != op.Gather || r == a.Root
				if sends {
					s.args.Send = []Part{s.part(all, from[r], sent)}
				}
				if fills {
					s.args.Recv = []Part{s.part(all, to[r], got)}
					want := append(append(append([]complex128{}, x[r][:to[r]]...), result...), x[r][to[r]+got:]...)
					all.want = encode(a.DType, want)
				}
			}
			return calls
		})
	}
}
