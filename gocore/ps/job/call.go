package job

import (
	"math"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/client"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// Code says what a call does with a table or a KV.
type Code int32

// ofKV tells whether it is for a KV.
func (c Code) ofKV() bool { return c >= 0 && int(c) < len(codesOfKVs) && codesOfKVs[c] }

// TableOp has the fields of pmpi_table_op in capi/pmpi.h. The pointers are to the caller's memory.
type TableOp struct {
	Size     uint32
	Code     Code
	Table    int64
	IDs      op.Buf
	Values   op.Buf
	States   op.Buf
	Rate     float64
	Step     int64
	Reserved uint64
}

// Call carries out one call on several tables: all of this process, or all on servers; or a call of
// one KV. count is the number of rows that an IDs call found or a Remove call removed, in the last table, the steps that a
// ReadStates call found, or a KV's timestamp.
func (p *Process) Call(ops []TableOp) (count int64, err error) {
	if err := p.core.Healthy(); err != nil {
		return 0, err
	}
	if len(ops) == 1 && ops[0].Code.ofKV() {
		return p.callKV(&ops[0])
	}
	var far []*client.Table
	near := make([]*table.Table, 0, 1)
	for i := range ops {
		o := &ops[i]
		e, err := p.tables.find(o.Table)
		switch {
		case err != nil:
			return 0, err
		case o.Code != ops[0].Code:
			return 0, status.New(status.Argument, "pmpi_table: ops[%d] has code %d and ops[0] has %d; all tables of a call have the same", i, o.Code, ops[0].Code)
		case e.kv != nil:
			return 0, status.New(status.Argument, "pmpi_table: %d is a KV, and code %d is for a table; a call takes one KV", o.Table, o.Code)
		case e.remote != nil:
			far = append(far, e.remote)
		default:
			near = append(near, e.local)
		}
	}
	if len(far) > 0 && len(near) > 0 {
		return 0, status.New(status.Argument, "a call takes tables of this process or tables of servers, not both")
	}
	switch {
	case len(far) > 0 && ops[0].Code.ofStates():
		return callStates(ops, far)
	case len(far) > 0:
		return 0, callRemote(ops, far)
	}
	for i, t := range near {
		if count, err = callLocal(&ops[i], t); err != nil {
			return 0, err
		}
	}
	return count, nil
}

// callLocal carries out a call on a table of this process.
func callLocal(o *TableOp, t *table.Table) (count int64, err error) {
	b := table.Batch{IDs: &o.IDs, Values: &o.Values, States: given(&o.States)}
	switch o.Code {
	case TablePull:
		return 0, t.Pull(b)
	case TableLook, TableLookZeros:
		return 0, t.Look(b, o.Code == TableLookZeros)
	case TablePush:
		return 0, t.Push(b, o.Rate, o.Step)
	case TableRead:
		return 0, t.Read(b)
	case TableWrite:
		return 0, t.Write(b)
	case TableIDs:
		return t.IDs(&o.IDs)
	case TableReadStates:
		return t.ReadStates(&o.IDs, &o.States)
	case TableWriteStates:
		return 0, t.WriteStates(&o.IDs, &o.States, o.Step)
	case TableRemove:
		return t.Remove(&o.IDs)
	}
	return 0, status.New(status.Argument, "pmpi_table: code %d is none of PMPI_TABLE_*", o.Code)
}

// ofStates tells whether a call reads or writes the states of rows alone.
func (c Code) ofStates() bool { return c == TableReadStates || c == TableWriteStates }

// callStates carries out such a call on one table of the servers.
func callStates(ops []TableOp, all []*client.Table) (count int64, err error) {
	if len(ops) > 1 {
		return 0, status.New(status.Argument, "a call takes the states of one table, not of %d", len(ops))
	}
	o := &ops[0]
	rows := client.TableRows{Table: all[0], IDs: &o.IDs, Values: &o.States, Rate: math.NaN()}
	if o.Code == TableReadStates {
		return all[0].Client.ReadStates(rows)
	}
	return 0, all[0].Client.WriteStates(rows, o.Step, thread())
}

// callRemote carries out one call on several tables of the servers.
func callRemote(ops []TableOp, all []*client.Table) error {
	rows := make([]client.TableRows, len(ops))
	for i := range ops {
		o := &ops[i]
		if all[i].Client != all[0].Client {
			return status.New(status.Argument, "table %q belongs to servers that were closed", all[i].Name)
		}
		if o.Step != 0 {
			return status.New(status.Argument, "push: step=%d: the servers count the steps of table %q", o.Step, all[i].Name)
		}
		if given(&o.States) != nil {
			return status.New(status.Unsupported, "the states of table %q lie on the servers: ps.save writes them, ps.restore reads them", all[i].Name)
		}
		rows[i] = client.TableRows{Table: all[i], IDs: &o.IDs, Values: &o.Values, Rate: o.Rate}
	}
	switch ops[0].Code {
	case TablePull:
		return all[0].Client.Pull(rows)
	case TableLook, TableLookZeros:
		return all[0].Client.Look(rows, ops[0].Code == TableLookZeros)
	case TablePush:
		return all[0].Client.Push(rows, thread())
	case TableWrite:
		return all[0].Client.Write(rows)
	}
	return status.New(status.Unsupported, "table %q lies on servers: ps.save writes its rows, ps.export reads them", all[0].Name)
}

// given returns a buffer of a call; nil if there is none.
func given(b *op.Buf) *op.Buf {
	if b.DType == 0 {
		return nil
	}
	return b
}
