package job

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/master"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// backend answers the service of a server, of the master, or of a rank that is both.
type backend struct{ *job }

// serves returns an error on a rank that has no tables.
func (b backend) serves(what string) error {
	if b.server == nil {
		return status.New(status.Argument, "%s: rank %d has no tables; servers are ranks %v", what, b.group.Rank, b.servers)
	}
	return nil
}

func (b backend) Register(m admin.Member) error {
	if err := b.serves("register"); err != nil {
		return err
	}
	return b.server.Register(server.Member{Rank: m.Rank, PID: m.PID, Host: m.Host})
}

func (b backend) Declare(from int, m admin.Meta) (uint32, error) {
	if err := b.serves("declare"); err != nil {
		return 0, err
	}
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
	if err := b.serves("barrier"); err != nil {
		return err
	}
	return b.server.Barrier(ctx, from, name)
}

func (b backend) Complete(from int) error {
	if b.master != nil {
		if err := b.master.Complete(from); err != nil {
			return err
		}
	}
	if b.server != nil {
		return b.server.Complete(from)
	}
	return nil
}

func (b backend) SetLearningRate(name string, rate float64) error {
	if err := b.serves("set_learning_rate"); err != nil {
		return err
	}
	return b.server.Tables.SetLearningRate(name, rate)
}

func (b backend) Statistics() []byte {
	if b.server == nil {
		text, _ := json.Marshal(struct { // it has nothing that JSON cannot say
			Master master.Report `json:"master"`
		}{b.master.Report()})
		return text
	}
	host, _ := os.Hostname()
	s := b.server.Statistics()
	over := b.service.Traffic()
	r := admin.Report{Rank: b.group.Rank, PID: os.Getpid(), Host: host, Mode: s.Mode, Seconds: s.Seconds, Step: s.Version, Queue: s.Queue,
		Pulls: s.Pulls, Pushes: s.Pushes, PulledRows: s.PulledRows, PushedRows: s.PushedRows, BytesIn: s.BytesIn, BytesOut: s.BytesOut,
		RPCs: over.Calls, GRPCIn: over.In, GRPCOut: over.Out,
		Staleness: s.Staleness, MostStale: s.MostStale, Failed: s.Failed, Tables: []admin.TableReport{}, Trainers: []admin.TrainerReport{}}
	for _, t := range s.Tables {
		r.Tables = append(r.Tables, admin.TableReport{Name: t.Name, Kind: t.Kind, Dim: t.Dim, Rows: t.Rows, Bytes: t.Bytes, Backups: t.Backups, Pulled: t.Pulled, Pushed: t.Pushed,
			MaxRows: t.MaxRows, Dropped: t.Dropped, Expired: t.Expired, Evicted: t.Evicted, SketchBytes: t.SketchBytes})
	}
	for _, t := range s.Trainers {
		queue := 0
		if t.Waiting {
			queue = 1
		}
		r.Trainers = append(r.Trainers, admin.TrainerReport{Rank: t.Rank, Step: t.Steps, Since: t.Since, Queue: queue, Staleness: t.Staleness, Completed: t.State != "active", State: t.State, Lag: t.Lag, Silent: t.Silent, At: t.At})
	}
	if b.master != nil {
		m := b.master.Report()
		r.Master = &m
	}
	text, _ := json.Marshal(r)
	return text
}

// Checkpoint carries out a phase on a server, until ctx is done: the trainer that asked has given
// up.
func (b backend) Checkpoint(ctx context.Context, from int, phase, dir string, step int64, text []byte) (report []byte, err error) {
	d, err := detailOf(from, phase, text)
	if err != nil {
		return nil, err
	}
	if phase == phasePiece {
		return []byte("{}"), b.pieces.add(from, d)
	}
	if d.Pieces > 0 {
		if text, err = b.pieces.take(from, phase, d.Pieces); err != nil {
			return nil, err
		}
		if d, err = detailOf(from, phase, text); err != nil {
			return nil, err
		}
	}
	answer, err := b.phaseHere(ctx, from, phase, dir, step, d)
	if err != nil {
		return nil, err
	}
	return json.Marshal(answer)
}

func detailOf(from int, phase string, text []byte) (d detail, err error) {
	if len(text) == 0 {
		return d, nil
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, status.New(status.Argument, "checkpoint: what rank %d tells for phase %q cannot be read: %v", from, phase, err).WithRanks(from)
	}
	return d, nil
}

// phaseHere carries out a phase of the master or of the server.
func (b backend) phaseHere(ctx context.Context, from int, phase, dir string, step int64, d detail) (any, error) {
	switch phase {
	case phaseQueues, phaseRefill, phaseDeal:
		return b.queuesPhase(from, phase, d)
	}
	if err := b.serves("checkpoint"); err != nil {
		return nil, err
	}
	return b.phase(ctx, from, phase, dir, step, d)
}

// serve returns when all trainers have completed.
func (p *Process) serve(_ []byte, interrupt work.Interrupt) (any, error) {
	j, err := p.current("ps_serve")
	if err != nil {
		return nil, err
	}
	if j.service == nil {
		return nil, status.New(status.Argument, "ps_serve: rank %d is no server; servers are ranks %v", j.group.Rank, j.servers)
	}
	if interrupt == nil {
		interrupt = j.interrupt
	}
	// The end of this rank's part is an end too: close.
	if j.server != nil {
		if err := work.Await(j.server.Done(), time.Time{}, interrupt); err != nil {
			return nil, err
		}
		if err := j.server.Err(); err != nil {
			return nil, err
		}
	}
	if j.master == nil {
		return struct{}{}, nil
	}
	if err := work.Await(j.master.Ended(), time.Time{}, interrupt); err != nil {
		return nil, err
	}
	return struct{}{}, j.master.Err()
}
