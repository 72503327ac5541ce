package client

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/mem"
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// This file is geo training (GeoSGD, of Paddle's GeoCommunicator). A trainer pushes into a copy of
// its own, with the table's optimizer. Every so many pushes it exchanges: of each row that it has
// pushed since the last exchange it sends
//
//	delta = (the row of the copy - the row as it came from the server) / trainers
//
// which the server adds to its row. Then the copy is forgotten, and the next pull brings the
// servers' row, with what all trainers have added. So a copy has the rows of the pushes between two
// exchanges, twice: as they came, and as they are.
//
// Paddle's communicator exchanges in a thread, while the trainer goes on. It takes delta off what
// the copy is ahead by, adds what the servers have gained, and keeps the rest of the copy's lead for
// later exchanges, for which it keeps all rows for ever. Here nobody trains during an exchange, so
// the trainer takes the servers' row as it is. With one trainer both are training in one process.
//
// The states of an optimizer are the trainer's and stay with it: a table that has states keeps the
// rows for them. A dense parameter has all its rows in any case. Of others declare wants a limit.

// geo is what a client has of geo training.
type geo struct {
	every atomic.Int64 // pushes between two exchanges; 0: pushes go to the servers
	parts float32      // trainers
	most  int64        // bytes of rows in one request

	// mu guards the rest, and the copies: pulls read them, pushes and exchanges write. Nobody who
	// holds it waits for a server: a signal handler that runs in such a wait may pull.
	mu    sync.RWMutex
	steps int64    // pushes since the last exchange
	open  []*Table // tables that were pushed since then, one of each name
	of    map[string]*localCopy
	rates map[string]float64 // learning rates of tables, for pushes that name none
}

// localCopy is a copy of rows of one table, for all that this trainer has declared by its name.
type localCopy struct {
	rows *table.Table // as this trainer has trained them
	base *table.Table // as they came: it has the rows that were pushed since the last exchange
}

// free frees all copies.
func (g *geo) free() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, o := range g.of {
		o.rows.Free()
		o.base.Free()
	}
	g.of, g.open, g.steps = nil, nil, 0
}

// SetGeo has pushes go to copies of this trainer, which are exchanged after so many pushes; 0: to
// the servers. It is called between two pushes, after Flush.
func (c *Client) SetGeo(every int64, trainers int) {
	c.geo.free()
	c.geo.parts, c.geo.most = float32(trainers), mostAtOnce
	c.geo.every.Store(every)
}

// SetRates sets the learning rates of tables, by name, for pushes into copies that name none. A
// table that is not there has that of its optimizer.
func (c *Client) SetRates(of map[string]float64) {
	c.geo.mu.Lock()
	defer c.geo.mu.Unlock()
	c.geo.rates = of
}

// Flush exchanges what was pushed since the last exchange, in geo training.
func (c *Client) Flush(thread int) error {
	if c.geo.every.Load() == 0 {
		return nil
	}
	if err := c.pushing.take("flush", thread, time.Now().Add(c.timeout), c.interrupt); err != nil {
		return err
	}
	defer c.pushing.give()
	return c.exchange()
}

// Copies returns how many rows the copies of this trainer have, and how many bytes they take.
func (c *Client) Copies() (rows, bytes int64) {
	c.geo.mu.RLock()
	defer c.geo.mu.RUnlock()
	for _, o := range c.geo.of {
		for _, one := range []*table.Table{o.rows, o.base} {
			if info, err := one.Info(); err == nil {
				rows, bytes = rows+info.Rows, bytes+info.Bytes
			}
		}
	}
	return rows, bytes
}

// ahead returns how many pushes were made since the last exchange, and the next tables to exchange.
func (g *geo) ahead() (steps int64, next []*Table) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.steps, slices.Clone(g.open[:min(len(g.open), request.MostInHeader)])
}

// exchanged forgets what was pushed of some tables.
func (g *geo) exchanged(tables []*Table) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range tables {
		g.of[t.Name].forget()
	}
	g.open = slices.DeleteFunc(g.open, func(t *Table) bool { return slices.Contains(tables, t) })
	if len(g.open) == 0 {
		g.dropLocked()
	}
}

// drop forgets what was pushed and not exchanged.
func (g *geo) drop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked()
}

// dropLocked forgets all copies, also of tables without a push: one that was refused may have
// fetched rows. The caller holds mu.
func (g *geo) dropLocked() {
	for _, o := range g.of {
		o.forget()
	}
	g.open, g.steps = nil, 0
}

// forget makes the rows of a copy be pulled again. The states stay where there are some.
func (o *localCopy) forget() {
	all := []*table.Table{o.base}
	if o.rows.Optimizer.Name == "sgd" {
		all = append(all, o.rows)
	}
	for _, one := range all {
		if info, err := one.Info(); err == nil && info.Rows > 0 {
			_ = one.Clear() // without memory for an empty table the old one stays, and so do its rows
		}
	}
}

