package gocore

import (
	"context"
	"encoding/json"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/client"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Codes of TableOp for KVs.
const (
	kvPush     = 6
	kvPull     = 7
	kvPushPull = 8
	kvWait     = 9
	kvTake     = 10
	kvReply    = 11
)

// remoteKV is a KV on servers.
type remoteKV struct {
	*client.KV
	client *client.Client
}

// kvConfig is what trainers declare of a KV besides its name and dim.
type kvConfig struct {
	DType string `json:"dtype"`
}

// controlPSKVDeclare makes a KV on the servers, unless another trainer has, and returns its number here.
func controlPSKVDeclare(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Name string `json:"name"`
		Dim  int64  `json:"dim"`
		kvConfig
	}
	if err := parse("ps_kv_declare", request, &r); err != nil {
		return nil, err
	}
	j, err := psTrainer("ps_kv_declare")
	if err != nil {
		return nil, err
	}
	dtype, known := op.ParseDType(r.DType)
	if !known {
		return nil, status.New(status.Type, "ps_kv_declare: KV %q: dtype=%q is none that can be sent", r.Name, r.DType)
	}
	config, _ := json.Marshal(r.kvConfig) // it has one text
	numbers := make([]uint32, len(j.admins))
	if err := j.each(func(ctx context.Context, i int, c *admin.Client) (err error) {
		numbers[i], err = c.Declare(ctx, j.group.Rank, admin.Meta{Name: r.Name, Kind: admin.KV, Dim: r.Dim, Config: config})
		return err
	}); err != nil {
		return nil, err
	}
	return map[string]any{"table": addTable(remoteKV{&client.KV{IDs: numbers, Name: r.Name, Dim: r.Dim, DType: dtype}, j.client})}, nil
}

// declareKV is Declare of a KV.
func (j *psJob) declareKV(from int, m admin.Meta) (uint32, error) {
	var c kvConfig
	if err := json.Unmarshal(m.Config, &c); err != nil {
		return 0, status.New(status.Argument, "declare %q: the configuration is not what a KV takes: %v", m.Name, err)
	}
	dtype, known := op.ParseDType(c.DType)
	if !known {
		return 0, status.New(status.Type, "declare %q: dtype=%.64q is none that can be sent", m.Name, c.DType)
	}
	return j.server.DeclareKV(from, m.Name, m.Dim, dtype)
}

// controlPSKVNext returns the next call of a KV, or {} after the job has ended.
func controlPSKVNext(_ []byte, _ work.Interrupt) (any, error) {
	j, err := psServes("ps_kv_next")
	if err != nil {
		return nil, err
	}
	c, err := j.server.Next(j.stop)
	if c == nil {
		return struct{}{}, err
	}
	return map[string]any{"call": c.Number, "kv": c.KV, "dim": c.Dim, "dtype": c.DType.String(), "sender": j.group.Ranks[c.From], "command": c.Command,
		"keys": c.Keys, "push": c.Push, "pull": c.Pull}, nil
}

// controlPSKVFail answers a call with an error of the program's function.
func controlPSKVFail(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Call    int64  `json:"call"`
		Message string `json:"message"`
	}
	if err := parse("ps_kv_fail", request, &r); err != nil {
		return nil, err
	}
	j, err := psServes("ps_kv_fail")
	if err != nil {
		return nil, err
	}
	return struct{}{}, j.server.Finish(r.Call, nil, status.New(status.Refused, "%.4096s", r.Message).WithRanks(j.group.Ranks[j.group.Rank]))
}

// kvOp carries out a call of a KV. count is the timestamp of one that was started.
func kvOp(d *TableOp) (count int64, err error) {
	values := &d.Values
	if values.DType == 0 {
		values = nil
	}
	switch d.Code {
	case kvTake, kvReply:
		j, err := psServes("pmpi_table")
		if err != nil {
			return 0, err
		}
		if d.Code == kvTake {
			return 0, j.server.Take(d.Step, &d.IDs, values)
		}
		return 0, j.server.Finish(d.Step, values, nil)
	}
	t, err := tableOf(d.Table)
	if err != nil {
		return 0, err
	}
	kv, ok := t.(remoteKV)
	if !ok {
		return 0, status.New(status.Argument, "pmpi_table: code %d is for a KV, and %d is none", d.Code, d.Table)
	}
	call := &client.KVCall{KV: kv.KV, Keys: &d.IDs, Command: d.Step}
	if d.States.DType != 0 {
		call.Room = &d.States
	}
	switch d.Code {
	case kvPush, kvPushPull:
		call.Rows, call.Pull = values, d.Code == kvPushPull
	case kvPull:
		call.Pull = true
	default:
		return 0, kv.client.Wait(kv.KV, d.Step, values)
	}
	return kv.client.Start(call)
}
