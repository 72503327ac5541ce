package gocore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/checkpoint"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// The phases of a checkpoint that a trainer asks servers for.
const (
	phaseWrite   = "write"   // every server writes its part
	phaseCommit  = "commit"  // the first server makes the cut complete
	phaseOutcome = "outcome" // the first server keeps, or tells, how the last call ended that one trainer made for all
	phaseRestore = "restore" // every server reads the rows that are its own
	phaseLatest  = "latest"  // the first server looks which cut is the newest
)

// cut is what travels with a phase.
type cut struct {
	Parts []checkpoint.Part `json:"parts,omitempty"` // commit
	Keep  int               `json:"keep,omitempty"`  // commit: how many complete cuts stay
	Extra []byte            `json:"extra,omitempty"` // commit: what the first trainer adds
}

// extra is what a cut has besides rows.
type extra struct {
	Version int64  `json:"version"` // updates that the servers had applied
	User    []byte `json:"user"`    // of the first trainer
}

// controlPSSave writes a cut of all tables. All trainers that have not completed call it.
func controlPSSave(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Dir   string `json:"dir"`
		Step  int64  `json:"step"`
		Keep  int    `json:"keep"`
		Extra []byte `json:"extra"`
	}
	if err := parse("ps_save", request, &r); err != nil {
		return nil, err
	}
	j, err := psTrainer("ps_save")
	if err != nil {
		return nil, err
	}
	return j.together("ps_save", stepOf(r.Step), func() (any, error) {
		parts := make([]checkpoint.Part, len(j.admins))
		err := j.each(func(ctx context.Context, i int, c *admin.Client) error {
			report, err := c.Checkpoint(ctx, j.group.Rank, phaseWrite, r.Dir, r.Step, nil)
			if err != nil {
				return err
			}
			return parseReport(report, i, &parts[i])
		})
		if err == nil {
			detail, _ := json.Marshal(cut{parts, r.Keep, r.Extra})
			err = j.call(func(ctx context.Context) error {
				_, err := j.admins[0].Checkpoint(ctx, j.group.Rank, phaseCommit, r.Dir, r.Step, detail)
				return err
			})
		}
		return struct{}{}, err
	})
}

// stepOf says what is asked for.
func stepOf(step int64) string { return fmt.Sprintf("step %d", step) }

func parseReport(report []byte, server int, into any) error {
	if err := json.Unmarshal(report, into); err != nil {
		return status.New(status.Argument, "server %d reports what is no report of a checkpoint: %v", server, err)
	}
	return nil
}

// outcome is how a call ended that one trainer has made for all. The first server keeps the last one for the others.
type outcome struct {
	Number  int64           `json:"number"` // of those that this server was told; 0: none
	Asked   string          `json:"asked"`  // what the call was to do
	Answer  json.RawMessage `json:"answer"` // if there is no error
	Code    status.Code     `json:"code"`
	Message string          `json:"message"`
	Ranks   []int           `json:"ranks"`
}

// together lets the first trainer that has not completed do something for all, while the others wait. All get its
// answer, in JSON, or its error; one that asks for something else gets an error of its own. If that trainer dies before
// it has told how it went, and the servers go on without it, the next one does it.
func (j *psJob) together(name, asked string, first func() (any, error)) (answer any, err error) {
	meet := func(when string) error {
		return j.call(func(ctx context.Context) error { return j.admins[0].Barrier(ctx, j.group.Rank, name+" "+when) })
	}
	before, err := j.hearOutcome(name)
	if err == nil {
		err = meet("begins")
	}
	for err == nil {
		var leads bool
		if leads, err = j.leads(); err != nil {
			break
		}
		if leads {
			answer, err = first()
			if told := j.tellOutcome(name, outcome{Asked: asked}, answer, err); err == nil {
				err = told
			}
		}
		if missing := meet("ends"); err == nil {
			err = missing
		}
		if err != nil || leads {
			break
		}
		var told outcome
		if told, err = j.hearOutcome(name); err == nil && told.Number > before.Number {
			return told.of(name, asked, j.group.Ranks[j.group.Rank])
		}
	}
	return answer, err
}

// tellOutcome tells the first server how a call of this trainer has ended.
func (j *psJob) tellOutcome(name string, told outcome, answer any, err error) error {
	var e *status.Error
	switch {
	case errors.As(err, &e):
		told.Code, told.Message, told.Ranks = e.Code, e.Msg, e.Ranks
	case err != nil:
		told.Code, told.Message = status.CodeOf(err), err.Error()
	default:
		told.Answer, _ = json.Marshal(answer) // it is plain data
	}
	detail, _ := json.Marshal(told)
	return j.call(func(ctx context.Context) error {
		_, err := j.admins[0].Checkpoint(ctx, j.group.Rank, phaseOutcome, name, 0, detail)
		return err
	})
}

