package gocore

import (
	"sync"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Codes of TableOp: what a call does with a table.
const (
	tablePull  = 1
	tablePush  = 2
	tableRead  = 3
	tableWrite = 4
	tableIDs   = 5
)

// TableOp has the fields of pmpi_table_op in capi/pmpi.h. The pointers are to the caller's memory.
type TableOp struct {
	Size     uint32
	Code     int32
	Table    int64
	IDs      op.Buf
	Values   op.Buf
	States   op.Buf
	Rate     float64
	Step     int64
	Reserved uint64
}

// tables has the tables that this process can use, by number: *table.Table, which are independent of MPI and of
// worlds, remote, and remoteKV.
var tables struct {
	sync.RWMutex
	last int64
	of   map[int64]any
}

func addTable(t any) (id int64) {
	tables.Lock()
	defer tables.Unlock()
	if tables.of == nil {
		tables.of = map[int64]any{}
	}
	tables.last++
	tables.of[tables.last] = t
	return tables.last
}

func tableOf(id int64) (any, error) {
	tables.RLock()
	defer tables.RUnlock()
	if t := tables.of[id]; t != nil {
		return t, nil
	}
	return nil, status.New(status.Argument, "there is no table %d (or it was closed)", id)
}

// localTable returns a table of this process.
func localTable(method string, id int64) (*table.Table, error) {
	t, err := tableOf(id)
	if err != nil {
		return nil, err
	}
	if local, ok := t.(*table.Table); ok {
		return local, nil
	}
	return nil, status.New(status.Unsupported, "%s: table %d lies on servers: ps.stats has their sizes", method, id)
}

// nearTable carries out a call on a table of this process.
func nearTable(d *TableOp, t *table.Table) (count int64, err error) {
	b := table.Batch{IDs: &d.IDs, Values: &d.Values}
	if d.States.DType != 0 {
		b.States = &d.States
	}
	switch d.Code {
	case tablePull:
		return 0, t.Pull(b)
	case tablePush:
		return 0, t.Push(b, d.Rate, d.Step)
	case tableRead:
		return 0, t.Read(b)
	case tableWrite:
		return 0, t.Write(b)
	case tableIDs:
		return t.IDs(&d.IDs)
	}
	return 0, status.New(status.Argument, "pmpi_table: code %d is none of PMPI_TABLE_*", d.Code)
}

// controlTableNew makes a table.
func controlTableNew(request []byte, _ work.Interrupt) (any, error) {
	var c table.Config
	if err := parse("table_new", request, &c); err != nil {
		return nil, err
	}
	if err := healthy(); err != nil {
		return nil, err
	}
	t, err := table.New(c)
	if err != nil {
		return nil, err
	}
	return map[string]any{"table": addTable(t)}, nil
}

// controlTableInfo says how large a table is. It first sets the number of its last step, if the request
// has one.
func controlTableInfo(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Table int64  `json:"table"`
		Steps *int64 `json:"steps"`
	}
	if err := parse("table_info", request, &r); err != nil {
		return nil, err
	}
	t, err := localTable("table_info", r.Table)
	if err != nil {
		return nil, err
	}
	if r.Steps != nil {
		if *r.Steps < 0 {
			return nil, status.New(status.Argument, "table_info: steps=%d is below 0", *r.Steps)
		}
		t.SetSteps(*r.Steps)
	}
	return t.Info()
}

// controlTableFree gives the memory of a table back.
func controlTableFree(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Table int64 `json:"table"`
	}
	if err := parse("table_free", request, &r); err != nil {
		return nil, err
	}
	t, err := tableOf(r.Table)
	if err != nil {
		return nil, err
	}
	tables.Lock()
	delete(tables.of, r.Table)
	tables.Unlock()
	if local, ok := t.(*table.Table); ok {
		local.Free() // one on servers stays there
	}
	return struct{}{}, nil
}
