package client

import (
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// This file reads and writes the states that an optimizer has of rows. In geo training the states
// are those of this trainer's copy; servers have none that count.

// ReadStates copies the states of the ids into Values, [ids, Table.States]: of those without a row
// the first ones. It makes no row. steps is how many the table has made.
func (c *Client) ReadStates(rows TableRows) (steps int64, err error) {
	if c.geo.every.Load() > 0 {
		return c.readStatesLocal(rows)
	}
	t, err := c.planStates(request.ReadStates, rows)
	if err != nil {
		return 0, err
	}
	defer t.free()
	results, err := c.ask(request.ReadStates, t, nil)
	if err != nil {
		return 0, err
	}
	for _, r := range results {
		if r.effect == Applied {
			steps = max(steps, r.answer.Steps)
		}
	}
	r := t.tables[0]
	r.plan.Gather(rows.Values, r.rows, r.rowBytes)
	return steps, nil
}

// WriteStates sets the states of the ids to Values, each once, and the steps of the table on all
// servers. It makes the rows that are missing. thread is that of the caller; see turn.
func (c *Client) WriteStates(rows TableRows, steps int64, thread int) error {
	if steps < 0 {
		return status.New(status.Argument, "write of states: steps=%d of table %q is below 0", steps, rows.Table.Name)
	}
	if c.geo.every.Load() > 0 {
		return c.writeStatesLocal(rows, steps, thread)
	}
	rows.Rate = float64(steps)
	t, err := c.planStates(request.WriteStates, rows)
	if err != nil {
		return err
	}
	defer t.free()
	r := t.tables[0]
	if int64(len(r.plan.Unique)) != rows.IDs.Count {
		return status.New(status.Argument, "write of states: ids of table %q appear several times", rows.Table.Name)
	}
	if n := rows.IDs.Count * rows.Table.States; n > 0 {
		// Each id is there once, so the sums are the states. They may be infinite.
		r.plan.Sum(unsafe.Slice((*float32)(r.rows), n), rows.Values, rows.Table.States)
	}
	if err := c.reserve(t); err != nil {
		return err
	}
	_, err = c.ask(request.WriteStates, t, nil)
	return err
}

// planStates is plan for one table that has states.
func (c *Client) planStates(what request.Op, rows TableRows) (*travel, error) {
	if err := checkStates(what, &rows); err != nil {
		return nil, err
	}
	return c.plan(what, []TableRows{rows})
}

func checkStates(what request.Op, rows *TableRows) error {
	if rows.Table.States == 0 {
		return status.New(status.Argument, "%v: the optimizer of table %q has no states", what, rows.Table.Name)
	}
	if rows.Values.DType != op.Float32 {
		return status.New(status.Type, "%v: states of table %q are of %v; they must be of float32", what, rows.Table.Name, rows.Values.DType)
	}
	return check(what, rows)
}

func (c *Client) readStatesLocal(rows TableRows) (steps int64, err error) {
	o, err := c.copyOfStates(request.ReadStates, &rows)
	if err != nil {
		return 0, err
	}
	c.geo.mu.RLock()
	defer c.geo.mu.RUnlock()
	return o.ReadStates(rows.IDs, rows.Values)
}

func (c *Client) writeStatesLocal(rows TableRows, steps int64, thread int) error {
	if err := c.pushing.take("write of states", thread, time.Now().Add(c.timeout), c.interrupt); err != nil {
		return err
	}
	defer c.pushing.give()
	o, err := c.copyOfStates(request.WriteStates, &rows)
	if err != nil {
		return err
	}
	c.geo.mu.Lock()
	defer c.geo.mu.Unlock()
	if err := o.WriteStates(rows.IDs, rows.Values, steps); err != nil {
		return rows.Table.says(err)
	}
	return nil
}

// copyOfStates returns this trainer's copy of a table, which it makes if there is none.
func (c *Client) copyOfStates(what request.Op, rows *TableRows) (*table.Table, error) {
	if err := c.Completed(what.String()); err != nil {
		return nil, err
	}
	if err := checkStates(what, rows); err != nil {
		return nil, err
	}
	o, err := c.geo.copyOf(rows.Table)
	if err != nil {
		return nil, err
	}
	return o.rows, nil
}
