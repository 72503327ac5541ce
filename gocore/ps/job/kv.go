package job

import (
	"encoding/json"

	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/client"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// kvConfig is what trainers declare of a KV besides its name and dim.
type kvConfig struct {
	DType string `json:"dtype"`
}

// declareKV makes a KV on the servers, unless another trainer has, and returns its number here.
func (p *Process) declareKV(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Name string `json:"name"`
		Dim  int64  `json:"dim"`
		kvConfig
	}
	if err := method.Parse("ps_kv_declare", request, &r); err != nil {
		return nil, err
	}
	j, err := p.trainer("ps_kv_declare")
	if err != nil {
		return nil, err
	}
	dtype, known := op.ParseDType(r.DType)
	if !known {
		return nil, status.New(status.Type, "ps_kv_declare: KV %q: dtype=%q is none that can be sent", r.Name, r.DType)
	}
	config, _ := json.Marshal(r.kvConfig) // it has one text
	numbers, err := j.declare(admin.Meta{Name: r.Name, Kind: admin.KV, Dim: r.Dim, Config: config})
	if err != nil {
		return nil, err
	}
	return map[string]any{"table": p.tables.add(entry{kv: &client.KV{Client: j.client, IDs: numbers, Name: r.Name, Dim: r.Dim, DType: dtype}})}, nil
}

// declareKV is Declare of a KV.
func (b backend) declareKV(from int, m admin.Meta) (uint32, error) {
	var c kvConfig
	if err := json.Unmarshal(m.Config, &c); err != nil {
		return 0, status.New(status.Argument, "declare %q: the configuration is not what a KV takes: %v", m.Name, err)
	}
	dtype, known := op.ParseDType(c.DType)
	if !known {
		return 0, status.New(status.Type, "declare %q: dtype=%.64q is none that can be sent", m.Name, c.DType)
	}
	return b.server.DeclareKV(from, m.Name, m.Dim, dtype)
}

// nextOfKVs returns the next call of a KV, or {} after the job has ended.
func (p *Process) nextOfKVs(_ []byte, _ work.Interrupt) (any, error) {
	j, err := p.server("ps_kv_next")
	if err != nil {
		return nil, err
	}
	c, err := j.server.Calls.Next(j.stop)
	if c == nil {
		return struct{}{}, err
	}
	return map[string]any{"call": c.Number, "kv": c.KV, "dim": c.Dim, "dtype": c.DType.String(), "sender": j.group.Ranks[c.From], "command": c.Command,
		"keys": c.Keys, "push": c.Push, "pull": c.Pull}, nil
}

// failOfKV answers a call with an error of the program's function.
func (p *Process) failOfKV(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Call    int64  `json:"call"`
		Message string `json:"message"`
	}
	if err := method.Parse("ps_kv_fail", request, &r); err != nil {
		return nil, err
	}
	j, err := p.server("ps_kv_fail")
	if err != nil {
		return nil, err
	}
	return struct{}{}, j.server.Calls.Finish(r.Call, nil, status.New(status.Refused, "%.4096s", r.Message).WithRanks(j.group.Ranks[j.group.Rank]))
}

// callKV carries out a call of a KV. count is the timestamp of one that was started.
func (p *Process) callKV(o *TableOp) (count int64, err error) {
	rows := given(&o.Values)
	switch o.Code {
	case KVTake, KVReply:
		j, err := p.server("pmpi_table")
		if err != nil {
			return 0, err
		}
		if o.Code == KVTake {
			return 0, j.server.Calls.Take(o.Step, &o.IDs, rows)
		}
		return 0, j.server.Calls.Finish(o.Step, rows, nil)
	}
	kv, err := p.tables.kv(o.Code, o.Table)
	if err != nil {
		return 0, err
	}
	call := client.KVCall{Keys: &o.IDs, Room: given(&o.States), Command: o.Step}
	switch o.Code {
	case KVPush:
		call.Rows = rows
	case KVPull:
		call.Pull = true
	case KVPushPull:
		call.Rows, call.Pull = rows, true
	case KVWait:
		return 0, kv.Wait(o.Step, rows)
	}
	return kv.Start(&call)
}
