package memory

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A writer takes the kind of copies that costs both sides less, and tries the other one now and then.
func TestAWriterChoosesItsCopies(t *testing.T) {
	var w writer
	var reads kinds
	// send writes so many bytes and returns which part of them went past the caches.
	send := func(bytes int64, own, read [2]uint32) float64 {
		var n, gone int64
		for ; n < bytes; n += piece {
			kind := w.choose()
			if kind == past {
				gone += piece
			}
			reads.learn(kind, read[kind])
			w.learn(kind, own[kind], piece, reads.word())
		}
		return float64(gone) / float64(n)
	}
	shared, apart := [2][2]uint32{{90, 80}, {80, 150}}, [2][2]uint32{{250, 80}, {900, 150}}
	assert.Zero(t, w.choose(), "into the caches at first")
	assert.Less(t, send(1<<30, shared[0], shared[1]), 0.05)
	assert.Greater(t, send(4<<30, apart[0], apart[1]), 0.7)
	assert.Greater(t, send(1<<30, apart[0], apart[1]), 0.95)
	assert.Less(t, send(4<<30, shared[0], shared[1]), 0.3)
	assert.Less(t, send(1<<30, shared[0], shared[1]), 0.05)
	// Nearly the same is no reason to change, and no clock is none either.
	kind := w.kind
	send(1<<30, [2]uint32{90, 85}, [2]uint32{80, 80})
	assert.Equal(t, kind, w.kind)
	w = writer{}
	assert.Zero(t, send(1<<30, [2]uint32{}, [2]uint32{}))
}
