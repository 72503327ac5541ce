package job

import (
	"context"
	"encoding/json"
	"math"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// The modes: when servers apply what trainers push.
const (
	modeSync  = "sync"  // a step of all trainers at once
	modeAsync = "async" // each push as it comes
	modeSSP   = "ssp"   // the same, and trainers that are far ahead wait
	// modeHalfAsync is modeAsync to servers: trainers merge their pushes.
	modeHalfAsync = "half_async"
	// modeGeo is modeAsync to servers: trainers push into copies, and exchange them.
	modeGeo = "geo"
	modeDC  = "dc_asgd" // modeAsync, with gradients compensated for their delay
)

var modes = []string{modeSync, modeAsync, modeSSP, modeHalfAsync, modeGeo, modeDC}

// mode says how a job trains. It is a part of the request of ps_init.
type mode struct {
	Name    string  `json:"mode"`
	Slack   int64   `json:"staleness"`    // of ssp
	GeoStep int64   `json:"geo_step"`     // of geo: pushes between two exchanges
	Lambda  float64 `json:"compensation"` // of dc_asgd
	Decay   float64 `json:"mean_square"`  // of dc_asgd: of a mean of squares; 0: compensation is constant
	Backups int64   `json:"backup_rows"`  // of dc_asgd: for each trainer and sparse table
}

// check returns an error about what is wrong, for a method.
func (m *mode) check(method string) error {
	switch {
	case !slices.Contains(modes, m.Name):
		return status.New(status.Argument, "%s: mode=%q is none of %q", method, m.Name, modes)
	case m.Name == modeSSP && (m.Slack < 0 || m.Slack > 1<<30):
		return status.New(status.Argument, "%s: staleness=%d; it is from 0 to %d steps", method, m.Slack, 1<<30)
	case m.Name == modeGeo && m.GeoStep < 1:
		return status.New(status.Argument, "%s: geo_step=%d is below 1", method, m.GeoStep)
	case m.Name == modeDC && !(m.Lambda > 0 && m.Lambda <= math.MaxFloat32):
		return status.New(status.Argument, "%s: compensation=%v is no finite number above 0", method, m.Lambda)
	case m.Name == modeDC && !(m.Decay >= 0 && m.Decay < 1):
		return status.New(status.Argument, "%s: mean_square=%v is not from 0 to below 1", method, m.Decay)
	case m.Name == modeDC && m.Backups < 1:
		return status.New(status.Argument, "%s: backup_rows=%d is below 1", method, m.Backups)
	}
	return nil
}

// rule returns what servers do.
func (m *mode) rule() server.Rule {
	r := server.Rule{Mode: m.Name, Sync: m.Name == modeSync, Bounded: m.Name == modeSSP, Slack: m.Slack}
	if m.Name == modeDC {
		r.Lambda, r.Decay, r.Backups = m.Lambda, m.Decay, m.Backups
	}
	return r
}

// follow has this trainer do what the mode asks of trainers.
func (j *job) follow(m *mode, of rates) {
	j.mode.Store(m)
	geoStep := int64(0)
	if m.Name == modeGeo {
		geoStep = m.GeoStep
	}
	j.client.SetGeo(geoStep, len(j.trainers))
	j.client.SetRates(of)
	j.client.Follow(m.Name == modeSync && len(j.trainers) > 1)
}

// setMode changes the mode. All trainers that have not completed call it, between the same two
// steps; what they have pushed is on the servers. One that refuses makes all fail.
func (p *Process) setMode(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		mode
		Asked   string `json:"asked"`   // the mode with all its numbers, also those of trainers only
		Refused string `json:"refused"` // why this trainer does not want it; "": it does
	}
	if err := method.Parse("ps_set_mode", request, &r); err != nil {
		return nil, err
	}
	j, err := p.trainer("ps_set_mode")
	if err != nil {
		return nil, err
	}
	var mistake error
	if r.Refused == "" {
		if mistake = r.mode.check("ps_set_mode"); mistake == nil {
			mistake = p.fitMode(j, &r.mode)
		}
		if mistake != nil {
			r.Refused = mistake.Error()
		}
	}
	asked := r.Asked
	if r.Refused != "" {
		asked = "no mode, for its own reason (" + r.Refused + ")"
	}
	answer, err := j.together("ps_set_mode", asked, func() (any, error) {
		if r.Refused != "" {
			return nil, status.New(status.Argument, "ps_set_mode: all trainers refuse it: %s", r.Refused)
		}
		return j.change(&r.mode)
	})
	switch {
	case mistake != nil:
		return nil, mistake
	case err != nil:
		return nil, err
	}
	of, told := answer.(rates)
	if !told { // by the trainer that has made the call
		text, _ := answer.(json.RawMessage)
		if err := parseReport(text, &of); err != nil {
			return nil, err
		}
	}
	j.follow(&r.mode, of)
	return struct{}{}, nil
}

// rates are the learning rates that ps_learning_rate has set, by the names of tables. The servers
// know them; in mode geo the trainers need them.
type rates map[string]float64

// rates returns those of this server.
func (j *job) rates() rates {
	of := rates{}
	for _, t := range j.server.Tables.All() {
		if t.LearningRate != nil {
			of[t.Name] = *t.LearningRate
		}
	}
	return of
}

// change has all servers change the mode, or none.
func (j *job) change(m *mode) (of rates, err error) {
	k := checkpoints{j, "ps_set_mode"}
	all := make([]rates, len(j.admins))
	for _, phase := range []string{phaseMay, phaseChange} {
		if err := j.each(func(ctx context.Context, i int, _ *admin.Client) error {
			return k.ask(ctx, i, phase, 0, detail{Mode: m}, &all[i])
		}); err != nil {
			return nil, err
		}
	}
	return all[0], nil
}

// changeMode changes the mode of a server.
func (j *job) changeMode(from int, m *mode) (of rates, err error) {
	if m == nil {
		return nil, status.New(status.Argument, "ps_set_mode: rank %d names no mode", from).WithRanks(from)
	}
	if err := m.check("ps_set_mode"); err != nil {
		return nil, err
	}
	return j.rates(), j.server.SetRule(m.rule())
}

// fitMode returns an error if a table of this trainer does not go with a mode.
func (p *Process) fitMode(j *job, m *mode) error {
	if m.Name != modeGeo {
		return nil
	}
	p.tables.mu.RLock()
	defer p.tables.mu.RUnlock()
	for _, e := range p.tables.of {
		if t := e.remote; t != nil && t.Client == j.client {
			if err := fitsGeo(t.Name, t.Dense, &t.Config); err != nil {
				return err
			}
		}
	}
	return nil
}

// fitsGeo returns an error if a trainer could not bound its copy of a table in geo training, or its
// ids come and go.
func fitsGeo(name string, dense bool, c *table.Config) error {
	if c.ComeAndGo() {
		return status.New(status.Unsupported, "table %q has admit_after, expire_after or max_rows. In mode geo trainers push into copies of rows, and the servers, which decide "+
			"which ids have rows, do not see these pushes: take another mode, or leave the three out", name)
	}
	// A number of ids bounds it too: a transpiled table is one that the single-machine program held whole.
	if dense || c.Optimizer.Name == "sgd" || c.MemoryLimit > 0 || c.IDs > 0 {
		return nil
	}
	return status.New(status.Unsupported, "table %q has the optimizer %s. In mode geo each trainer keeps the states of all rows that it has ever pushed: "+
		"give the table a memory_limit or a num_ids, which bound them too, or the optimizer SGD, which has no states", name, c.Optimizer.Name)
}
