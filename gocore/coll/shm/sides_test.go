package shm

import (
	"fmt"
	"math/rand"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/op"
)

// pieced is a side of a rank in a test: elements that lie in parts of random lengths, in any order of
// addresses, with guards between them.
type pieced struct {
	memory []int32
	at     []int // where element i of the side is in memory
	parts  [][2]int
}

const guardValue = -1234567

func newPieced(t testing.TB, rng *rand.Rand, n int) *pieced {
	p := &pieced{memory: outside[int32](t, 3*n+40)}
	for i := range p.memory {
		p.memory[i] = guardValue
	}
	from, to := 1+rng.Intn(16), len(p.memory)-1
	for left := n; left > 0; {
		m := left
		if rng.Intn(3) > 0 {
			m = 1 + rng.Intn(left)
		}
		if rng.Intn(2) == 0 && to-m-1 > from+left {
			to -= m + 1
			p.parts = append(p.parts, [2]int{to, m})
		} else {
			p.parts = append(p.parts, [2]int{from, m})
			from += m + rng.Intn(2)
		}
		left -= m
	}
	for _, part := range p.parts {
		for i := range part[1] {
			p.at = append(p.at, part[0]+i)
		}
	}
	return p
}

func (p *pieced) add(o *Op, s Side, rank int) {
	for _, part := range p.parts {
		o.Add(s, rank, unsafe.Pointer(&p.memory[part[0]]), int64(part[1]))
	}
}

// A collective with random shares whose sides lie in random parts, and what every rank must get.
type randomCollective struct {
	args    Collective
	in, out []*pieced // by rank; nil if the rank has no such side
	want    [][]int32
}

func newRandomCollective(t testing.TB, rng *rand.Rand, code op.Code, size int) *randomCollective {
	c := &randomCollective{args: Collective{Code: code, DType: op.Int32, Size: size, Root: rng.Intn(size)}, in: make([]*pieced, size), out: make([]*pieced, size), want: make([][]int32, size)}
	trait := code.Trait()
	if trait.Reduces {
		c.args.Reduce = op.Sum
	}
	most := []int{3, 40, 700, 9_000, 60_000}[rng.Intn(5)]
	alike := trait.Shares == op.NoShares || rng.Intn(3) == 0
	share := make([]int64, size*size) // what rank from gives rank to
	length := rng.Intn(most + 1)
	for i := range share {
		if share[i] = int64(length); !alike {
			share[i] = int64(max(0, rng.Intn(most+1)-most/4))
		}
	}
	if c.args.Count = int64(length); !alike {
		if c.args.Count = 0; trait.Shares == op.Pairwise {
			c.args.Shares = share
		} else {
			c.args.Shares = share[:size]
		}
	}
	of := func(from, to int) int {
		switch trait.Shares {
		case op.NoShares:
			return length
		case op.Pairwise:
			return int(share[from*size+to])
		}
		if trait.Send.PerRank() {
			return int(share[to])
		}
		return int(share[from])
	}
	side := func(perRank bool, length func(other int) int) (n int) {
		for other := range size {
			if n += length(other); !perRank {
				break
			}
		}
		return n
	}
	value := func(rank, i int) int32 { return int32(rank*1_000_003 + i*7) }
	begin := func(from, to int) (i int) { // of a share in the input
		if trait.Send.PerRank() {
			for k := range to {
				i += of(from, k)
			}
		}
		return i
	}
	for r := range size {
		if trait.Gives.Includes(c.args.Root, r) {
			c.in[r] = newPieced(t, rng, side(trait.Send.PerRank(), func(to int) int { return of(r, to) }))
			for i, at := range c.in[r].at {
				c.in[r].memory[at] = value(r, i)
			}
		}
		if !trait.WritesRecv(c.args.Root, r) {
			continue
		}
		c.out[r] = newPieced(t, rng, side(trait.Recv.PerRank(), func(from int) int { return of(from, r) }))
		for from := range size {
			if !trait.Gives.Includes(c.args.Root, from) {
				continue
			}
			var got []int32
			for i := range of(from, r) {
				got = append(got, value(from, begin(from, r)+i))
			}
			switch {
			case !trait.Reduces:
				c.want[r] = append(c.want[r], got...)
			case from == 0:
				c.want[r] = got
			default:
				for i := range got {
					c.want[r][i] += got[i]
				}
			}
		}
	}
	return c
}

