package trace

import "testing"

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
