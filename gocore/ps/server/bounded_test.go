package server

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// bounded makes a server with a bound of staleness, and a table of one row for each trainer.
func bounded(t *testing.T, slack int64, trainers ...int) *Server {
	s := New(Config{Servers: 1, Trainers: trainers, Rule: Rule{Mode: "ssp", Bounded: true, Slack: slack}})
	t.Cleanup(s.Tables.Free)
	_, err := s.Declare(trainers[0], meta("t"))
	require.NoError(t, err)
	return s
}

// ask begins a pull of the row of each trainer.
func ask(s *Server, from int, ids []int64) ([]float32, <-chan reply) {
	out := memory[float32](dim * len(ids))
	return out, send(s, from, request.Head{Op: request.Pull, Seen: -1}, ids, nil, out)
}

func isOver(c <-chan reply) bool {
	select {
	case <-c:
		return true
	case <-time.After(10 * time.Millisecond):
		return false
	}
}

// TestNobodyIsFarAhead lets trainers pull and push in random order, and compares with a simulation
// in one process: which pulls wait, and what they return.
func TestNobodyIsFarAhead(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		slack := r.Int64N(4)
		ranks := []int{0, 1, 2}
		ids := outside[int64](0, 1, 2)
		s := bounded(t, slack, ranks...)
		steps := [3]int64{}
		type pulling struct {
			out   []float32
			reply <-chan reply
		}
		waits := map[int]*pulling{}
		allowed := func(rank int) bool {
			for _, n := range steps {
				if steps[rank]-n > slack {
					return false
				}
			}
			return true
		}
		got := func(rank int, p *pulling) {
			answer := <-p.reply
			require.NoError(t, answer.err)
			for other := range ranks {
				// meta's table is SGD with the rate 0.1: each push of a trainer takes 1 off its row.
				assert.EqualValues(t, -steps[other], p.out[other*dim], "seed %d: rank %d reads the row of rank %d", seed, rank, other)
			}
		}
		for range 60 {
			rank := r.IntN(3)
			if waits[rank] != nil {
				continue // its thread waits
			}
			out, reply := ask(s, rank, ids)
			if !allowed(rank) {
				assert.False(t, isOver(reply), "seed %d: rank %d is at %v with slack %d", seed, rank, steps, slack)
				waits[rank] = &pulling{out, reply}
				continue
			}
			got(rank, &pulling{out, reply})
			require.NoError(t, (<-push(s, rank, 0, ids[rank:rank+1], outside[float32](10, 10, 10, 10))).err)
			steps[rank]++
			for other, p := range waits {
				if allowed(other) {
					got(other, p)
					delete(waits, other)
				}
			}
		}
		// Who waits goes on when the slow ones have completed.
		for rank := range ranks {
			if waits[rank] == nil {
				require.NoError(t, s.Complete(rank))
			}
		}
		for _, p := range waits {
			assert.NoError(t, (<-p.reply).err)
		}
	}
}

func TestWhoWaitsForATrainerThatGoes(t *testing.T) {
	why := status.New(status.PeerDied, "rank 1 died").WithRanks(1)
	for name, c := range map[string]struct {
		then func(s *Server)
		err  error
	}{
		"completes": {func(s *Server) { _ = s.Complete(1) }, nil},
		"dies":      {func(s *Server) { s.Lost(1, why) }, nil},
		"fails":     {func(s *Server) { s.Fail(why) }, why},
	} {
		t.Run(name, func(t *testing.T) {
			s := bounded(t, 0, 0, 1)
			ids := outside[int64](0)
			require.NoError(t, (<-push(s, 0, 0, ids, outside[float32](1, 1, 1, 1))).err)
			_, reply := ask(s, 0, ids)
			assert.False(t, isOver(reply))
			told := s.Statistics()
			assert.Equal(t, "ssp", told.Mode)
			assert.Equal(t, 1, told.Queue)
			assert.True(t, told.Trainers[0].Waiting && !told.Trainers[1].Waiting)
			c.then(s)
			assert.True(t, errors.Is((<-reply).err, c.err) || c.err == nil)
			assert.Zero(t, s.Statistics().Queue)
		})
	}
}
