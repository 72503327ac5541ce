package job

import (
	"sync"

	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/ps/client"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// tables has the tables and KVs that this process can use, by number. A number is used once.
type tables struct {
	mu   sync.RWMutex
	last int64
	of   map[int64]entry
}

// entry is one of the three.
type entry struct {
	local  *table.Table // of this process, which needs neither MPI nor a world
	remote *client.Table
	kv     *client.KV
}

func (t *tables) add(e entry) (id int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[int64]entry{}
	}
	t.last++
	t.of[t.last] = e
	return t.last
}

func (t *tables) find(id int64) (entry, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	e, there := t.of[id]
	if !there {
		return e, status.New(status.Argument, "there is no table %d (or it was closed)", id)
	}
	return e, nil
}

// kv returns a KV, for a call with a code.
func (t *tables) kv(code Code, id int64) (*client.KV, error) {
	e, err := t.find(id)
	if err == nil && e.kv == nil {
		err = status.New(status.Argument, "pmpi_table: code %d is for a KV, and %d is none", code, id)
	}
	return e.kv, err
}

func (t *tables) remove(id int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, id)
}

// forget removes the tables and KVs of a client that has ended.
func (t *tables) forget(c *client.Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.of {
		switch {
		case e.remote != nil && e.remote.Client == c:
			e.remote.Forget()
			delete(t.of, id)
		case e.kv != nil && e.kv.Client == c:
			delete(t.of, id)
		}
	}
}

// tableNew makes a table.
func (p *Process) tableNew(request []byte, _ work.Interrupt) (any, error) {
	var c table.Config
	if err := method.Parse("table_new", request, &c); err != nil {
		return nil, err
	}
	if err := p.core.Healthy(); err != nil {
		return nil, err
	}
	t, err := table.New(c)
	if err != nil {
		return nil, err
	}
	return map[string]any{"table": p.tables.add(entry{local: t})}, nil
}

// tableInfo says how large a table is. It first sets the number of its last step, if the request
// has one.
func (p *Process) tableInfo(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Table int64  `json:"table"`
		Steps *int64 `json:"steps"`
	}
	if err := method.Parse("table_info", request, &r); err != nil {
		return nil, err
	}
	e, err := p.tables.find(r.Table)
	switch {
	case err != nil:
		return nil, err
	case e.local == nil:
		return nil, status.New(status.Unsupported, "table_info: table %d lies on servers: ps.stats has their sizes", r.Table)
	case r.Steps != nil && *r.Steps < 0:
		return nil, status.New(status.Argument, "table_info: steps=%d is below 0", *r.Steps)
	case r.Steps != nil:
		e.local.SetSteps(*r.Steps)
	}
	return e.local.Info()
}

// tableFree gives the memory of a table back. What lies on servers stays there.
func (p *Process) tableFree(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Table int64 `json:"table"`
	}
	if err := method.Parse("table_free", request, &r); err != nil {
		return nil, err
	}
	e, err := p.tables.find(r.Table)
	if err != nil {
		return nil, err
	}
	p.tables.remove(r.Table)
	if e.local != nil {
		e.local.Free()
	}
	return struct{}{}, nil
}
