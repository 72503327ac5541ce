package gocore

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/ps/checkpoint"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Checkpoint carries out a phase on a server, until ctx is done: the trainer that asked has given up.
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

func (b backend) phase(ctx context.Context, from int, phase, dir string, step int64, d detail) (answer any, err error) {
	switch phase { // these wait for trainers, or end such waits
	case phaseBegin:
		return struct{}{}, b.server.Meet(ctx, from, dir, d.Asked)
	case phaseHold:
		return b.server.Hold(ctx, from)
	case phaseRelease:
		b.server.Release(from)
		return struct{}{}, nil
	}
	// The others wait for each other, because one of a trainer that has died may be under way still.
	b.cuts.Lock()
	defer b.cuts.Unlock()
	switch phase {
	case phaseWrite, phaseRestore:
		defer b.server.Release(from)
		if d.To == nil {
			return nil, status.New(status.Argument, "checkpoint: rank %d does not say to which point", from).WithRanks(from)
		}
		if err := b.server.Reach(ctx, from, *d.To); err != nil {
			return nil, err
		}
		if phase == phaseRestore {
			return b.restore(ctx, dir, step, d.Taking)
		}
		return b.write(ctx, dir, step, func() { b.server.Release(from) })
	case phaseAdd:
		return struct{}{}, b.add(from, d)
	case phaseCommit:
		return struct{}{}, b.commit(ctx, dir, step, d)
	case phaseExtra:
		return b.given, nil
	case phaseList:
		list, err := checkpoint.List(dir)
		return slices.Concat(list, []checkpoint.Listed{}), err
	case phaseVerify:
		damaged, err := b.verifier.Verify(ctx, dir, step, b.server.Index, b.server.Servers, d.Anew)
		if damaged != nil {
			return verified{damaged.Error()}, err
		}
		return verified{}, err
	case phaseRemove:
		checkpoint.Remove(dir, d.Steps)
		return struct{}{}, nil
	case phaseOutcome:
		if d.Outcome != nil {
			b.keepOutcome(*d.Outcome)
		}
		return b.told, nil
	}
	return nil, status.New(status.Argument, "checkpoint: rank %d asks for phase %q", from, phase)
}

// write writes the part of this server, whose updates are held until it calls copied.
func (b backend) write(ctx context.Context, dir string, step int64, copied func()) (w written, err error) {
	w.Version = b.server.Version()
	sources := make([]checkpoint.Source, 0)
	for _, t := range b.server.Tables() {
		config, err := json.Marshal(described{t.Config, t.Kind, t.Dims})
		if err != nil {
			return w, err
		}
		source, err := checkpoint.FromTable(t.Name, config, t.Table, t.LearningRate)
		if err != nil {
			return w, err
		}
		sources = append(sources, source)
	}
	w.Part, err = checkpoint.WritePart(ctx, dir, step, b.server.Index, b.server.Servers, sources, copied)
	return w, err
}

// keepOutcome keeps how a call ended that one trainer has made for all. The caller holds cuts.
func (b backend) keepOutcome(o outcome) {
	o.Number = b.told.Number + 1
	b.told = o
}

// add takes a piece of what the next cut will have besides rows. The first piece begins anew. The caller holds cuts.
func (b backend) add(from int, d detail) error {
	if d.At == 0 {
		b.extra = nil
	}
	if d.At != len(b.extra) || len(d.Extra) > MostExtra-len(b.extra) {
		return status.New(status.Argument, "checkpoint: rank %d adds %d bytes at %d; %d have come, of at most %d", from, len(d.Extra), d.At, len(b.extra), MostExtra).WithRanks(from)
	}
	b.extra = append(b.extra, d.Extra...)
	return nil
}

func (b backend) commit(ctx context.Context, dir string, step int64, d detail) error {
	if d.At == 0 {
		b.extra = nil // what has come is of a trainer that has died
	}
	if d.At != len(b.extra) {
		return status.New(status.Argument, "checkpoint: %d bytes of extra have come, and there were %d", len(b.extra), d.At)
	}
	more, err := json.Marshal(extra{d.Version, b.extra})
	b.extra = nil
	if err != nil {
		return err
	}
	if err := checkpoint.Commit(ctx, dir, step, d.Parts, more); err != nil {
		return err
	}
	// The cut is complete, also if the trainer dies before it hears of it.
	b.keepOutcome(outcomeOf(struct{}{}, nil))
	return nil
}

func (b backend) restore(ctx context.Context, dir string, step int64, take *taking) (told restored, err error) {
	if take == nil {
		take = &taking{Strict: true}
	}
	m, err := checkpoint.Open(dir, step)
	if err != nil {
		return told, err
	}
	var e extra
	if err := json.Unmarshal(m.Extra, &e); err != nil {
		return told, status.New(status.Argument, "checkpoint: the manifest of step %d in %s was not written by ps.save: %v", step, dir, err)
	}
	into, metas := map[string]*table.Table{}, map[string]server.Meta{}
	for _, t := range b.server.Tables() {
		if take.Tables == nil || slices.Contains(take.Tables, t.Name) {
			into[t.Name], metas[t.Name] = t.Table, t.Meta
		}
	}
	for _, name := range take.Tables {
		if take.Strict && into[name] == nil {
			return told, status.New(status.Argument, "ps_restore: tables names %q, which is not there now: declare it before", name)
		}
	}
	mine := func(name string, id int64) bool {
		meta, taken := metas[name]
		return taken && byOf(meta.By).Owner(id, b.server.Servers, meta.Offset) == b.server.Index
	}
	if err := m.Restore(ctx, mine, checkpoint.IntoTables(into, take.Tables, take.Strict)); err != nil {
		return told, err
	}
	b.server.SetVersion(e.Version)
	b.given = e.User
	told = restored{Step: m.Step, Tables: []string{}}
	for i := range m.Tables {
		if name := m.Tables[i].Name; into[name] != nil {
			b.server.RestoreLearningRate(name, m.Tables[i].LearningRate)
			told.Tables = append(told.Tables, name)
		}
	}
	for _, t := range into {
		if info, err := t.Info(); err == nil {
			told.Rows += info.Rows
		}
	}
	return told, nil
}

// The names of the ways to deal ids to servers.
var ways = []string{route.ByHash: "hash", route.ByModulo: "modulo"}

// byOf returns the way of a name; by hash if there is no such name.
func byOf(name string) route.By {
	return route.By(max(int(route.ByHash), slices.Index(ways, name)))
}
