package job

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/checkpoint"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// The phases of a checkpoint that a trainer asks servers for.
const (
	phaseBegin   = "begin"   // all trainers have come, and ask for the same: the first server
	phaseBehind  = "behind"  // the first server says whether a new cut supersedes that of its step
	phaseHold    = "hold"    // every server holds updates, and says how far it has come
	phaseWrite   = "write"   // every server comes to the same point, writes its part, and goes on
	phaseRestore = "restore" // every server comes to the same point, reads its rows, and goes on
	phaseRelease = "release" // every server goes on, because the trainer that has held it fails
	phaseAdd     = "add"     // the first server takes a piece of what the cut will have besides rows
	phaseCommit  = "commit"  // the first server makes the cut complete
	phaseExtra   = "extra"   // the first server tells what the restored cut has besides rows
	phaseList    = "list"    // the first server says which cuts there are
	phaseVerify  = "verify"  // every server reads its share of a cut
	phaseRemove  = "remove"  // the first server removes cuts
	phaseQueues  = "queues"  // the master tells its queues
	phaseRefill  = "refill"  // the master takes a piece of queues
	phaseDeal    = "deal"    // the master begins with the queues that came
	phaseEnding  = "ending"  // the first server keeps, or tells, the last ending
	phasePiece   = "piece"   // every server, or the master, keeps a piece of what will travel with a phase
	phaseMay     = "may"     // every server says whether the mode may change now
	phaseChange  = "change"  // every server changes it
)

// detail is what travels with a phase.
type detail struct {
	Asked   string                  `json:"asked,omitempty"`   // begin: for what
	To      *server.Point           `json:"to,omitempty"`      // write, restore: where all come to
	Parts   []checkpoint.ServerPart `json:"parts,omitempty"`   // commit
	Version int64                   `json:"version,omitempty"` // commit: updates of the first server
	Extra   []byte                  `json:"extra,omitempty"`   // add, refill: a piece
	At      int                     `json:"at,omitempty"`      // add, refill: where it begins; commit, deal: the end
	Queues  int                     `json:"queues,omitempty"`  // commit: how many bytes at the end are queues
	Anew    bool                    `json:"anew,omitempty"`    // verify: even if it was read before
	Steps   []int64                 `json:"steps,omitempty"`   // remove
	Ending  *ending                 `json:"ending,omitempty"`  // ending; nil: tell it
	Taking  *taking                 `json:"taking,omitempty"`  // restore
	Again   bool                    `json:"again,omitempty"`   // write: the cut of this step is superseded
	Mode    *mode                   `json:"mode,omitempty"`    // change
	For     string                  `json:"for,omitempty"`     // piece: of which phase; At and Extra have it
	Pieces  int                     `json:"pieces,omitempty"`  // the detail has come in pieces, of so many bytes
}

// verified is what a server tells of its share of a cut.
type verified struct {
	Damaged string `json:"damaged"` // "": nothing is
}

// extra is what a cut has besides rows.
type extra struct {
	Version int64  `json:"version"` // updates that the servers had applied
	User    []byte `json:"user"`    // of the first trainer
	Queues  []byte `json:"queues"`  // of the master; nil: there was none, or it had none
	// Time is when the cut was made complete, in seconds since 1970 by the clock of the first
	// server; 0: a version wrote it that did not note it.
	Time float64 `json:"time"`
}

const (
	// mostExtra is the most bytes that a trainer adds to a cut: the manifest holds them.
	mostExtra = 8 << 20
	// extraPiece is how much of that travels in a request, well below admin.DefaultLimit.
	extraPiece = 128 << 10
)

// checkpoints asks the servers for phases that concern a directory.
type checkpoints struct {
	job *job
	dir string
}

// ask takes a server through a phase.
func (k checkpoints) ask(ctx context.Context, i int, phase string, step int64, d detail, into any) error {
	return k.askOf(ctx, k.job.admins[i], phase, step, d, into)
}

// askOf takes a server or the master through a phase.
func (k checkpoints) askOf(ctx context.Context, of *admin.Client, phase string, step int64, d detail, into any) error {
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if text, err = k.sendPieces(ctx, of, phase, step, text); err != nil {
		return err
	}
	report, err := of.Checkpoint(ctx, k.job.group.Rank, phase, k.dir, step, text)
	if err != nil || into == nil {
		return err
	}
	return parseReport(report, into)
}

