package server

import (
	"math"
	"slices"
	"sync"
	"time"
)

// staleness counts the updates that others have made between a trainer's pull and its push.
type staleness struct {
	sync.Mutex
	n, sum, most int64
}

// note adds a push that comes at a version and was computed from the rows of version seen; -1: of none.
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

// Statistics is what a server has and did.
type Statistics struct {
	Server    int                 `json:"server"`
	Servers   int                 `json:"servers"`
	Mode      string              `json:"mode"`
	Seconds   float64             `json:"seconds"` // since the server was made
	Version   int64               `json:"version"` // updates applied
	Staleness StalenessStatistics `json:"staleness"`
	Trainers  []TrainerStatistics `json:"trainers"`
	Tables    []TableStatistics   `json:"tables"`
	Failed    string              `json:"failed,omitempty"`
}

// StalenessStatistics is how old the rows were that asynchronous pushes were computed from, in updates.
type StalenessStatistics struct {
	Mean float64 `json:"mean"`
	Most int64   `json:"most"`
}

// TrainerStatistics is what a server knows of a trainer.
type TrainerStatistics struct {
	Member
	State   string  `json:"state"`
	Steps   int64   `json:"steps"`
	Lag     int64   `json:"lag"`     // steps behind the trainer that is furthest
	Waiting bool    `json:"waiting"` // its push waits for other trainers'
	Silent  float64 `json:"silent"`  // seconds since its last request
}

// TableStatistics is what a server has of a table.
type TableStatistics struct {
	Name   string `json:"name"`
	Dim    int64  `json:"dim"`
	DType  string `json:"dtype"`
	Rows   int64  `json:"rows"`
	Bytes  int64  `json:"bytes"`
	Pulled int64  `json:"pulled"` // rows
	Pushed int64  `json:"pushed"` // rows
}

// Statistics returns what the server has and did.
func (s *Server) Statistics() Statistics {
	mode := "async"
	if s.Sync {
		mode = "sync"
	}
	out := Statistics{Server: s.Index, Servers: s.Servers, Mode: mode, Seconds: time.Since(s.began).Seconds(), Version: s.version.Load()}
	s.staleness.Lock()
	out.Staleness.Most = s.staleness.most
	if s.staleness.n > 0 {
		out.Staleness.Mean = float64(s.staleness.sum) / float64(s.staleness.n)
	}
	s.staleness.Unlock()
	s.mu.Lock()
	if s.failed != nil {
		out.Failed = s.failed.Error()
	}
	var furthest int64 = math.MinInt64
	for _, t := range s.trainers {
		furthest = max(furthest, t.steps)
	}
	for _, rank := range s.Trainers {
		t := s.trainers[rank]
		silent := 0.0
		if !t.seen.IsZero() {
			silent = time.Since(t.seen).Seconds()
		}
		m := t.member
		m.Rank = rank
		out.Trainers = append(out.Trainers, TrainerStatistics{m, t.state.String(), t.steps, furthest - t.steps, t.waiting != nil, silent})
	}
	tables := slices.Clone(s.tables)
	s.mu.Unlock()
	for _, t := range tables {
		info, err := t.Info()
		if err != nil {
			continue // the server is being freed
		}
		out.Tables = append(out.Tables, TableStatistics{t.name, t.Dim, t.DType, info.Rows, info.Bytes, t.pulled.Load(), t.pushed.Load()})
	}
	return out
}
