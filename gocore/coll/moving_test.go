package coll

import (
	"bytes"
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// moving calls f for every world size and dtype, and for every second length. The dtype matters
// only by its size when data is moved, and several dtypes have the same size.
func moving(t *testing.T, f func(t *testing.T, w *fakeWorld, rng *rand.Rand, d op.DType, n int)) {
	for _, size := range worldSizes() {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newWorld(size)
			rng := rand.New(rand.NewSource(int64(size)))
			for d := op.DType(1); d <= lastDType; d++ {
				for i, n := range lengths {
					if (i+int(d))%2 == 0 {
						f(t, w, rng, d, n)
					}
				}
			}
		})
	}
}

// uneven returns one length for each rank; some are 0.
func uneven(size, n int) []int {
	out := make([]int, size)
	for i := range out {
		out[i] = (n/2 + 3*i*i) * (i % 3) // 0 for the ranks 0, 3, 6, ...
	}
	return out
}

func even(size, n int) []int { return slices.Repeat([]int{n}, size) }

func sum(n []int) (s int) {
	for _, v := range n {
		s += v
	}
	return s
}

// pieces cuts data into consecutive parts of the given lengths.
func cut(d op.DType, data []byte, counts []int) [][]byte {
	var out [][]byte
	for _, n := range counts {
		out, data = append(out, data[:n*d.Size()]), data[n*d.Size():]
	}
	return out
}

// lay puts data into one tensor, or into one for each rank, and returns the parts.
func (s *rankCall) lay(together bool, data [][]byte) ([]Part, []*tensor) {
	if together {
		x := s.tensor(bytes.Join(data, nil))
		return []Part{x.Part}, []*tensor{x}
	}
	var parts []Part
	var tensors []*tensor
	for _, d := range data {
		x := s.tensor(d)
		parts, tensors = append(parts, x.Part), append(tensors, x)
	}
	return parts, tensors
}

// wants sets what the tensors of lay must hold at the end.
func wants(tensors []*tensor, data [][]byte) {
	if len(tensors) == 1 && len(data) != 1 {
		data = [][]byte{bytes.Join(data, nil)}
	}
	for i, x := range tensors {
		x.want = append([]byte{}, data[i]...)
	}
}

func what(a Args, size int, more string) string {
	return fmt.Sprintf("%s of %d %s on %d ranks %s", a.Code, a.Count, a.DType, size, more)
}

func TestBarrier(t *testing.T) {
	for _, size := range worldSizes() {
		w := newWorld(size)
		a := Args{Sig: Sig{Code: op.Barrier}}
		w.everyAlgorithm(t, "barrier", signature(a, size, true), func() []*rankCall { return w.calls(a) })
	}
}

func TestBroadcast(t *testing.T) {
	moving(t, func(t *testing.T, w *fakeWorld, rng *rand.Rand, d op.DType, n int) {
		size := len(w.libs)
		a := Args{Sig: Sig{Code: op.Broadcast, DType: d, Count: int64(n), Root: rng.Intn(size)}}
		w.everyAlgorithm(t, what(a, size, ""), signature(a, size, true), func() []*rankCall {
			calls := w.calls(a)
			for _, s := range calls {
				s.args.Recv, _ = s.lay(true, [][]byte{noise(rng, d, n)})
			}
			for _, s := range calls {
				s.tensors[0].want = calls[a.Root].tensors[0].want
			}
			return calls
		})
	})
}

func TestAllGather(t *testing.T) {
	moving(t, func(t *testing.T, w *fakeWorld, rng *rand.Rand, d op.DType, n int) {
		size := len(w.libs)
		for _, kind := range []string{"into one", "into one, in place", "into many", "uneven"} {
			counts, isEven := even(size, n), true
			a := Args{Sig: Sig{Code: op.AllGather, DType: d, Count: int64(n)}}
			if kind == "uneven" {
				counts, isEven, a.Count = uneven(size, n), size == 1, 0 // a single rank's length is 0
			}
			w.everyAlgorithm(t, what(a, size, kind), signature(a, size, isEven), func() []*rankCall {
				data := cut(d, noise(rng, d, sum(counts)), counts)
				calls := w.calls(a)
				for r, s := range calls {
					junk := cut(d, noise(rng, d, sum(counts)), counts)
					if kind == "into one, in place" {
						junk[r] = data[r]
					}
					var outs []*tensor
					s.args.Recv, outs = s.lay(kind == "into one" || kind == "into one, in place", junk)
					wants(outs, data)
					if kind == "into one, in place" {
						s.args.Send = []Part{s.part(outs[0], r*n, n)}
					} else {
						s.args.Send = []Part{s.tensor(data[r]).Part}
					}
				}
				return calls
			})
		}
	})
}