// first takes the first server through a phase.
func (k checkpoints) first(phase string, step int64, d detail, into any) error {
	return k.job.call(func(ctx context.Context) error { return k.ask(ctx, 0, phase, step, d, into) })
}

// whileHeld holds the updates of all servers, and takes them through a phase at the point that they
// all come to.
func (k checkpoints) whileHeld(phase string, step int64, d detail, into func(server int) any) (err error) {
	points := make([]server.Point, len(k.job.admins))
	defer func() {
		if err != nil {
			k.release()
		}
	}()
	if err := k.job.each(func(ctx context.Context, i int, _ *admin.Client) error {
		return k.ask(ctx, i, phaseHold, step, detail{}, &points[i])
	}); err != nil {
		return err
	}
	to := points[0]
	for _, p := range points[1:] {
		if to, err = to.Join(p); err != nil {
			return err
		}
	}
	d.To = &to
	return k.job.each(func(ctx context.Context, i int, _ *admin.Client) error {
		return k.ask(ctx, i, phase, step, d, into(i))
	})
}

// release ends the holds of this trainer. A server that does not hear of it ends its hold by
// itself.
func (k checkpoints) release() {
	ctx, cancel := context.WithTimeout(context.Background(), lastAnswer)
	defer cancel()
	var all sync.WaitGroup
	for i := range k.job.admins {
		all.Add(1)
		go func() {
			defer all.Done()
			_ = k.ask(ctx, i, phaseRelease, 0, detail{}, nil)
		}()
	}
	all.Wait()
}

// verify has the servers read a cut, each a share of it. damaged says that it is not whole.
func (k checkpoints) verify(step int64, anew bool) (damaged, err error) {
	found := make([]verified, len(k.job.admins))
	err = k.job.each(func(ctx context.Context, i int, _ *admin.Client) error {
		return k.ask(ctx, i, phaseVerify, step, detail{Anew: anew}, &found[i])
	})
	for _, f := range found {
		if f.Damaged != "" {
			return status.New(status.Argument, "%s", f.Damaged), err
		}
	}
	return nil, err
}

// save writes a cut of all tables. All trainers that have not completed call it.
func (p *Process) save(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Dir   string `json:"dir"`
		Step  int64  `json:"step"`
		Keep  int    `json:"keep"`
		Extra []byte `json:"extra"`
	}
	if err := method.Parse("ps_save", request, &r); err != nil {
		return nil, err
	}
	j, err := p.trainer("ps_save")
	if err != nil {
		return nil, err
	}
	return j.together("ps_save", fmt.Sprintf("step %d in %s with keep=%d", r.Step, filepath.Clean(r.Dir), r.Keep), func() (any, error) {
		if r.Keep < 0 {
			return nil, status.New(status.Argument, "ps_save: keep=%d is below 0", r.Keep)
		}
		if len(r.Extra) > mostExtra {
			return nil, status.New(status.Argument, "ps_save: extra has %d bytes, and a cut takes %d; write more into files of your own, and their names into extra", len(r.Extra), mostExtra)
		}
		return struct{}{}, checkpoints{j, r.Dir}.save(r.Step, r.Keep, r.Extra)
	})
}

func (k checkpoints) save(step int64, keep int, more []byte) error {
	wrote := make([]checkpoint.ServerPart, len(k.job.admins))
	var again bool
	if err := k.first(phaseBehind, step, detail{}, &again); err != nil {
		return err
	}
	if err := k.whileHeld(phaseWrite, step, detail{Again: again}, func(i int) any { return &wrote[i] }); err != nil {
		return err
	}
	queues, err := k.saveQueues(step) // all trainers wait for this one, so none takes or ends a shard
	if err != nil {
		return err
	}
	more = slices.Concat(more, queues)
	for at := 0; at < len(more); at += extraPiece {
		if err := k.first(phaseAdd, step, detail{At: at, Extra: more[at:min(at+extraPiece, len(more))]}, nil); err != nil {
			return err
		}
	}
	d := detail{Version: wrote[0].Version, Parts: wrote, At: len(more), Queues: len(queues)}
	if err := k.first(phaseCommit, step, d, nil); err != nil {
		return err
	}
	var list []checkpoint.Listed
	if err := k.first(phaseList, step, detail{}, &list); err != nil {
		return err
	}
	old, err := checkpoint.Superfluous(list, step, keep, func(step int64) (error, error) { return k.verify(step, false) })
	if err == nil && len(old) > 0 {
		err = k.first(phaseRemove, step, detail{Steps: old}, nil)
	}
	return err
}

