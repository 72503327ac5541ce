package job

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// This file sends what travels with a phase in pieces, where it is longer than a request may be:
// that of many tables. A server, or the master, keeps the pieces until the phase itself comes.

// mostPieces is the most bytes of a detail.
const mostPieces = 128 << 20

// pieces are details that have come in part.
type pieces struct {
	mu sync.Mutex
	of map[pieceOf][]byte
}

// pieceOf says whose piece it is: a trainer takes one server through one phase of a kind at a time.
type pieceOf struct {
	from  int
	phase string
}

// add takes a piece. The first one begins anew: its trainer may have given up before.
func (p *pieces) add(from int, d detail) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := pieceOf{from, d.For}
	if d.At == 0 {
		delete(p.of, key)
	}
	if there := len(p.of[key]); d.At != there || len(d.Extra) > mostPieces-there {
		return status.New(status.Argument, "checkpoint: rank %d sends %d bytes of phase %q at %d; %d have come, of at most %d", from, len(d.Extra), d.For, d.At, there, mostPieces).WithRanks(from)
	}
	if p.of == nil {
		p.of = map[pieceOf][]byte{}
	}
	p.of[key] = append(p.of[key], d.Extra...)
	return nil
}

// take returns what has come of a phase, which are so many bytes, and forgets it.
func (p *pieces) take(from int, phase string, n int) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := pieceOf{from, phase}
	text := p.of[key]
	delete(p.of, key)
	if len(text) != n {
		return nil, status.New(status.Argument, "checkpoint: %d bytes of phase %q of rank %d have come, and there were %d", len(text), phase, from, n).WithRanks(from)
	}
	return text, nil
}

// sendPieces sends a detail ahead if it is too long, and returns what travels with the phase.
func (k checkpoints) sendPieces(ctx context.Context, to *admin.Client, phase string, step int64, text []byte) ([]byte, error) {
	if len(text) <= extraPiece {
		return text, nil
	}
	for at := 0; at < len(text); at += extraPiece {
		piece, err := json.Marshal(detail{For: phase, At: at, Extra: text[at:min(at+extraPiece, len(text))]})
		if err != nil {
			return nil, err
		}
		if _, err := to.Checkpoint(ctx, k.job.group.Rank, phasePiece, k.dir, step, piece); err != nil {
			return nil, err
		}
	}
	return json.Marshal(detail{Pieces: len(text)})
}