// Gather and scatter mirror each other: the root has all parts, every rank has its own part.
func TestGatherAndScatter(t *testing.T) {
	moving(t, func(t *testing.T, w *fakeWorld, rng *rand.Rand, d op.DType, n int) {
		size := len(w.libs)
		counts := even(size, n)
		for _, code := range []op.Code{op.Gather, op.Scatter} {
			for _, kind := range []string{"one", "one, in place", "many"} {
				a := Args{Sig: Sig{Code: code, DType: d, Count: int64(n), Root: rng.Intn(size)}}
				w.everyAlgorithm(t, what(a, size, kind), signature(a, size, true), func() []*rankCall {
					data := cut(d, noise(rng, d, n*size), counts)
					calls := w.calls(a)
					for r, s := range calls {
						gather := code == op.Gather
						sent, all := data[r], data
						if gather {
							all = cut(d, noise(rng, d, n*size), counts)
						} else {
							sent = noise(rng, d, n)
						}
						mine := &s.args.Send
						whole := &s.args.Recv
						if !gather {
							mine, whole = whole, mine
						}
						inPlace := kind == "one, in place" && r == a.Root
						if inPlace {
							all = slices.Clone(all)
							all[r] = data[r]
						}
						var outs []*tensor
						if r == a.Root {
							if *whole, outs = s.lay(kind != "many", all); gather {
								wants(outs, data)
							}
						}
						if inPlace {
							*mine = []Part{s.part(outs[0], r*n, n)}
							continue
						}
						x := s.tensor(sent)
						x.want = data[r]
						*mine = []Part{x.Part}
					}
					return calls
				})
			}
		}
	})
}

func TestAllToAll(t *testing.T) {
	moving(t, func(t *testing.T, w *fakeWorld, rng *rand.Rand, d op.DType, n int) {
		size := len(w.libs)
		for _, kind := range []string{"one to one", "many to many", "one to many", "many to one", "uneven"} {
			isEven := kind != "uneven" || size == 1
			a := Args{Sig: Sig{Code: op.AllToAll, DType: d, Count: int64(n)}}
			if !isEven {
				a.Count = -1
			}
			count := func(from, to int) int {
				if isEven {
					return n
				}
				return (n/2 + from + 2*to) % (n + 1) * ((from + to) % 3)
			}
			w.everyAlgorithm(t, what(a, size, kind), signature(a, size, isEven), func() []*rankCall {
				sent := make([][][]byte, size)
				for from := range sent {
					for to := range size {
						sent[from] = append(sent[from], noise(rng, d, count(from, to)))
					}
				}
				calls := w.calls(a)
				for r, s := range calls {
					var got, junk [][]byte
					for from := range size {
						got = append(got, sent[from][r])
						junk = append(junk, noise(rng, d, count(from, r)))
					}
					var outs []*tensor
					s.args.Send, _ = s.lay(kind == "one to one" || kind == "one to many", sent[r])
					s.args.Recv, outs = s.lay(kind == "one to one" || kind == "many to one", junk)
					wants(outs, got)
				}
				return calls
			})
		}
	})
}

func TestAllToAllOfLengthsThatDoNotMatch(t *testing.T) {
	lengthsThatDoNotMatch(t, &allToAllUnevenMPI, false)
	lengthsThatDoNotMatch(t, &allToAllUnevenBounce, false)
}

// lengthsThatDoNotMatch has one rank send another length than its peer expects. All ranks return an
// error, and nothing was moved. If the tensors are in the ranks' heaps, those that rank 0 sends are one
// range.
func lengthsThatDoNotMatch(t *testing.T, alg *Algorithm, inHeap bool) {
	t.Helper()
	for _, how := range forms {
		w := newWorld(3)
		w.inHeap = inHeap
		a := Args{Sig: Sig{Code: op.AllToAll, DType: op.Float32, Count: -1}}
		if inHeap {
			a.Agreed = Mapped
		}
		calls := w.calls(a)
		rng := rand.New(rand.NewSource(1))
		for r, s := range calls {
			parts := [][]byte{noise(rng, a.DType, 2), noise(rng, a.DType, 2), noise(rng, a.DType, 2)}
			s.args.Send, _ = s.lay(inHeap && r == 0, parts)
			if r == 2 {
				parts = [][]byte{noise(rng, a.DType, 2), noise(rng, a.DType, 3), noise(rng, a.DType, 2)}
			}
			s.args.Recv, _ = s.lay(false, parts)
		}
		for rank, err := range w.carryOut(alg, how, calls) {
			var se *status.Error
			require.ErrorAs(t, err, &se)
			require.Equal(t, status.Mismatch, se.Code)
			require.Equal(t, []int{1, 2}, se.Ranks, "rank %d", rank)
			if rank == 2 {
				require.Contains(t, se.Msg, "rank 1 of the group sends 2 elements to rank 2, which expects 3")
			}
			for _, x := range calls[rank].tensors {
				x.check(t, "all_to_all", rank)
			}
		}
	}
}

// There are more ranks than one round of an exchange serves.
func TestExchangeInRounds(t *testing.T) {
	const size = maxBatch/2 + 3
	w := newWorld(size)
	a := Args{Sig: Sig{Code: op.AllToAll, DType: op.Int16, Count: 2}}
	for _, how := range forms {
		calls := w.calls(a)
		for r, s := range calls {
			var sent, got []complex128
			for other := range size {
				sent = append(sent, complex(float64(r), 0), complex(float64(other), 0))
				got = append(got, complex(float64(other), 0), complex(float64(r), 0))
			}
			s.args.Send, _ = s.lay(true, [][]byte{encode(a.DType, sent)})
			out := s.tensor(make([]byte, len(got)*2))
			out.want = encode(a.DType, got)
			s.args.Recv = []Part{out.Part}
		}
		for rank, err := range w.carryOut(&allToAllUnevenMPI, how, calls) {
			require.NoError(t, err, "rank %d", rank)
			for _, x := range calls[rank].tensors {
				x.check(t, "all_to_all in rounds", rank)
			}
		}
	}
}