// together lets the first trainer that has not completed do something for all, while the others
// wait. All get its answer, in JSON, or its error. If they do not all ask for the same, nothing is
// done, and all get an error. If that trainer dies before it has told how it went, and the servers
// go on without it, the next one does it.
func (j *job) together(name, asked string, lead func() (any, error)) (answer any, err error) {
	k := checkpoints{j, name}
	var before ending
	if err = k.first(phaseEnding, 0, detail{}, &before); err == nil {
		err = k.first(phaseBegin, 0, detail{Asked: asked}, nil)
	}
	for err == nil {
		var leads bool
		if leads, err = j.leads(); err != nil {
			break
		}
		if leads {
			answer, err = lead()
			told := endingOf(answer, err)
			if missing := k.first(phaseEnding, 0, detail{Ending: &told}, nil); err == nil {
				err = missing
			}
		}
		missing := j.call(func(ctx context.Context) error { return j.admins[0].Barrier(ctx, j.group.Rank, name+" ends") })
		if err == nil {
			err = missing
		}
		if err != nil || leads {
			break
		}
		var told ending
		if err = k.first(phaseEnding, 0, detail{}, &told); err == nil && told.Number > before.Number {
			return told.of()
		}
	}
	return answer, err
}

// ending is how a call ended that one trainer has made for all. The first server keeps the last one
// for the others.
type ending struct {
	Number  int64           `json:"number"` // of those that this server was told; 0: none
	Answer  json.RawMessage `json:"answer"` // if there is no error
	Code    status.Code     `json:"code"`
	Message string          `json:"message"`
	Ranks   []int           `json:"ranks"`
}

// endingOf returns how a call has ended.
func endingOf(answer any, err error) (told ending) {
	var e *status.Error
	switch {
	case errors.As(err, &e):
		told.Code, told.Message, told.Ranks = e.Code, e.Msg, e.Ranks
	case err != nil:
		told.Code, told.Message = status.CodeOf(err), err.Error()
	default:
		told.Answer, _ = json.Marshal(answer) // it is plain data
	}
	return told
}

// of returns what the other trainers get.
func (e ending) of() (answer any, err error) {
	if e.Code != status.OK {
		return nil, status.New(e.Code, "%s", e.Message).WithRanks(e.Ranks...)
	}
	return e.Answer, nil
}

// leads tells whether this is the first trainer that is active.
func (j *job) leads() (bool, error) {
	var s admin.Report
	err := j.call(func(ctx context.Context) error {
		b, err := j.admins[0].Statistics(ctx)
		if err != nil {
			return err
		}
		return parseReport(b, &s)
	})
	for _, t := range s.Trainers {
		if !t.Completed {
			return t.Rank == j.group.Rank, err
		}
	}
	return false, err
}

// describe returns what a part says of a table, in JSON: package checkpoint reads it.
func describe(m server.Meta) ([]byte, error) {
	var dims *[]int64 // of a scalar parameter they are [], and of a table they are not there
	if m.Kind == admin.Dense {
		dims = &m.Dims
	}
	return json.Marshal(struct {
		table.Config
		Kind   string   `json:"kind"`
		Dims   *[]int64 `json:"dims,omitempty"`
		Layout string   `json:"layout,omitempty"`
	}{m.Config, m.Kind, dims, m.Layout})
}

// restored is what a restore tells.
type restored struct {
	Step    int64               `json:"step"`
	Time    float64             `json:"time"`             // when the cut was made; 0: it does not say
	Extra   []byte              `json:"extra"`            // of the first trainer; each trainer asks for it itself
	Rows    int64               `json:"rows"`             // of all servers
	Skipped []checkpoint.Listed `json:"skipped"`          // newer cuts, the newest first
	Tables  []string            `json:"tables"`           // the names of those that were read, in order
	Tasks   []string            `json:"tasks"`            // the names of the data sets whose queues were read
	Queues  []byte              `json:"queues,omitempty"` // of the cut; the first server tells them who leads
	Rates   rates               `json:"rates,omitempty"`  // of the tables now; the program is not told
}

