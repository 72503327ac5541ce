package job

import (
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/method"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// This file has what a table of this process whose ids come and go has besides rows, for those who
// save and load it: the last uses of rows, and the counts of ids without one.

// lives returns a table of this process whose ids come and go.
func (p *Process) lives(method string, id int64) (*table.Table, error) {
	e, err := p.tables.find(id)
	switch {
	case err != nil:
		return nil, err
	case e.local == nil:
		return nil, status.New(status.Unsupported, "%s: table %d lies on servers: ps.save writes what it has", method, id)
	case !e.local.ComeAndGo():
		return nil, status.New(status.Argument, "%s: ids of table %d do not come and go: it has none of admit_after, expire_after and max_rows", method, id)
	}
	return e.local, nil
}

// tableStamps tells the last uses of the rows of ids; or sets them, if the request has some.
func (p *Process) tableStamps(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Table  int64  `json:"table"`
		IDs    []byte `json:"ids"`    // int64, little-endian
		Stamps []byte `json:"stamps"` // the same; nil: tell them
	}
	if err := method.Parse("table_stamps", request, &r); err != nil {
		return nil, err
	}
	t, err := p.lives("table_stamps", r.Table)
	if err != nil {
		return nil, err
	}
	if len(r.IDs)%8 != 0 || r.Stamps != nil && len(r.Stamps) != len(r.IDs) {
		return nil, status.New(status.Argument, "table_stamps: ids have %d bytes, and stamps %d; both have 8 for each id", len(r.IDs), len(r.Stamps))
	}
	info, err := t.Info()
	if err != nil {
		return nil, err
	}
	n := int64(len(r.IDs) / 8)
	floats := t.Dim + info.StateBytes/4
	room, err := mem.Alloc(max(8, n*(8+8+4*floats)))
	if err != nil {
		return nil, err
	}
	defer mem.Free(room)
	at := func(offset, count int64, dtype op.DType) *op.Buf {
		return &op.Buf{Data: unsafe.Add(room, offset), Count: count, DType: dtype, NDim: 1}
	}
	b := table.Batch{IDs: at(0, n, op.Int64), Stamps: at(8*n, n, op.Int64)}
	copy(unsafe.Slice((*byte)(room), 8*n), r.IDs)
	stamps := unsafe.Slice((*byte)(b.Stamps.Data), 8*n)
	b.Values, b.States = at(16*n, n*t.Dim, op.Float32), at(16*n+4*n*t.Dim, n*(info.StateBytes/4), op.Float32)
	if err := t.Read(b); err != nil {
		return nil, err
	}
	if r.Stamps == nil {
		return map[string]any{"stamps": stamps}, nil
	}
	copy(stamps, r.Stamps)
	return struct{}{}, t.Write(b)
}

// tableSketch tells the counts of ids without a row. It first adds some, if the request has them.
func (p *Process) tableSketch(request []byte, _ work.Interrupt) (any, error) {
	var r struct {
		Table int64  `json:"table"`
		Add   []byte `json:"add"`
	}
	if err := method.Parse("table_sketch", request, &r); err != nil {
		return nil, err
	}
	t, err := p.lives("table_sketch", r.Table)
	if err != nil {
		return nil, err
	}
	if r.Add != nil {
		return struct{}{}, t.AddSketch(r.Add)
	}
	sketch, err := t.Sketch()
	return map[string]any{"sketch": sketch}, err
}
