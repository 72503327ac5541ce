package route

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// zipf draws n ids of a million whose frequencies fall with the exponent 1.05, as in docs/benchmarks.md,
// by inversion of the continuous distribution. A factor spreads them over all int64.
func zipf(n int) []int64 {
	const kinds, exponent = 1e6, 1.05
	random := rand.New(rand.NewPCG(1, 1))
	ids := make([]int64, n)
	for i := range ids {
		u := random.Float64()
		rank := math.Pow(1-u*(1-math.Pow(kinds, 1-exponent)), 1/(1-exponent))
		ids[i] = int64(rank) * 0x1e3779b97f4a7c15
	}
	return ids
}

var sizes = []int{4096, 65536, 1 << 20}

func BenchmarkNew(b *testing.B) {
	for _, n := range sizes {
		ids := idsOf(b, zipf(n))
		for _, servers := range []int{1, 2, 64} {
			b.Run(fmt.Sprintf("%d ids, %d servers", n, servers), func(b *testing.B) {
				for b.Loop() {
					p, err := New(ids, servers, ByHash, 0)
					if err != nil {
						b.Fatal(err)
					}
					p.Free()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/id")
			})
		}
	}
}

// What a map of Go takes for the same, without the order by servers.
func BenchmarkMap(b *testing.B) {
	for _, n := range sizes {
		ids := zipf(n)
		inverse := make([]int32, n)
		b.Run(fmt.Sprintf("%d ids", n), func(b *testing.B) {
			for b.Loop() {
				place := map[int64]int32{}
				for i, id := range ids {
					u, seen := place[id]
					if !seen {
						u = int32(len(place))
						place[id] = u
					}
					inverse[i] = u
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/id")
		})
	}
}

// The speed of memory: a copy of as many bytes as the batch has.
func BenchmarkCopy(b *testing.B) {
	for _, n := range sizes {
		for _, dim := range []int{16, 64, 128} {
			from, _ := tensor(b, op.Float32, make([]float32, n*dim))
			to, _ := tensor(b, op.Float32, make([]float32, n*dim))
			b.Run(fmt.Sprintf("%d ids, dim %d", n, dim), func(b *testing.B) {
				b.SetBytes(from.Bytes())
				for b.Loop() {
					mem.Copy(to.Data, from.Data, from.Bytes())
				}
			})
		}
	}
}

func BenchmarkGather(b *testing.B) {
	for _, n := range sizes {
		p := newPlan(b, idsOf(b, zipf(n)), 4, ByHash, 0)
		for _, dim := range []int{1, 16, 64, 128} {
			rows, _ := tensor(b, op.Float32, make([]float32, len(p.Unique)*dim))
			out, _ := tensor(b, op.Float32, make([]float32, n*dim))
			for _, isa := range instructionSets() {
				b.Run(fmt.Sprintf("%d ids, dim %d, %s", n, dim, isa), func(b *testing.B) {
					p.isa = isas[isa]
					b.SetBytes(out.Bytes())
					for b.Loop() {
						p.Gather(out, rows.Data, int64(4*dim))
					}
				})
			}
		}
	}
}

func BenchmarkSum(b *testing.B) {
	for _, n := range sizes {
		p := newPlan(b, idsOf(b, zipf(n)), 4, ByHash, 0)
		for _, dim := range []int{1, 16, 64, 128} {
			_, sums := tensor(b, op.Float32, make([]float32, len(p.Unique)*dim))
			for _, d := range []op.DType{op.Float32, op.Float16, op.BFloat16} {
				_, bytes := tensor(b, op.UInt8, make([]byte, n*dim*d.Size()))
				gradients := &op.Buf{Data: unsafe.Pointer(unsafe.SliceData(bytes)), Count: int64(n * dim), DType: d}
				for _, isa := range instructionSets() {
					b.Run(fmt.Sprintf("%d ids, dim %d, %v, %s", n, dim, d, isa), func(b *testing.B) {
						p.isa = isas[isa]
						b.SetBytes(gradients.Bytes())
						for b.Loop() {
							p.Sum(sums, gradients, int64(dim))
						}
					})
				}
			}
		}
	}
}
