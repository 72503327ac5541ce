package job

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// This file has what a trainer asks of the servers' services, but for tables and checkpoints.

// complete says that this trainer asks nothing more.
// Once is enough. The reply has the error of a call of a KV for which the program has not waited.
func (p *Process) complete([]byte, work.Interrupt) (any, error) {
	j, err := p.current("ps_complete")
	if err == nil && j.client != nil && j.client.Completed("") != nil {
		return struct{}{}, nil
	}
	if err == nil {
		j, err = p.trainer("ps_complete")
	}
	if err != nil {
		return nil, err
	}
	failed, err := j.client.Settle()
	if err != nil {
		return nil, err
	}
	// Servers that live would take this for a good end if they have not heard of another one's
	// death yet. This rank may not have heard of it either, so it asks them all.
	err = j.each(func(ctx context.Context, _ int, c *admin.Client) error {
		_, err := c.Statistics(ctx)
		return err
	})
	if status.CodeOf(err) == status.PeerDied {
		return nil, err
	}
	if err := j.each(func(ctx context.Context, _ int, c *admin.Client) error { return c.Complete(ctx, j.group.Rank) }); err != nil {
		return nil, err
	}
	if j.tasks != nil && !slices.Contains(j.servers, j.masterRank) { // one that has tables too knows it now
		if err := j.ofMaster("complete", func(ctx context.Context) error { return j.tasks.Complete(ctx, j.group.Rank) }); err != nil {
			return nil, err
		}
	}
	j.client.Complete()
	var e *status.Error
	if errors.As(failed, &e) {
		return map[string]any{"failed": map[string]any{"code": e.Code, "message": e.Msg, "ranks": e.Ranks}}, nil
	}
	return struct{}{}, nil
}

// flush exchanges what this trainer has pushed since the last exchange, in mode geo.
func (p *Process) flush([]byte, work.Interrupt) (any, error) {
	j, err := p.trainer("ps_flush")
	if err != nil {
		return nil, err
	}
	return struct{}{}, j.client.Flush(thread())
}

// lastPush tells whether a server may have carried out a part of the newest push.
func (p *Process) lastPush([]byte, work.Interrupt) (any, error) {
	j, err := p.trainer("ps_last_push")
	if err != nil {
		return nil, err
	}
	return map[string]bool{"changed": j.client.Changed()}, nil
}

// refuse fails the step of all trainers.
func (p *Process) refuse([]byte, work.Interrupt) (any, error) {
	j, err := p.trainer("ps_refuse")
	if err != nil {
		return nil, err
	}
	return struct{}{}, j.client.Refuse(thread())
}

// barrier waits for all trainers that have not completed.
func (p *Process) barrier(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Name string `json:"name"`
	}
	if err := method.Parse("ps_barrier", request, &r); err != nil {
		return nil, err
	}
	j, err := p.trainer("ps_barrier")
	if err == nil {
		err = j.serverLost() // the first server may not know of the death of another one yet
	}
	if err != nil {
		return nil, err
	}
	return struct{}{}, j.call(func(ctx context.Context) error { return j.admins[0].Barrier(ctx, j.group.Rank, r.Name) })
}

// learningRate sets the rate of a table on all servers.
func (p *Process) learningRate(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Name string  `json:"name"`
		Rate float64 `json:"rate"`
	}
	if err := method.Parse("ps_learning_rate", request, &r); err != nil {
		return nil, err
	}
	j, err := p.trainer("ps_learning_rate")
	if err != nil {
		return nil, err
	}
	if j.mode.Load().Name == modeGeo {
		return nil, status.New(status.Unsupported, "ps_learning_rate: in mode geo the trainers update their copies, and the servers no row: set learning_rate of table %q on each trainer", r.Name)
	}
	return struct{}{}, j.each(func(ctx context.Context, _ int, c *admin.Client) error { return c.SetLearningRate(ctx, r.Name, r.Rate) })
}

// stats returns the statistics of all servers, for a trainer, and of this rank.
func (p *Process) stats([]byte, work.Interrupt) (any, error) {
	j, err := p.current("ps_stats")
	if err != nil {
		return nil, err
	}
	shared, mpi, local := j.links.Bytes()
	var rpcs, grpc uint64
	calls := j.admins
	if j.tasks != nil {
		calls = append(slices.Clip(calls), j.tasks)
	}
	for _, c := range calls {
		t := c.Traffic()
		rpcs, grpc = rpcs+t.Calls, grpc+t.In+t.Out
	}
	out := map[string]any{"rank": j.group.Rank, "rpcs": rpcs, "bytes": map[string]uint64{"shared": shared, "mpi": mpi, "local": local, "grpc": grpc}}
	if j.client == nil {
		out["servers"] = []json.RawMessage{backend{j}.Statistics()}
		return out, nil
	}
	out["staleness"] = j.client.Staleness()
	if j.mode.Load().Name == modeGeo {
		rows, bytes := j.client.Copies()
		out["copies"] = map[string]int64{"rows": rows, "bytes": bytes}
	}
	all := make([]json.RawMessage, len(j.admins))
	err = j.each(func(ctx context.Context, i int, c *admin.Client) error {
		b, err := c.Statistics(ctx)
		if err == nil && !json.Valid(b) {
			err = status.New(status.Argument, "server %d answers with statistics that are not JSON", i)
		}
		all[i] = b
		return err
	})
	out["servers"] = all
	if err == nil && j.tasks != nil {
		var b []byte
		err = j.ofMaster("stats", func(ctx context.Context) (err error) { b, err = j.tasks.Statistics(ctx); return err })
		var r admin.Report
		if err == nil {
			err = parseReport(b, &r)
		}
		out["master"] = r.Master
	}
	return out, err
}
