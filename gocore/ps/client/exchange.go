package client

import (
	"math"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
)

// This file exchanges the copies of geo training, which geo.go describes.

// exchange sends what was pushed since the last exchange, for a thread whose turn it is. After an
// error it is kept for the next exchange if no server has got it. Else it is lost where a server
// has not, so that nothing is added twice.
func (c *Client) exchange() error {
	for {
		_, tables := c.geo.ahead()
		if len(tables) == 0 {
			c.geo.exchanged(nil) // pushes that named no table were some, too
			return nil
		}
		sent, err := c.sendDeltas(tables)
		if err == nil || sent {
			c.geo.exchanged(tables)
		}
		if err != nil {
			return err
		}
	}
}

// mostAtOnce is how many bytes of rows an exchange sends in one request to all servers. It takes
// three times as much memory besides the copies.
const mostAtOnce = 64 << 20

// sendDeltas has the servers add what some tables have gained. sent says that a server may have got
// it: then the tables are forgotten.
func (c *Client) sendDeltas(tables []*Table) (sent bool, err error) {
	var r room
	defer r.free()
	all := make([]TableRows, 0, len(tables))
	var bytes int64
	for _, t := range tables {
		pushed, err := c.geo.pushedOf(t, &r)
		if err != nil {
			return false, t.says(err)
		}
		all = append(all, pushed)
		bytes += 4 * t.Dim * pushed.IDs.Count
	}
	if bytes > c.geo.most {
		for _, pushed := range all {
			if err := c.sendPieces(pushed); err != nil {
				return false, err
			}
		}
		return true, nil
	}
	for i := range all {
		if err := c.geo.deltaOf(&all[i], &r); err != nil {
			return false, all[i].Table.says(err)
		}
	}
	return c.step(request.Add, all)
}

// sendPieces has the servers add what one table has gained, in several requests. What a server may
// have got is no gain any more: it is not sent again if a later piece fails.
func (c *Client) sendPieces(pushed TableRows) error {
	t := pushed.Table
	per := max(1, c.geo.most/(4*t.Dim))
	var r room
	defer r.free()
	for at := int64(0); at < pushed.IDs.Count; at += per {
		piece := pushed
		piece.IDs = &op.Buf{Data: unsafe.Add(pushed.IDs.Data, 8*at), Count: min(per, pushed.IDs.Count-at), DType: op.Int64, NDim: 1}
		if err := c.geo.deltaOf(&piece, &r); err != nil {
			return t.says(err)
		}
		sent, err := c.step(request.Add, []TableRows{piece})
		if err == nil || sent {
			if failed := c.geo.renew(piece); err == nil {
				err = failed
			}
		}
		r.free()
		if err != nil {
			return err
		}
	}
	return nil
}

// renew makes rows of a copy such as came now. It writes over the values.
func (g *geo) renew(piece TableRows) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, b := g.of[piece.Table.Name], table.Batch{IDs: piece.IDs, Values: piece.Values}
	if err := o.rows.Read(b); err != nil {
		return piece.Table.says(err)
	}
	return o.base.Write(b)
}

// pushedOf returns the ids of the rows that were pushed since the last exchange.
func (g *geo) pushedOf(t *Table, r *room) (pushed TableRows, err error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	o := g.of[t.Name]
	info, err := o.base.Info()
	if err != nil {
		return pushed, err
	}
	at, err := r.take(8 * info.Rows)
	if err != nil {
		return pushed, err
	}
	pushed = TableRows{Table: t, IDs: &op.Buf{Data: at, Count: info.Rows, DType: op.Int64, NDim: 1}, Rate: math.NaN()}
	_, err = o.base.IDs(pushed.IDs)
	return pushed, err
}

// deltaOf sets values to what rows of a copy have gained since they came, a trainer's share of it.
func (g *geo) deltaOf(delta *TableRows, r *room) error {
	t, n := delta.Table, delta.IDs.Count
	var values [2]*op.Buf
	for i := range values {
		at, err := r.take(4 * n * t.Dim)
		if err != nil {
			return err
		}
		values[i] = &op.Buf{Data: at, Count: n * t.Dim, DType: op.Float32, NDim: 1}
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	o := g.of[t.Name]
	if err := o.rows.Read(table.Batch{IDs: delta.IDs, Values: values[0]}); err != nil {
		return err
	}
	if err := o.base.Read(table.Batch{IDs: delta.IDs, Values: values[1]}); err != nil {
		return err
	}
	table.Delta(floatsOf(values[0]), floatsOf(values[1]), g.parts)
	delta.Values = values[0]
	return nil
}