// room is memory of a call, outside the Go heap, that is freed together.
type room []unsafe.Pointer

func (r *room) take(bytes int64) (unsafe.Pointer, error) {
	p, err := mem.Alloc(max(8, bytes))
	if err == nil {
		*r = append(*r, p)
	}
	return p, err
}

func (r *room) free() {
	for _, p := range *r {
		mem.Free(p)
	}
	*r = nil
}

// rowsOf takes room for n ids of a table, and their rows.
func (r *room) rowsOf(t *Table, n int64) (rows TableRows, ids []int64, err error) {
	at, err := r.take(8 * n)
	if err != nil {
		return rows, nil, err
	}
	values, err := r.take(4 * n * t.Dim)
	if err != nil {
		return rows, nil, err
	}
	rows = TableRows{Table: t, IDs: &op.Buf{Data: at, Count: n, DType: op.Int64, NDim: 1}, Values: &op.Buf{Data: values, Count: n * t.Dim, DType: op.Float32, NDim: 1}, Rate: math.NaN()}
	return rows, unsafe.Slice((*int64)(at), n), nil
}

// flags takes room for a flag for each of n ids.
func (r *room) flags(n int64) ([]byte, error) {
	at, err := r.take(n)
	return unsafe.Slice((*byte)(at), n), err
}

func floatsOf(b *op.Buf) []float32 { return unsafe.Slice((*float32)(b.Data), b.Count) }

// idAt returns an id of a tensor of int64 or int32.
func idAt(b *op.Buf, i int64) int64 {
	if b.DType == op.Int32 {
		return int64(unsafe.Slice((*int32)(b.Data), b.Count)[i])
	}
	return unsafe.Slice((*int64)(b.Data), b.Count)[i]
}

// gap is rows of one table that a copy does not have.
type gap struct {
	into   TableRows
	places []int64 // of their ids there; nil: all
}

// readLocal is read: rows that were pushed since the last exchange are this trainer's own.
func (c *Client) readLocal(what request.Op, tables []TableRows) error {
	if err := c.checkLocal(what, tables); err != nil {
		return err
	}
	var r room
	defer r.free()
	var far []TableRows // what the servers are asked for
	var gaps []gap
	for _, one := range tables {
		there, held, err := c.geo.find(one, &r)
		if err != nil {
			return err
		}
		g := gap{into: one}
		switch held {
		case one.IDs.Count:
			continue
		case 0:
			far = append(far, one)
		default:
			rest, ids, err := r.rowsOf(one.Table, one.IDs.Count-held)
			if err != nil {
				return err
			}
			for at, is := range there {
				if is == 0 {
					ids[len(g.places)] = idAt(one.IDs, int64(at))
					g.places = append(g.places, int64(at))
				}
			}
			far = append(far, rest)
		}
		gaps = append(gaps, g)
	}
	if len(far) == 0 {
		return nil
	}
	if err := c.readFar(what, far); err != nil {
		return err
	}
	for i, g := range gaps {
		dim := g.into.Table.Dim
		into, from := floatsOf(g.into.Values), floatsOf(far[i].Values)
		for k, at := range g.places {
			copy(into[at*dim:(at+1)*dim], from[int64(k)*dim:])
		}
	}
	return nil
}

// checkLocal refuses what a call on the servers would refuse before it sends anything.
func (c *Client) checkLocal(what request.Op, tables []TableRows) error {
	if err := c.Completed(what.String()); err != nil {
		return err
	}
	for i := range tables {
		if err := check(what, &tables[i]); err != nil {
			return err
		}
		if what.Reads() && tables[i].Values.DType != op.Float32 {
			return wrongOut(what, &tables[i])
		}
	}
	return once(what, tables)
}

// find copies those rows of a pull that this trainer has of its own, and says which.
func (g *geo) find(one TableRows, r *room) (there []byte, held int64, err error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	o := g.of[one.Table.Name]
	if o == nil || one.IDs.Count == 0 {
		return nil, 0, nil
	}
	if there, err = r.flags(one.IDs.Count); err != nil {
		return nil, 0, err
	}
	if err := o.base.Find(table.Batch{IDs: one.IDs}, there); err != nil {
		return nil, 0, err
	}
	for _, is := range there {
		held += int64(is)
	}
	if held > 0 {
		// A row for whose states the copy keeps it may be an old one. Such a row is pulled after
		// this.
		any, err := r.flags(one.IDs.Count)
		if err == nil {
			err = o.rows.Find(table.Batch{IDs: one.IDs, Values: one.Values}, any)
		}
		if err != nil {
			return nil, 0, err
		}
	}
	return there, held, nil
}

