package server

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// staleness counts the updates that others have made between a trainer's pull and its push.
type staleness struct {
	sync.Mutex
	n, sum, most int64
}

// note adds a push that comes at a version and was computed from the rows of version seen; -1: of
// none.
func (s *staleness) note(version, seen int64) int64 {
	if seen < 0 {
		return 0
	}
	d := max(0, version-seen)
	s.Lock()
	defer s.Unlock()
	s.n++
	s.sum += d
	s.most = max(s.most, d)
	return d
}

// add adds what other counts.
func (s *staleness) add(other *staleness) {
	other.Lock()
	defer other.Unlock()
	s.n += other.n
	s.sum += other.sum
	s.most = max(s.most, other.most)
}

func (s *staleness) mean() float64 {
	if s.n == 0 {
		return 0
	}
	return float64(s.sum) / float64(s.n)
}

// counters count requests that were carried out.
type counters struct {
	pulls, pushes, bytesIn, bytesOut atomic.Uint64
}

// Statistics is what a server has and did.
type Statistics struct {
	Mode                   string
	Seconds                float64 // since the server was made
	Version                int64   // updates applied
	Queue                  int     // pushes, writes and pulls that wait, and calls of KVs
	Pulls, Pushes          uint64  // requests
	PulledRows, PushedRows uint64
	BytesIn, BytesOut      uint64  // ids, gradients and rows
	Staleness              float64 // mean number of updates of others between a pull and its push
	MostStale              int64
	Failed                 string // why the server takes no requests; "" if it does
	Trainers               []TrainerStatistics
	Tables                 []TableStatistics
}

// TrainerStatistics is what a server knows of a trainer.
type TrainerStatistics struct {
	Member
	State     string // active, completed or lost
	Steps     int64
	Since     int64 // of these, steps since the rule was set
	Lag       int64 // steps behind the trainer that is furthest
	Waiting   bool  // its push or pull waits for other trainers
	Staleness float64
	Silent    float64 // seconds since its last request
	At        string  // the name of the barrier where it waits; "": none
}

// TableStatistics is what a server has of a table.
type TableStatistics struct {
	Name, Kind     string
	Dim            int64
	Rows, Bytes    int64 // 0 of a KV: its function knows. The bytes are with those of backups
	Backups        int64 // rows as trainers have pulled them last
	Pulled, Pushed int64 // rows

	// Where ids come and go:
	MaxRows                   int64 // of this server; 0: no cap
	Dropped, Expired, Evicted int64 // gradients' ids that got no row; rows that were removed
	SketchBytes               int64 // of Bytes, the counts of ids without a row
}

// Statistics returns what the server has and did.
func (s *Server) Statistics() Statistics {
	out := Statistics{Mode: s.rule.Load().Mode, Seconds: time.Since(s.began).Seconds(), Version: s.Version.Load(), Pulls: s.counted.pulls.Load(),
		Pushes: s.counted.pushes.Load(), BytesIn: s.counted.bytesIn.Load(), BytesOut: s.counted.bytesOut.Load()}
	s.mu.Lock()
	if s.failed != nil {
		out.Failed = s.failed.Error()
	}
	var furthest int64 = math.MinInt64
	for _, t := range s.trainers {
		furthest = max(furthest, t.steps)
	}
	var all staleness
	for _, rank := range s.Trainers {
		t := s.trainers[rank]
		silent := 0.0
		if !t.seen.IsZero() {
			silent = time.Since(t.seen).Seconds()
		}
		waits := t.waiting != nil || slices.ContainsFunc(s.ahead, func(u *update) bool { return u.from == rank })
		if waits {
			out.Queue++
		}
		m := t.member
		m.Rank = rank
		var stale staleness
		stale.add(&t.staleness)
		all.add(&stale)
		out.Trainers = append(out.Trainers, TrainerStatistics{m, t.state.String(), t.steps, t.steps - t.base, furthest - t.steps, waits, stale.mean(), silent, s.barriers.waitsAt(rank)})
	}
	if s.hold != nil {
		out.Queue += len(s.hold.queue)
	}
	out.Staleness, out.MostStale = all.mean(), all.most
	kvs := slices.Clone(s.kvs)
	s.mu.Unlock()
	s.Calls.mu.Lock()
	out.Queue += len(s.Calls.queue)
	s.Calls.mu.Unlock()
	for _, t := range s.Tables.served() {
		out.PulledRows += uint64(t.pulled.Load())
		out.PushedRows += uint64(t.pushed.Load())
		info, err := t.table.Info()
		if err != nil {
			continue // the server is being freed
		}
		s.Tables.delay.Lock()
		backups, bytes := t.backed()
		s.Tables.delay.Unlock()
		out.Tables = append(out.Tables, TableStatistics{t.meta.Name, t.meta.Kind, t.table.Dim, info.Rows, info.Bytes + bytes, backups, t.pulled.Load(), t.pushed.Load(),
			t.table.MaxRows, info.Dropped, info.Expired, info.Evicted, info.SketchBytes})
	}
	for _, k := range kvs {
		out.PulledRows += uint64(k.pulled.Load())
		out.PushedRows += uint64(k.pushed.Load())
		out.Tables = append(out.Tables, TableStatistics{Name: k.name, Kind: "kv", Dim: k.dim, Pulled: k.pulled.Load(), Pushed: k.pushed.Load()})
	}
	return out
}
