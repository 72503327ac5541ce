package job

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/paddlempi/paddlempi/gocore/ps/checkpoint"
	"github.com/paddlempi/paddlempi/gocore/ps/master"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/status"
)

func (j *job) phase(ctx context.Context, from int, phase, dir string, step int64, d detail) (answer any, err error) {
	switch phase { // these wait for trainers, or end such waits
	case phaseBegin:
		return struct{}{}, j.server.Meet(ctx, from, dir, d.Asked)
	case phaseHold:
		return j.server.Hold(ctx, from)
	case phaseRelease:
		j.server.Release(from)
		return struct{}{}, nil
	case phaseMay:
		return struct{}{}, j.server.MayChange()
	case phaseChange:
		return j.changeMode(from, d.Mode)
	}
	// The others wait for each other, because one of a trainer that has died may be under way
	// still.
	j.cuts.Lock()
	defer j.cuts.Unlock()
	switch phase {
	case phaseWrite, phaseRestore:
		defer j.server.Release(from)
		if d.To == nil {
			return nil, status.New(status.Argument, "checkpoint: rank %d does not say to which point", from).WithRanks(from)
		}
		if err := j.server.Reach(ctx, from, *d.To); err != nil {
			return nil, err
		}
		if phase == phaseRestore {
			return j.restore(ctx, dir, step, d.Taking)
		}
		return j.write(ctx, dir, step, d.Again, func() { j.server.Release(from) })
	case phaseBehind:
		behind, err := checkpoint.Abandoned(dir, j.course.at(dir))
		return slices.ContainsFunc(behind, func(m checkpoint.Label) bool { return m.Step == step }), err
	case phaseAdd:
		return struct{}{}, j.add(from, d)
	case phaseCommit:
		return struct{}{}, j.commit(ctx, dir, step, d)
	case phaseExtra:
		return j.given, nil
	case phaseList:
		list, err := checkpoint.List(dir)
		return slices.Concat(list, []checkpoint.Listed{}), err
	case phaseVerify:
		damaged, err := j.verifier.Verify(ctx, dir, step, j.server.Index, j.server.Servers, d.Anew)
		if damaged != nil {
			return verified{damaged.Error()}, err
		}
		return verified{}, err
	case phaseRemove:
		checkpoint.Remove(dir, d.Steps)
		return struct{}{}, nil
	case phaseEnding:
		if d.Ending != nil {
			j.keepEnding(*d.Ending)
		}
		return j.told, nil
	}
	return nil, status.New(status.Argument, "checkpoint: rank %d asks for phase %q", from, phase)
}

// write writes the part of this server, whose updates are held until it calls copied.
func (j *job) write(ctx context.Context, dir string, step int64, again bool, copied func()) (part checkpoint.ServerPart, err error) {
	version := j.server.Version.Load()
	sources := make([]checkpoint.Source, 0)
	for _, t := range j.server.Tables.All() {
		config, err := describe(t.Meta)
		if err != nil {
			return part, err
		}
		source, err := checkpoint.FromTable(t.Name, config, t.Table, t.LearningRate)
		if err != nil {
			return part, err
		}
		sources = append(sources, source)
	}
	part, err = checkpoint.WritePart(ctx, dir, step, j.server.Index, j.server.Servers, sources, again, copied)
	part.Version = version
	return part, err
}

// keepEnding keeps how a call ended that one trainer has made for all. The caller holds cuts.
func (j *job) keepEnding(e ending) {
	e.Number = j.told.Number + 1
	j.told = e
}

// add takes a piece of what the next cut will have besides rows. The first piece begins anew. The
// caller holds cuts.
func (j *job) add(from int, d detail) error {
	if d.At == 0 {
		j.extra = nil
	}
	if d.At != len(j.extra) || len(d.Extra) > mostExtra+master.MostSnapshot-len(j.extra) {
		return status.New(status.Argument, "checkpoint: rank %d adds %d bytes at %d; %d have come, of at most %d", from, len(d.Extra), d.At, len(j.extra), mostExtra+master.MostSnapshot).WithRanks(from)
	}
	j.extra = append(j.extra, d.Extra...)
	return nil
}

func (j *job) commit(ctx context.Context, dir string, step int64, d detail) error {
	if d.At == 0 {
		j.extra = nil // what has come is of a trainer that has died
	}
	if d.At != len(j.extra) {
		return status.New(status.Argument, "checkpoint: %d bytes of extra have come, and there were %d", len(j.extra), d.At)
	}
	ofUser := len(j.extra) - d.Queues
	if ofUser < 0 || ofUser > len(j.extra) {
		return status.New(status.Argument, "checkpoint: %d bytes of queues are said to be in %d of extra", d.Queues, len(j.extra))
	}
	more, err := json.Marshal(extra{d.Version, j.extra[:ofUser], j.extra[ofUser:], float64(time.Now().UnixMilli()) / 1e3})
	j.extra = nil
	if err != nil {
		return err
	}
	if err := checkpoint.Commit(ctx, dir, step, d.Parts, more, j.course.at(dir)); err != nil {
		return err
	}
	if m, err := checkpoint.Open(dir, step); err == nil {
		j.goOn(dir, m)
	}
	// The cut is complete, also if the trainer dies before it hears of it.
	j.keepEnding(endingOf(struct{}{}, nil))
	return nil
}

func (j *job) restore(ctx context.Context, dir string, step int64, take *taking) (told restored, err error) {
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
	into, metas := map[string]checkpoint.Into{}, map[string]server.Meta{}
	for _, t := range j.server.Tables.All() {
		if take.Tables == nil || slices.Contains(take.Tables, t.Name) {
			config, err := describe(t.Meta)
			if err != nil {
				return told, err
			}
			into[t.Name], metas[t.Name] = checkpoint.Into{Table: t.Table, Config: config}, t.Meta
		}
	}
	for _, name := range take.Tables {
		if _, there := into[name]; take.Strict && !there {
			return told, status.New(status.Argument, "ps_restore: tables names %q, which is not there now: declare it before", name)
		}
	}
	mine := func(name string, id int64) bool {
		meta, taken := metas[name]
		return taken && byOf(meta.By).Owner(id, j.server.Servers, meta.Offset) == j.server.Index
	}
	if err := m.Restore(ctx, mine, checkpoint.IntoTables(into, take.Tables, take.Strict, j.server.Index, j.server.Servers)); err != nil {
		return told, err
	}
	j.server.Version.Store(e.Version)
	j.server.Tables.ForgetBackups()
	j.given = e.User
	if take.Tables == nil { // else the job does not go on from this cut
		j.goOn(dir, m)
	}
	told = restored{Step: m.Step, Time: e.Time, Tables: []string{}}
	if j.server.Index == 0 {
		told.Queues = e.Queues
	}
	for i := range m.Tables {
		name := m.Tables[i].Name
		if _, taken := into[name]; taken {
			j.server.Tables.RestoreLearningRate(name, m.Tables[i].LearningRate)
			told.Tables = append(told.Tables, name)
		}
	}
	for _, t := range into {
		if info, err := t.Info(); err == nil {
			told.Rows += info.Rows
		}
	}
	told.Rates = j.rates()
	return told, nil
}

// The names of the ways to deal ids to servers.
var ways = []string{route.ByHash: "hash", route.ByModulo: "modulo"}

// byOf returns the way of a name; by hash if there is no such name.
func byOf(name string) route.By {
	return route.By(max(int(route.ByHash), slices.Index(ways, name)))
}
