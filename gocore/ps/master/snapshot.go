package master

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// snapshot is a queue in a cut of the job. What is leased in it counts as queued: what a trainer
// did after the cut is lost.
type snapshot struct {
	Data   Data      `json:"data"`
	Epoch  int64     `json:"epoch"`
	Fence  uint64    `json:"fence"`
	Done   []byte    `json:"done"`  // of the epoch: bit k%8 of byte k/8 is shard k
	Tries  []try     `json:"tries"` // of the shards that are not done
	Failed []Failure `json:"failed"`
	Lost   int       `json:"failed_in_all"`
}

type try struct {
	Shard int64 `json:"shard"`
	Tries int32 `json:"tries"`
}

// Save returns the queue as JSON.
func (q *Queue) Save() ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := snapshot{Data: q.data, Epoch: q.epoch, Fence: q.fence, Failed: q.failed, Lost: q.lost, Done: make([]byte, (len(q.shards)+7)/8)}
	for number := range q.shards {
		switch s := &q.shards[number]; {
		case s.state == done:
			out.Done[number/8] |= 1 << (number % 8)
		case s.tries > 0:
			out.Tries = append(out.Tries, try{int64(number), s.tries})
		}
	}
	return json.Marshal(out)
}

// Restore makes the queue of a snapshot for some trainers, which may be others than before.
func Restore(text []byte, trainers []int) (*Queue, error) {
	var in snapshot
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, status.New(status.Argument, "the queue of a cut cannot be read: %v", err)
	}
	q, err := New(in.Data, trainers)
	if err != nil {
		return nil, err
	}
	bad := func(what string, n int64) (*Queue, error) {
		return nil, status.New(status.Argument, "the queue %q of a cut is damaged: %s %d", in.Data.Name, what, n)
	}
	if in.Epoch < 0 || in.Epoch > MostEpochs {
		return bad("epoch", in.Epoch)
	}
	q.begin(in.Epoch)
	q.fence, q.failed, q.lost = in.Fence, in.Failed, in.Lost
	end := func(number int64, as state) bool {
		if number < 0 || number >= in.Data.Shards || q.shards[number].state != queued {
			return false
		}
		q.shards[number].state = as
		q.left--
		return true
	}
	for number := range int64(len(in.Done)) * 8 {
		if in.Done[number/8]>>(number%8)&1 == 1 && !end(number, done) {
			return bad("done is shard", number)
		}
	}
	for _, f := range in.Failed {
		if f.Epoch == in.Epoch && !end(f.Shard, failed) {
			return bad("failed is shard", f.Shard)
		}
	}
	for _, t := range in.Tries {
		if t.Shard < 0 || t.Shard >= in.Data.Shards || t.Tries < 0 {
			return bad("tried is shard", t.Shard)
		}
		q.shards[t.Shard].tries = t.Tries
	}
	return q, nil
}

// Status is what a queue looks like.
type Status struct {
	Data
	Epoch  int64     `json:"epoch"`
	Queued int64     `json:"queued"`
	Leased []Holding `json:"leased"` // by shard
	Done   int64     `json:"done"`
	Failed []Failure `json:"failed"` // the latest, of all epochs
	Lost   int       `json:"failed_in_all"`
	Gone   []int     `json:"gone"` // trainers that have left or died
}

// Holding is a lease as Status tells of it.
type Holding struct {
	Shard int64   `json:"shard"`
	Rank  int     `json:"rank"`
	Tries int32   `json:"tries"`   // failures of the shard in this epoch
	Since float64 `json:"since"`   // how long the trainer has it, in seconds
	Rests float64 `json:"remains"` // how long the lease lasts, in seconds
}

// Status tells what the queue looks like.
func (q *Queue) Status(now time.Time) Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := Status{Data: q.data, Epoch: q.epoch, Leased: []Holding{}, Failed: []Failure{}, Gone: slices.Sorted(maps.Keys(q.gone)), Lost: q.lost}
	for _, s := range q.shards {
		switch s.state {
		case queued:
			out.Queued++
		case done:
			out.Done++
		}
	}
	for number, l := range q.leases {
		out.Leased = append(out.Leased, Holding{number, l.owner, q.shards[number].tries, now.Sub(l.since).Seconds(), l.until.Sub(now).Seconds()})
	}
	slices.SortFunc(out.Leased, func(a, b Holding) int { return int(a.Shard - b.Shard) })
	out.Leased = out.Leased[:min(mostTold, len(out.Leased))]
	out.Failed = append(out.Failed, q.failed[max(0, len(q.failed)-mostTold):]...)
	return out
}