// hearOutcome returns what the first server was told last.
func (j *psJob) hearOutcome(name string) (told outcome, err error) {
	err = j.call(func(ctx context.Context) error {
		report, err := j.admins[0].Checkpoint(ctx, j.group.Rank, phaseOutcome, name, 0, nil)
		if err != nil {
			return err
		}
		return parseReport(report, 0, &told)
	})
	return told, err
}

// of returns what a trainer gets that has asked for something.
func (o outcome) of(name, asked string, rank int) (answer any, err error) {
	switch {
	case o.Asked != asked:
		return nil, status.New(status.Mismatch, "%s: rank %d asks for %s, and the first trainer for %s, which was done: give the same on all trainers",
			name, rank, asked, o.Asked).WithRanks(rank)
	case o.Code != status.OK:
		return nil, status.New(o.Code, "%s", o.Message).WithRanks(o.Ranks...)
	}
	return o.Answer, nil
}

// leads tells whether this is the first trainer that is active.
func (j *psJob) leads() (bool, error) {
	var s admin.Report
	err := j.call(func(ctx context.Context) error {
		b, err := j.admins[0].Statistics(ctx)
		if err != nil {
			return err
		}
		return parseReport(b, 0, &s)
	})
	for _, t := range s.Trainers {
		if !t.Completed {
			return t.Rank == j.group.Rank, err
		}
	}
	return false, err
}

// described is what a part says of a table.
type described struct {
	table.Config
	Kind string  `json:"kind"`
	Dims []int64 `json:"dims,omitempty"`
}

// restored is what a restore tells.
type restored struct {
	Step  int64  `json:"step"`
	Extra []byte `json:"extra"` // what the first trainer added to the cut
	Rows  int64  `json:"rows"`  // of all servers
	// Tables are the names of the tables that were read, in order.
	Tables []string `json:"tables"`
}

// taking says which tables of a cut a restore reads.
type taking struct {
	Tables []string `json:"tables"` // their names; nil: all
	Strict bool     `json:"strict"` // a table that only the cut has, or that it does not have, is an error
}

func (t taking) String() string {
	text := ""
	if t.Tables != nil {
		text = fmt.Sprintf(" of tables %q", t.Tables)
	}
	if !t.Strict {
		text += " with strict=False"
	}
	return text
}

// controlPSRestore reads a complete cut into the tables that were declared. All trainers that have not completed
// call it.
func controlPSRestore(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Dir  string `json:"dir"`
		Step *int64 `json:"step"` // nil: the newest cut
		taking
	}
	r.Strict = true
	if err := parse("ps_restore", request, &r); err != nil {
		return nil, err
	}
	j, err := psTrainer("ps_restore")
	if err != nil {
		return nil, err
	}
	asked := "the newest cut"
	if r.Step != nil {
		asked = stepOf(*r.Step)
	}
	detail, _ := json.Marshal(r.taking)
	return j.together("ps_restore", asked+r.taking.String(), func() (any, error) {
		m, err := openCut(r.Dir, r.Step)
		if err != nil {
			return nil, err
		}
		all := make([]restored, len(j.admins))
		err = j.each(func(ctx context.Context, i int, c *admin.Client) error {
			report, err := c.Checkpoint(ctx, j.group.Rank, phaseRestore, r.Dir, m.Step, detail)
			if err != nil {
				return err
			}
			return parseReport(report, i, &all[i])
		})
		total := all[0]
		for _, other := range all[1:] {
			total.Rows += other.Rows
		}
		return total, err
	})
}

func openCut(dir string, step *int64) (*checkpoint.Manifest, error) {
	if step != nil {
		return checkpoint.Open(dir, *step)
	}
	m, err := checkpoint.Latest(dir)
	if err == nil && m == nil {
		err = status.New(status.Argument, "ps_restore: there is no complete cut in %s", dir)
	}
	return m, err
}

// controlPSLatest returns the step of the newest cut that the first server sees; {} if nothing is saved. A trainer need
// not see the folder. It waits for no other trainer.
func controlPSLatest(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Dir string `json:"dir"`
	}
	if err := parse("ps_latest", request, &r); err != nil {
		return nil, err
	}
	j, err := psTrainer("ps_latest")
	if err != nil {
		return nil, err
	}
	var answer json.RawMessage
	err = j.call(func(ctx context.Context) error {
		report, err := j.admins[0].Checkpoint(ctx, j.group.Rank, phaseLatest, r.Dir, 0, nil)
		if err != nil {
			return err
		}
		return parseReport(report, 0, &answer)
	})
	return answer, err
}

// latest tells the step of the newest cut of a folder; nothing if it has no complete one.
func latest(dir string) ([]byte, error) {
	m, err := checkpoint.Latest(dir)
	if err != nil || m == nil {
		return []byte("{}"), err
	}
	return json.Marshal(map[string]int64{"step": m.Step})
}

