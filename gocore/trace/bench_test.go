package trace

import (
	"os"
	"testing"
)

// BenchmarkOperation measures what the recorder adds to a synchronous collective.
func BenchmarkOperation(b *testing.B) {
	r, err := New(0, 1)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	for b.Loop() {
		m := r.Begin(1, 7, &[3]uint64{3, 10, 0}, 0)
		m.Algorithm("mpi")
		m.End(0)
	}
}

// BenchmarkCollector measures what the collector needs for an operation, besides the time of the rank to carry it out.
func BenchmarkCollector(b *testing.B) {
	r, err := New(0, 1)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	c, err := NewCollector(Which{PIDs: []int{os.Getpid()}}, b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for seq := uint64(1); b.Loop(); seq++ {
		if seq%some == 0 {
			b.StopTimer()
			run(r, seq, seq+some-1)
			b.StartTimer()
			c.pollAll()
		}
	}
}