// taking says which tables of a cut a restore reads.
type taking struct {
	Tables []string `json:"tables"` // their names; nil: all
	Strict bool     `json:"strict"` // a table that only the cut has, or lacks, is an error
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

// restore reads a complete cut into the tables that were declared. All trainers that have not
// completed call it.
func (p *Process) restore(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Dir  string `json:"dir"`
		Step *int64 `json:"step"` // nil: the newest cut
		taking
	}
	r.Strict = true
	if err := method.Parse("ps_restore", request, &r); err != nil {
		return nil, err
	}
	j, err := p.trainer("ps_restore")
	if err != nil {
		return nil, err
	}
	asked := "the newest cut"
	if r.Step != nil {
		asked = fmt.Sprintf("step %d", *r.Step)
	}
	answer, err := j.together("ps_restore", asked+" in "+filepath.Clean(r.Dir)+r.taking.String(), func() (any, error) {
		k := checkpoints{j, r.Dir}
		step, skipped, err := k.choose(r.Step)
		if err != nil {
			return nil, err
		}
		total, err := k.restore(step, r.taking)
		if err == nil {
			total.Tasks, err = k.giveQueues(step, total.Queues, r.taking)
		}
		total.Queues = nil
		total.Skipped = append([]checkpoint.Listed{}, skipped...)
		return total, err
	})
	j.client.Removed() // whether it has ended well or not
	if err != nil {
		return nil, err
	}
	told, err := checkpoints{j, r.Dir}.withExtra(answer)
	if err == nil && j.mode.Load().Name == modeGeo {
		j.client.SetRates(told.Rates)
	}
	told.Rates = nil
	return told, err
}

// withExtra returns the answer of a restore, with what the cut has besides rows.
func (k checkpoints) withExtra(answer any) (told restored, err error) {
	switch a := answer.(type) {
	case restored:
		told = a
	case json.RawMessage: // of the trainer that has made the call
		if err := parseReport(a, &told); err != nil {
			return told, err
		}
	}
	err = k.first(phaseExtra, told.Step, detail{}, &told.Extra)
	return told, err
}

// choose returns the step of the cut that is restored, which the servers have read whole, and which
// newer ones are not whole.
func (k checkpoints) choose(step *int64) (int64, []checkpoint.Listed, error) {
	if step != nil {
		if *step < 0 {
			return 0, nil, status.New(status.Argument, "ps_restore: step=%d is below 0", *step)
		}
		damaged, err := k.verify(*step, true)
		return *step, nil, cmp.Or(err, damaged)
	}
	var list []checkpoint.Listed
	if err := k.first(phaseList, 0, detail{}, &list); err != nil {
		return 0, nil, err
	}
	newest, skipped, err := checkpoint.NewestWhole(k.dir, list, func(step int64) (error, error) { return k.verify(step, true) })
	if err == nil && newest < 0 {
		err = status.New(status.Argument, "ps_restore: there is no complete cut in %s", k.dir)
	}
	return newest, skipped, err
}

func (k checkpoints) restore(step int64, what taking) (total restored, err error) {
	all := make([]restored, len(k.job.admins))
	err = k.whileHeld(phaseRestore, step, detail{Taking: &what}, func(i int) any { return &all[i] })
	total = all[0]
	for _, other := range all[1:] {
		total.Rows += other.Rows
	}
	return total, err
}

// giveQueues has the master take over the queues of a cut, unless some tables are chosen.
func (k checkpoints) giveQueues(step int64, queues []byte, what taking) (names []string, err error) {
	switch {
	case what.Tables != nil:
		return []string{}, nil
	case k.job.tasks != nil:
		names, err = k.restoreQueues(step, queues)
	case len(queues) > 0 && what.Strict:
		err = status.New(status.Argument, "ps_restore: the cut of step %d has queues of ps.tasks, and no rank is a master; "+
			"with strict=False they are left out. The tables are those of the cut", step)
	}
	return append([]string{}, names...), err
}

// latest returns the step of the newest cut that the first server sees; {} if nothing is saved. A
// trainer need not see the folder. It waits for no other trainer.
func (p *Process) latest(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Dir string `json:"dir"`
	}
	if err := method.Parse("ps_latest", request, &r); err != nil {
		return nil, err
	}
	j, err := p.trainer("ps_latest")
	if err != nil {
		return nil, err
	}
	var list []checkpoint.Listed
	if err := (checkpoints{j, r.Dir}).first(phaseList, 0, detail{}, &list); err != nil {
		return nil, err
	}
	bySizes := func(int64) (damaged, err error) { return nil, nil }
	step, _, err := checkpoint.NewestWhole(r.Dir, list, bySizes)
	if err != nil || step < 0 {
		return struct{}{}, err
	}
	return map[string]int64{"step": step}, nil
}