// Checkpoint carries out a phase on a server, until ctx is done: the trainer that asked has given up. Phases wait for
// each other, because one of a trainer that has died may be under way still.
func (b backend) Checkpoint(ctx context.Context, from int, phase, dir string, step int64, detail []byte) (report []byte, err error) {
	b.cuts.Lock()
	defer b.cuts.Unlock()
	switch phase {
	case phaseWrite:
		sources := make([]checkpoint.Source, 0)
		for _, t := range b.server.Tables() {
			config, err := json.Marshal(described{t.Config, t.Kind, t.Dims})
			if err != nil {
				return nil, err
			}
			source, err := checkpoint.FromTable(t.Name, config, t.Table)
			if err != nil {
				return nil, err
			}
			sources = append(sources, source)
		}
		part, err := checkpoint.WritePart(ctx, dir, step, b.server.Index, b.server.Servers, sources)
		if err != nil {
			return nil, err
		}
		return json.Marshal(part)
	case phaseCommit:
		return b.commit(ctx, dir, step, detail)
	case phaseRestore:
		return b.restore(ctx, dir, step, detail)
	case phaseLatest:
		return latest(dir)
	case phaseOutcome:
		if len(detail) > 0 {
			var told outcome
			if err := json.Unmarshal(detail, &told); err != nil {
				return nil, status.New(status.Argument, "checkpoint: rank %d tells what is no outcome: %v", from, err).WithRanks(from)
			}
			b.keepOutcome(told)
		}
		return json.Marshal(b.told)
	}
	return nil, status.New(status.Argument, "checkpoint: rank %d asks for phase %q", from, phase)
}

// keepOutcome keeps how a call ended that one trainer has made for all. The caller holds cuts.
func (b backend) keepOutcome(o outcome) {
	o.Number = b.told.Number + 1
	b.told = o
}

func (b backend) commit(ctx context.Context, dir string, step int64, detail []byte) ([]byte, error) {
	var c cut
	if err := json.Unmarshal(detail, &c); err != nil {
		return nil, status.New(status.Argument, "checkpoint: the parts to commit are not what servers report: %v", err)
	}
	more, err := json.Marshal(extra{b.server.Version(), c.Extra})
	if err != nil {
		return nil, err
	}
	if err := checkpoint.Commit(ctx, dir, step, c.Parts, more, c.Keep); err != nil {
		return nil, err
	}
	// The cut is complete, also if the trainer dies before it hears of it.
	b.keepOutcome(outcome{Asked: stepOf(step), Answer: json.RawMessage("{}")})
	return []byte("{}"), nil
}

func (b backend) restore(ctx context.Context, dir string, step int64, detail []byte) ([]byte, error) {
	take := taking{Strict: true}
	if len(detail) > 0 {
		if err := json.Unmarshal(detail, &take); err != nil {
			return nil, status.New(status.Argument, "checkpoint: what to restore is not what trainers ask for: %v", err)
		}
	}
	m, err := checkpoint.Open(dir, step)
	if err != nil {
		return nil, err
	}
	var e extra
	if err := json.Unmarshal(m.Extra, &e); err != nil {
		return nil, status.New(status.Argument, "checkpoint: the manifest of step %d in %s was not written by ps.save: %v", step, dir, err)
	}
	into, metas := map[string]*table.Table{}, map[string]server.Meta{}
	for _, t := range b.server.Tables() {
		if take.Tables == nil || slices.Contains(take.Tables, t.Name) {
			into[t.Name], metas[t.Name] = t.Table, t.Meta
		}
	}
	for _, name := range take.Tables {
		if take.Strict && into[name] == nil {
			return nil, status.New(status.Argument, "ps_restore: tables names %q, which is not there now: declare it before", name)
		}
	}
	mine := func(name string, id int64) bool {
		meta, taken := metas[name]
		return taken && byOf(meta.By).Owner(id, b.server.Servers, meta.Offset) == b.server.Index
	}
	if err := m.Restore(ctx, mine, checkpoint.IntoSomeTables(into, take.Tables, take.Strict)); err != nil {
		return nil, err
	}
	b.server.SetVersion(e.Version)
	told := restored{Step: m.Step, Extra: e.User, Tables: []string{}}
	for _, t := range m.Tables {
		if into[t.Name] != nil {
			told.Tables = append(told.Tables, t.Name)
		}
	}
	for _, t := range into {
		if info, err := t.Info(); err == nil {
			told.Rows += info.Rows
		}
	}
	return json.Marshal(told)
}

// The names of the ways to deal ids to servers.
var ways = []string{route.ByHash: "hash", route.ByModulo: "modulo"}

// byOf returns the way of a name; by hash if there is no such name.
func byOf(name string) route.By {
	return route.By(max(int(route.ByHash), slices.Index(ways, name)))
}
