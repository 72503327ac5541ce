package client

import (
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
)

// Pull copies the rows of the ids into Values of each table. After a push that has ended with an
// error, such as Timeout or Interrupted, they are the rows after its step wherever a server has it:
// Pull waits for the other trainers as the push would have.
func (c *Client) Pull(tables []TableRows) error {
	return c.read(request.Pull, tables)
}

// Look is Pull that makes no rows on the servers: ids without a row have what it would begin with,
// or zeros. No training comes of it: a server notes nothing of it, for the staleness of a push or
// for what a trainer has pulled last, and does not have it wait for slower trainers.
func (c *Client) Look(tables []TableRows, zeros bool) error {
	if zeros {
		return c.read(request.LookZeros, tables)
	}
	return c.read(request.Look, tables)
}

// read is Pull or Look.
func (c *Client) read(what request.Op, tables []TableRows) error {
	if c.geo.every.Load() > 0 {
		return c.readLocal(what, tables)
	}
	return c.readFar(what, tables)
}

// readFar is read of rows on the servers.
func (c *Client) readFar(what request.Op, tables []TableRows) error {
	t, err := c.plan(what, tables)
	if err != nil {
		return err
	}
	defer t.free()
	for i := range t.tables {
		if tables[i].Values.DType != op.Float32 {
			return wrongOut(what, &tables[i])
		}
	}
	results, err := c.ask(what, t, nil)
	if err != nil {
		return err
	}
	if what == request.Pull {
		c.progress.made(t)
		c.progress.pulled(results)
	}
	for i, r := range t.tables {
		if r.table.Rows == op.Float32 {
			r.plan.Gather(tables[i].Values, r.rows, r.rowBytes)
		} else {
			r.plan.Widen(tables[i].Values, r.rows, r.table.Rows, r.table.Dim)
		}
	}
	return nil
}