func (c *randomCollective) ops(t testing.TB, seq uint64, words []uint64) []*Op {
	var ops []*Op
	for me := range c.args.Size {
		call := c.args
		call.Seq, call.Rank, call.Words, call.Chunks, call.YieldEvery = seq, me, unsafe.Pointer(&words[0]), len(words), 4
		for r := range c.args.Size {
			for _, p := range []*pieced{c.in[r], c.out[r]} {
				if p != nil {
					call.Parts += len(p.parts)
				}
			}
		}
		o, err := New(&call)
		require.NoError(t, err)
		for r := range c.args.Size {
			if c.in[r] != nil {
				c.in[r].add(o, In, r)
			}
			if c.out[r] != nil {
				c.out[r].add(o, Out, r)
			}
		}
		ops = append(ops, o)
	}
	return ops
}

func (c *randomCollective) check() error {
	for r, p := range c.out {
		if p == nil {
			continue
		}
		for i, at := range p.at {
			if p.memory[at] != c.want[r][i] {
				return fmt.Errorf("element %d of %d of rank %d is %d, not %d", i, len(p.at), r, p.memory[at], c.want[r][i])
			}
			p.memory[at] = guardValue
		}
		for i, v := range p.memory {
			if v != guardValue {
				return fmt.Errorf("rank %d: written beside a part, at %d", r, i)
			}
		}
	}
	return nil
}

// Every operation, with shares and parts of random lengths: each element of the result is there,
// whichever rank did which chunk, and nothing else was written.
func TestSharesAndPartsOfAnyLength(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	for code := range op.Code(op.NumCodes) {
		if !Serves(code) {
			continue
		}
		t.Run(code.String(), func(t *testing.T) {
			words := outside[uint64](t, teamChunks)
			inSeveral := 0
			for turn := range 150 {
				rng := rand.New(rand.NewSource(int64(turn)))
				size := 1 + turn%5
				c := newRandomCollective(t, rng, code, size)
				ops := c.ops(t, uint64(turn+1), words)
				chunks := int(ops[0].c.chunks)
				if size > 1 && chunks > size {
					inSeveral++
				}
				did := 0
				for over := false; !over; {
					r := rng.Intn(size)
					did += ops[r].Work(1 + rng.Intn(2))
					over = ops[r].State(0) == Done
				}
				assert.Equal(t, chunks, did)
				for _, o := range ops {
					assert.Equal(t, chunks, int(o.c.chunks))
					assert.Equal(t, Done, o.State(0))
				}
				require.NoError(t, c.check(), "turn %d: %v", turn, c.args)
				freeAll(ops)
			}
			assert.NotZero(t, inSeveral, "no call had more chunks than ranks")
		})
	}
}

// BenchmarkOneRank measures a whole operation of one rank, without a wait for others: preparing it and
// doing its chunks.
func BenchmarkOneRank(b *testing.B) {
	for _, count := range []int{1 << 8, 1 << 14, 1 << 18} {
		b.Run(fmt.Sprint(4*count), func(b *testing.B) {
			g := newTeam(b, 2, count)
			b.ReportAllocs()
			for b.Loop() {
				g.seq++
				o, err := g.op(0)
				if err != nil {
					b.Fatal(err)
				}
				o.Work(All)
				if o.State(0) != Done {
					b.Fatal("not done")
				}
				o.Free()
			}
		})
	}
}
