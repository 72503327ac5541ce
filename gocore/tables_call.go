package gocore

import (
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// CallTables carries out one call on several tables: all of this process, or all on servers; or a call of one KV. count is
// the number of rows that an IDs call found, in the last table, or a KV's timestamp.
func CallTables(ops []TableOp) (count int64, err error) {
	if err := healthy(); err != nil {
		return 0, err
	}
	if len(ops) == 1 && ops[0].Code >= kvPush && ops[0].Code <= kvReply {
		return kvOp(&ops[0])
	}
	var far []remote
	near := make([]*table.Table, 0, 1)
	for i := range ops {
		t, err := tableOf(ops[i].Table)
		if err != nil {
			return 0, err
		}
		if ops[i].Code != ops[0].Code {
			return 0, status.New(status.Argument, "pmpi_table: ops[%d] has code %d and ops[0] has %d; all tables of a call have the same", i, ops[i].Code, ops[0].Code)
		}
		switch t := t.(type) {
		case remote:
			far = append(far, t)
		case *table.Table:
			near = append(near, t)
		default:
			return 0, status.New(status.Argument, "pmpi_table: %d is a KV, and code %d is for a table; a call takes one KV", ops[i].Table, ops[i].Code)
		}
	}
	if len(far) > 0 && len(near) > 0 {
		return 0, status.New(status.Argument, "a call takes tables of this process or tables of servers, not both")
	}
	if len(far) > 0 {
		return 0, remoteTables(ops, far)
	}
	for i, t := range near {
		if count, err = nearTable(&ops[i], t); err != nil {
			return 0, err
		}
	}
	return count, nil
}