// pushLocal is Push into the copies of this trainer, for a thread whose turn it is. It changes all
// tables or none. Of a push that is refused the copies keep no row: pulls bring the servers'.
func (c *Client) pushLocal(tables []TableRows) error {
	if err := c.checkLocal(request.Push, tables); err != nil {
		return err
	}
	err := c.trainLocal(tables)
	if steps, _ := c.geo.ahead(); status.CodeOf(err) == status.NoMemory && steps > 0 {
		if err = c.exchange(); err == nil {
			err = c.trainLocal(tables)
		}
	}
	steps, _ := c.geo.ahead()
	if err != nil {
		if steps == 0 { // what the copies have was fetched for this push alone
			c.geo.drop()
		}
		return err
	}
	if steps < c.geo.every.Load() {
		return nil
	}
	return c.exchange()
}

// trainLocal updates the copies: it fetches what they lack of the rows, and then is one step. base
// gets the rows when nothing can refuse the step any more but a machine without memory: a row of
// base is this trainer's own until the next exchange.
func (c *Client) trainLocal(tables []TableRows) error {
	var r room
	defer r.free()
	fetched := make([]TableRows, 0, len(tables))
	for _, one := range tables {
		rest, err := c.lacking(one, &r)
		if err != nil {
			return err
		}
		if rest.IDs != nil {
			fetched = append(fetched, rest)
		}
	}
	if len(fetched) > 0 {
		if err := c.readFar(request.Pull, fetched); err != nil {
			return err
		}
	}
	g := &c.geo
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, one := range fetched {
		if err := g.of[one.Table.Name].rows.Write(table.Batch{IDs: one.IDs, Values: one.Values}); err != nil {
			return one.Table.says(err)
		}
	}
	updates := make([]*table.Update, 0, len(tables))
	defer func() {
		for _, u := range updates {
			u.End()
		}
	}()
	for _, one := range tables {
		rate := one.Rate
		if set, is := g.rates[one.Table.Name]; is && math.IsNaN(rate) {
			rate = set
		}
		u, err := g.of[one.Table.Name].rows.Prepare(table.Batch{IDs: one.IDs, Values: one.Values}, rate)
		if err != nil {
			return one.Table.says(err)
		}
		updates = append(updates, u)
	}
	for _, one := range tables { // now: the next exchange forgets also what has failed below
		if !slices.ContainsFunc(g.open, func(t *Table) bool { return t.Name == one.Table.Name }) {
			g.open = append(g.open, one.Table)
		}
	}
	for _, one := range fetched {
		if err := g.of[one.Table.Name].base.Write(table.Batch{IDs: one.IDs, Values: one.Values}); err != nil {
			return one.Table.says(err)
		}
	}
	for i, u := range updates {
		if err := u.Apply(0); err != nil {
			return tables[i].Table.says(err)
		}
	}
	g.steps++
	return nil
}

// says adds the table's name to an error of its copy.
func (t *Table) says(err error) error {
	return status.New(status.CodeOf(err), "table %q, this trainer's copy: %v", t.Name, err)
}

// lacking returns room for those rows of a push that the copy of the table lacks, each once; none
// if it has all. It makes the copy.
func (c *Client) lacking(one TableRows, r *room) (rest TableRows, err error) {
	copied, err := c.geo.copyOf(one.Table)
	if err != nil {
		return rest, err
	}
	plan, madeAt := one.Table.plans.take(one.IDs)
	if plan == nil {
		if plan, err = route.New(one.IDs, c.servers, one.Table.By, one.Table.Offset); err != nil {
			return rest, err
		}
	}
	defer one.Table.plans.put(plan, madeAt)
	n := int64(len(plan.Unique))
	if n == 0 {
		return rest, nil
	}
	there, err := r.flags(n)
	if err != nil {
		return rest, err
	}
	unique := &op.Buf{Data: unsafe.Pointer(unsafe.SliceData(plan.Unique)), Count: n, DType: op.Int64, NDim: 1}
	if err := copied.base.Find(table.Batch{IDs: unique}, there); err != nil {
		return rest, one.Table.says(err)
	}
	for _, is := range there {
		n -= int64(is)
	}
	if n == 0 {
		return rest, nil
	}
	rest, ids, err := r.rowsOf(one.Table, n)
	if err != nil {
		return rest, err
	}
	at := 0
	for i, is := range there {
		if is == 0 {
			ids[at] = plan.Unique[i]
			at++
		}
	}
	return rest, nil
}

// copyOf returns the copy of a table, which it makes if there is none.
func (g *geo) copyOf(t *Table) (*localCopy, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o := g.of[t.Name]; o != nil {
		return o, nil
	}
	config := t.Config
	config.DType = op.Float32.String() // small steps add up here, and are rounded on the server
	rows, err := table.New(config)
	if err != nil {
		return nil, t.says(err)
	}
	config.Optimizer = table.Optimizer{Name: "sgd"}
	base, err := table.New(config)
	if err != nil {
		rows.Free()
		return nil, t.says(err)
	}
	if g.of == nil {
		g.of = map[string]*localCopy{}
	}
	g.of[t.Name] = &localCopy{rows, base}
	return g.of[t.Name], nil
}
