package job

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// backend answers the service of a server.
type backend struct{ *job }

func (b backend) Register(m admin.Member) error {
	return b.server.Register(server.Member{Rank: m.Rank, PID: m.PID, Host: m.Host})
}

func (b backend) Declare(from int, m admin.Meta) (uint32, error) {
	if m.Kind == admin.KV {
		return b.declareKV(from, m)
	}
	var meta server.Meta
	if err := json.Unmarshal(m.Config, &meta); err != nil {
		return 0, status.New(status.Argument, "declare %q: the configuration is not what a table takes: %v", m.Name, err)
	}
	meta.Name = m.Name
	return b.server.Declare(from, meta)
}

func (b backend) Barrier(ctx context.Context, from int, name string) error {
	return b.server.Barrier(ctx, from, name)
}

func (b backend) Complete(from int) error { return b.server.Complete(from) }

func (b backend) SetLearningRate(name string, rate float64) error {
	return b.server.SetLearningRate(name, rate)
}

func (b backend) Statistics() []byte {
	host, _ := os.Hostname()
	s := b.server.Statistics()
	over := b.service.Traffic()
	r := admin.Report{Rank: b.group.Rank, PID: os.Getpid(), Host: host, Mode: s.Mode, Seconds: s.Seconds, Step: s.Version, Queue: s.Queue,
		Pulls: s.Pulls, Pushes: s.Pushes, PulledRows: s.PulledRows, PushedRows: s.PushedRows, BytesIn: s.BytesIn, BytesOut: s.BytesOut,
		RPCs: over.Calls, GRPCIn: over.In, GRPCOut: over.Out,
		Staleness: s.Staleness, MostStale: s.MostStale, Failed: s.Failed, Tables: []admin.TableReport{}, Trainers: []admin.TrainerReport{}}
	for _, t := range s.Tables {
		r.Tables = append(r.Tables, admin.TableReport{Name: t.Name, Kind: t.Kind, Dim: t.Dim, Rows: t.Rows, Bytes: t.Bytes, Pulled: t.Pulled, Pushed: t.Pushed})
	}
	for _, t := range s.Trainers {
		queue := 0
		if t.Waiting {
			queue = 1
		}
		r.Trainers = append(r.Trainers, admin.TrainerReport{Rank: t.Rank, Step: t.Steps, Queue: queue, Staleness: t.Staleness, Completed: t.State != "active", State: t.State, Lag: t.Lag, Silent: t.Silent, At: t.At})
	}
	text, _ := json.Marshal(r) // it has nothing that JSON cannot say
	return text
}

// Checkpoint carries out a phase on a server, until ctx is done: the trainer that asked has given
// up.
func (b backend) Checkpoint(ctx context.Context, from int, phase, dir string, step int64, text []byte) (report []byte, err error) {
	var d detail
	if len(text) > 0 {
		if err := json.Unmarshal(text, &d); err != nil {
			return nil, status.New(status.Argument, "checkpoint: what rank %d tells for phase %q cannot be read: %v", from, phase, err).WithRanks(from)
		}
	}
	answer, err := b.phase(ctx, from, phase, dir, step, d)
	if err != nil {
		return nil, err
	}
	return json.Marshal(answer)
}

// serve returns when all trainers have completed.
func (p *Process) serve(_ []byte, interrupt work.Interrupt) (any, error) {
	j, err := p.server("ps_serve")
	if err != nil {
		return nil, err
	}
	if interrupt == nil {
		interrupt = j.interrupt
	}
	// The end of this rank's part is an end, too: see job.close.
	if err := work.Await(j.server.Done(), time.Time{}, interrupt); err != nil {
		return nil, err
	}
	return struct{}{}, j.server.Err()
}
