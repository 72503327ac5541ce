package gocore

import (
	"context"
	"encoding/json"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/client"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// remote is a table whose rows lie on servers.
type remote struct {
	*client.Table
	client *client.Client
}

// controlPSDeclare makes a table on the servers, unless another trainer has, and returns its number here.
func controlPSDeclare(request []byte, _ work.Interrupt) (any, error) {
	var m server.Meta
	m.Config.DType = op.Float32.String()
	if err := parse("ps_declare", request, &m.Config); err != nil {
		return nil, err
	}
	if err := parse("ps_declare", request, &m); err != nil {
		return nil, err
	}
	j, err := psTrainer("ps_declare")
	if err != nil {
		return nil, err
	}
	if err := m.Config.Check(); err != nil { // with the words of a table of this process
		return nil, err
	}
	rows, _ := op.ParseDType(m.Config.DType)
	m.Kind = admin.Sparse
	count := int64(0)
	if len(m.Dims) > 0 {
		m.Kind, count = admin.Dense, 1
		for _, n := range m.Dims {
			count *= n // the service checks both
		}
	}
	if m.By == "" {
		m.By = ways[0]
	}
	if ways[byOf(m.By)] != m.By || m.Offset < 0 {
		return nil, status.New(status.Argument, "ps_declare: table %q is dealt to servers by %q, offset %d; it goes by one of %q, from an offset of at least 0", m.Name, m.By, m.Offset, ways)
	}
	config, err := json.Marshal(m)
	if err != nil {
		return nil, status.New(status.Argument, "ps_declare: table %q: %v", m.Name, err)
	}
	numbers := make([]uint32, len(j.admins))
	if err := j.each(func(ctx context.Context, i int, c *admin.Client) (err error) {
		numbers[i], err = c.Declare(ctx, j.group.Rank, admin.Meta{Name: m.Name, Kind: m.Kind, Dim: m.Config.Dim, Config: config, Count: count, Dims: m.Dims})
		return err
	}); err != nil {
		return nil, err
	}
	return map[string]any{"table": addTable(remote{&client.Table{IDs: numbers, Name: m.Name, Dim: m.Config.Dim, Rows: rows, By: byOf(m.By), Offset: m.Offset, NumIDs: m.Config.IDs, Refuse: m.Config.Refuse, Limit: m.Config.MemoryLimit > 0}, j.client})}, nil
}

// forgetRemote removes the tables and KVs of a client that has ended.
func forgetRemote(c *client.Client) {
	tables.Lock()
	defer tables.Unlock()
	for id, t := range tables.of {
		if r, ok := t.(remote); ok && r.client == c {
			delete(tables.of, id)
			r.Forget()
		}
		if r, ok := t.(remoteKV); ok && r.client == c {
			delete(tables.of, id)
		}
	}
}

// remoteTables carries out one call on several tables of the servers.
func remoteTables(ops []TableOp, all []remote) error {
	rows := make([]client.TableRows, len(ops))
	for i := range ops {
		d := &ops[i]
		if all[i].client != all[0].client {
			return status.New(status.Argument, "table %q belongs to servers that were closed", all[i].Name)
		}
		if d.Step != 0 {
			return status.New(status.Argument, "push: step=%d: the servers count the steps of table %q", d.Step, all[i].Name)
		}
		if d.States.DType != 0 {
			return status.New(status.Unsupported, "the states of table %q lie on the servers: ps.save writes them, ps.restore reads them", all[i].Name)
		}
		rows[i] = client.TableRows{Table: all[i].Table, IDs: &d.IDs, Values: &d.Values, Rate: d.Rate}
	}
	switch ops[0].Code {
	case tablePull:
		return all[0].client.Pull(rows)
	case tablePush:
		return all[0].client.Push(rows, thread())
	case tableWrite:
		return all[0].client.Write(rows)
	}
	return status.New(status.Unsupported, "table %q lies on servers: ps.save writes its rows, ps.export reads them", all[0].Name)
}
