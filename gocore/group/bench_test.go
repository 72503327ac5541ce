package group

import (
	"testing"
	"time"

	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/world"
)

// BenchmarkSubmit measures what the core adds to a synchronous all_reduce, without the language
// boundary, the arrival of other members and MPI.
func BenchmarkSubmit(b *testing.B) { benchmark(b, allReduce(floats(1))) }

// BenchmarkPrepared measures the same call, prepared.
func BenchmarkPrepared(b *testing.B) {
	g, d := alone(b), allReduce(floats(1))
	p, err := g.Prepare(d)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := p.Submit(d, false); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMessage measures a message of a rank to itself.
func BenchmarkMessage(b *testing.B) {
	d := desc(op.SendRecv, []op.Buf{floats(1)}, []op.Buf{floats(1)})
	d.Peer = 0
	benchmark(b, d)
}

// alone makes a group of one rank.
func alone(b *testing.B) *Group {
	e, err := world.NewEnv(mpifake.World(mpifake.New(1)[0]), 20*time.Second, nil)
	if err != nil {
		b.Fatal(err)
	}
	g, err := World(e, 0, time.Minute)
	if err != nil {
		b.Fatal(err)
	}
	return g
}

// benchmark submits an operation in a group of one rank.
func benchmark(b *testing.B, d *op.Desc) {
	g := alone(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := g.Submit(d, false); err != nil {
			b.Fatal(err)
		}
	}
}
