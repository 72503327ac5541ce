package job

import (
	"context"
	"time"

	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/master"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// This file has the shards of data sets: what a trainer asks the master for, and what the master
// answers.

// askFor is how long the master waits for a shard before it answers that there is none yet. The
// trainer asks again: how long others have their shards is no question of a deadline.
const askFor = 2 * time.Second

// ofMaster calls the master's service.
func (j *job) ofMaster(what string, f func(ctx context.Context) error) error {
	if j.tasks == nil {
		return status.New(status.Argument, "%s: no rank is a master: give one the role, as in ps.init('trainer:*,pserver:2,master:1')", what)
	}
	return j.callOf(j.timeout, j.masterLost, f)
}

// tasksOpen makes the queue of a data set on the master, unless another trainer has, and returns
// its epoch.
func (p *Process) tasksOpen(request []byte, _ work.Interrupt) (any, error) {
	var d struct {
		Name    string  `json:"name"`
		Shards  int64   `json:"shards"`
		Digest  string  `json:"digest"`
		Shuffle bool    `json:"shuffle"`
		Seed    uint64  `json:"seed"`
		Lease   float64 `json:"lease"` // seconds
		Retries int     `json:"retries"`
	}
	if err := method.Parse("ps_tasks_open", request, &d); err != nil {
		return nil, err
	}
	j, err := p.trainer("ps_tasks_open")
	if err != nil {
		return nil, err
	}
	var epoch int64
	err = j.ofMaster("tasks", func(ctx context.Context) (err error) {
		epoch, err = j.tasks.Open(ctx, j.group.Rank, master.Data{Name: d.Name, Shards: d.Shards, Digest: d.Digest, Shuffle: d.Shuffle, Seed: d.Seed,
			Lease: method.Seconds(&d.Lease), Retries: d.Retries})
		return err
	})
	return map[string]any{"epoch": epoch}, err
}

// tasksNext gets a shard of an epoch. It waits until there is one, or the epoch is over for this
// trainer.
func (p *Process) tasksNext(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Name  string `json:"name"`
		Epoch int64  `json:"epoch"`
	}
	if err := method.Parse("ps_tasks_next", request, &r); err != nil {
		return nil, err
	}
	j, err := p.trainer("ps_tasks_next")
	if err != nil {
		return nil, err
	}
	var g master.Grant
	number := j.requests.Add(1)
	for g.Verdict != master.Leased && g.Verdict != master.Over {
		if err := j.ofMaster("tasks", func(ctx context.Context) (err error) {
			g, err = j.tasks.Ask(ctx, j.group.Rank, r.Name, number, r.Epoch, askFor)
			return err
		}); err != nil {
			return nil, err
		}
	}
	if g.Verdict == master.Over {
		return map[string]any{"over": true}, nil
	}
	return map[string]any{"over": false, "epoch": g.Epoch, "shard": g.Shard, "fence": g.Fence, "lease": g.Lease.Seconds()}, nil
}

// tasksSay tells the master of a shard: that this trainer makes progress with it, has done it, or
// gives it back.
func (p *Process) tasksSay(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Name   string `json:"name"`
		Epoch  int64  `json:"epoch"`
		Shard  int64  `json:"shard"`
		Fence  uint64 `json:"fence"`
		What   string `json:"what"` // renew, done or return
		Reason string `json:"reason"`
	}
	if err := method.Parse("ps_tasks_say", request, &r); err != nil {
		return nil, err
	}
	j, err := p.trainer("ps_tasks_say")
	if err != nil {
		return nil, err
	}
	call, known := map[string]func(*admin.Client, context.Context, int, master.Lease) (bool, error){
		"renew": (*admin.Client).Renew, "done": (*admin.Client).Done, "return": (*admin.Client).Return,
	}[r.What]
	if !known {
		return nil, status.New(status.Argument, "ps_tasks_say: what=%q is none of renew, done and return", r.What)
	}
	var counts bool
	err = j.ofMaster("tasks", func(ctx context.Context) (err error) {
		counts, err = call(j.tasks, ctx, j.group.Rank, master.Lease{Name: r.Name, Epoch: r.Epoch, Shard: r.Shard, Fence: r.Fence, Reason: r.Reason})
		return err
	})
	return map[string]any{"counts": counts}, err
}

// The other side.

// queuesPhase carries out a phase of a checkpoint that a master has.
func (b backend) queuesPhase(from int, phase string, d detail) (any, error) {
	switch {
	case b.master == nil:
		return nil, status.New(status.Argument, "checkpoint: rank %d is no master", b.group.Rank)
	case phase == phaseQueues:
		return b.master.Save()
	case phase == phaseRefill:
		return struct{}{}, b.master.Add(from, d.At, d.Extra)
	}
	return b.master.Restore(d.At)
}

// saveQueues returns the snapshot of the master's queues; nil if there is no master or no queue.
func (k checkpoints) saveQueues(step int64) (text []byte, err error) {
	if k.job.tasks == nil {
		return nil, nil
	}
	err = k.ofQueues(phaseQueues, step, detail{}, &text)
	return text, err
}

// restoreQueues has the master read a snapshot, and returns the names of its queues.
func (k checkpoints) restoreQueues(step int64, text []byte) (names []string, err error) {
	for at := 0; at < len(text); at += extraPiece {
		piece := text[at:min(at+extraPiece, len(text))]
		if err := k.ofQueues(phaseRefill, step, detail{At: at, Extra: piece}, nil); err != nil {
			return nil, err
		}
	}
	err = k.ofQueues(phaseDeal, step, detail{At: len(text)}, &names)
	return names, err
}

// ofQueues takes the master through a phase.
func (k checkpoints) ofQueues(phase string, step int64, d detail, into any) error {
	return k.job.ofMaster("checkpoint", func(ctx context.Context) error { return k.askOf(ctx, k.job.tasks, phase, step, d, into) })
}
