package job

import (
	"context"
	"encoding/json"

	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/admin"
	"github.com/paddlempi/paddlempi/gocore/ps/client"
	"github.com/paddlempi/paddlempi/gocore/ps/server"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// declare makes a table on the servers, unless another trainer has, and returns its number here.
func (p *Process) declare(request []byte, _ work.Interrupt) (any, error) {
	var m server.Meta
	m.Config.DType = op.Float32.String()
	if err := method.Parse("ps_declare", request, &m.Config); err != nil {
		return nil, err
	}
	if err := method.Parse("ps_declare", request, &m); err != nil {
		return nil, err
	}
	j, err := p.trainer("ps_declare")
	if err != nil {
		return nil, err
	}
	if err := m.Config.Check(); err != nil { // with the words of a table of this process
		return nil, err
	}
	rows, _ := op.ParseDType(m.Config.DType)
	m.Kind = admin.Sparse
	count := int64(0)
	if m.Dims != nil {
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
	if err := m.Fits(len(j.admins)); err != nil {
		return nil, err
	}
	if j.mode.Load().Name == modeGeo {
		if err := fitsGeo(m.Name, m.Kind == admin.Dense, &m.Config); err != nil {
			return nil, err
		}
	}
	config, err := json.Marshal(m)
	if err != nil {
		return nil, status.New(status.Argument, "ps_declare: table %q: %v", m.Name, err)
	}
	numbers, err := j.declare(admin.Meta{Name: m.Name, Kind: m.Kind, Dim: m.Config.Dim, Config: config, Count: count, Dims: m.Dims})
	if err != nil {
		return nil, err
	}
	t := &client.Table{Client: j.client, IDs: numbers, Name: m.Name, Dim: m.Config.Dim, Rows: rows, By: byOf(m.By), Offset: m.Offset,
		NumIDs: m.Config.IDs, Refuse: m.Config.Refuse, Limit: m.Config.MemoryLimit > 0, Config: m.Config, States: m.Config.StateLen(), Dense: m.Kind == admin.Dense}
	return map[string]any{"table": p.tables.add(entry{remote: t})}, nil
}

// declare makes a table or a KV on the servers and returns its number on each. The first server is
// asked before the others: where trainers declare a name differently at the same time, it decides
// for all servers.
func (j *job) declare(m admin.Meta) ([]uint32, error) {
	numbers := make([]uint32, len(j.admins))
	return numbers, j.call(func(ctx context.Context) (err error) {
		if numbers[0], err = j.admins[0].Declare(ctx, j.group.Rank, m); err != nil {
			return err
		}
		return j.ask(func(i int, c *admin.Client) (err error) {
			if i > 0 {
				numbers[i], err = c.Declare(ctx, j.group.Rank, m)
			}
			return err
		})
	})
}
