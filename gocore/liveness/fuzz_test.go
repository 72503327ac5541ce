package liveness

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

// FuzzPlace reads where a rank says that it listens.
func FuzzPlace(f *testing.F) {
	words := func(p Place) (b []byte) {
		for _, w := range p.Words() {
			b = binary.LittleEndian.AppendUint64(b, uint64(w))
		}
		return b
	}
	f.Add([]byte{})
	f.Add(words(Place{Host: "h1", Port: 7}))
	f.Add(words(Place{Host: "\x1b[31mred\n", Port: 65535}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var w [PlaceWords]int64
		for i := 0; i < len(w) && len(b) >= 8*(i+1); i++ {
			w[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
		}
		p := PlaceOf(w)
		assert.LessOrEqual(t, len(p.Addresses), maxAddresses)
		for _, r := range p.Host {
			assert.True(t, r > ' ' && r <= '~')
		}
		assert.Equal(t, p.Host, PlaceOf(p.Words()).Host)
		assert.NotEmpty(t, p.String())
	})
}

// FuzzFact reads a message: what is read is of ranks of the job, and is what was written.
func FuzzFact(f *testing.F) {
	f.Add(fact{died, 1, 2}.encode())
	f.Add(fact{lost, 1, 0}.encode())
	f.Add(fact{over, 0, 3}.encode())
	f.Add(fact{notice, 1 << 31, 3}.encode())
	f.Add(fact{ask, 1, 1}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		var raw [factBytes]byte
		copy(raw[:], b)
		const ranks, nodes = 5, 2
		if v, ok := decode(raw, ranks, nodes); ok {
			assert.True(t, v.by >= 0 && v.by < ranks)
			assert.True(t, v.kind == notice || v.subject >= 0 && v.subject < ranks)
			assert.True(t, v.kind != lost || v.subject < nodes)
			assert.Equal(t, raw[:], v.encode())
		}
	})
}
