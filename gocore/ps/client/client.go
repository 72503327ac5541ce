// Package client is a trainer's side of the parameter servers: tables whose rows lie on the
// servers. A call takes several tables and makes one request to each server, with every id once.
package client

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/link"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/work"
)

// Table is a table whose rows lie on the servers.
type Table struct {
	Client *Client  // which asks for it
	IDs    []uint32 // its number on each server
	Name   string
	Dim    int64
	Rows   op.DType // of the rows on the servers
	By     route.By
	Offset int   // is added to an id before its server is found
	NumIDs int64 // ids are below it; 0: any
	Refuse bool  // gradients that are not finite are refused
	Limit  bool  // the servers may have no room for new rows: the table has a limit
	// Config is what was declared, of which a copy of rows is made in geo training.
	Config table.Config
	States int64 // floats of the state of a row
	Dense  bool  // its rows are the blocks of a vector

	plans plans
}

// Forget frees what the table keeps for its next call. It is called when no more calls will come.
func (t *Table) Forget() { t.plans.close() }

// TableRows is the rows of one table that a call names. The tensors are contiguous and in host
// memory: ids of int64 or int32, values a float32 row for each; gradients may be of 16 bits.
type TableRows struct {
	Table       *Table
	IDs, Values *op.Buf
	Rate        float64 // learning rate of a push; NaN: the table's
}

// Client asks the servers. Its methods may be called from any goroutine; pushes come one after
// another.
type Client struct {
	links     connections
	servers   int
	timeout   time.Duration
	interrupt work.Interrupt
	together  atomic.Bool // the pushes of all trainers make a step
	// Late says more about an error of the deadline: which trainers the servers wait for. nil:
	// nobody knows.
	Late func(what string, err error) error

	pushing   *turn
	changed   atomic.Bool // a server may have carried out a part of the newest push
	completed atomic.Bool // Complete was called
	progress  progress

	sending sync.Mutex // updates come to all servers in the same order
	number  int64      // of the newest update

	calls startedCalls // of KVs
	geo   geo
}

// New makes the client of a trainer. A call ends with an error after timeout. together says that
// the servers apply a step when the pushes of several trainers are there.
func New(l *link.Links, servers int, together bool, timeout time.Duration, interrupt work.Interrupt) *Client {
	return newClient(links{l}, servers, together, timeout, interrupt)
}

func newClient(links connections, servers int, together bool, timeout time.Duration, interrupt work.Interrupt) *Client {
	c := &Client{links: links, servers: servers, timeout: timeout, interrupt: interrupt, pushing: newTurn()}
	c.Follow(together)
	c.progress.here = slices.Repeat([]atServer{{version: -1}}, servers)
	return c
}

// Follow says whether the servers apply a step when the pushes of several trainers are there.
func (c *Client) Follow(together bool) { c.together.Store(together) }

// Complete says that this trainer asks nothing more: its later calls get an error.
func (c *Client) Complete() { c.completed.Store(true) }

// Completed returns an error about a call after Complete; nil before.
func (c *Client) Completed(what string) error {
	if !c.completed.Load() {
		return nil
	}
	return status.New(status.Argument, "%s: this trainer has completed (ps.complete); it can ask the servers nothing more", what)
}

// Staleness returns the mean number of updates by other trainers between this one's pulls and
// pushes.
func (c *Client) Staleness() float64 {
	c.progress.mu.Lock()
	defer c.progress.mu.Unlock()
	return float64(c.progress.stale) / float64(max(1, c.progress.updates))
}

// Push is one step: it updates the rows of the ids by the gradients of all tables. Every server
// learns of it, also one that has none of the ids. thread is that of the caller; see turn.
func (c *Client) Push(tables []TableRows, thread int) error {
	if err := c.pushing.take("push", thread, time.Now().Add(c.timeout), c.interrupt); err != nil {
		return err
	}
	defer c.pushing.give()
	if c.geo.every.Load() > 0 {
		return c.pushLocal(tables)
	}
	sent, err := c.step(request.Push, tables)
	c.changed.Store(sent)
	return err
}

// Changed tells whether a server may have carried out a part of the newest Push to the servers. If
// not, an error of that push can be answered by another one.
func (c *Client) Changed() bool { return c.changed.Load() }

// step is a Push or an Add, for a thread whose turn it is. sent says that a server may have got it.
func (c *Client) step(what request.Op, tables []TableRows) (sent bool, err error) {
	t, err := c.plan(what, tables)
	if err != nil {
		return false, err
	}
	defer t.free()
	for i, r := range t.tables {
		if n := int64(len(r.plan.Unique)) * r.table.Dim; n > 0 {
			sums := unsafe.Slice((*float32)(r.rows), n)
			// The servers look, too. But here nothing has been sent yet, so no server makes a step
			// of it.
			if !r.plan.Sum(sums, tables[i].Values, r.table.Dim) && r.table.Refuse {
				at := route.NotFinite(sums)
				return false, status.New(status.Argument, "push: the gradient of id %d in table %q is not finite: %v at element %d; nothing was pushed. non_finite=\"allow\" lets such gradients through",
					r.plan.Unique[at/r.table.Dim], r.table.Name, sums[at], at%r.table.Dim)
			}
		}
	}
	seen := c.progress.seen()
	if what == request.Push { // rows to which something is added were pulled before
		if err := c.reserve(t); err != nil {
			if c.together.Load() { // the others learn it, too
				_ = c.refuse()
			}
			return false, err
		}
	}
	results, err := c.ask(what, t, seen)
	if err == nil {
		c.progress.made(t)
	}
	c.progress.stepped(results)
	for _, r := range results {
		sent = sent || r.effect != NotApplied
	}
	return sent, err
}

// Refuse is one step, in the place of Push: the pushes of all trainers for this step fail with
// Refused, and so does Refuse, when they are all there. Nothing is changed. It is for synchronous
// training.
func (c *Client) Refuse(thread int) error {
	if err := c.pushing.take("push", thread, time.Now().Add(c.timeout), c.interrupt); err != nil {
		return err
	}
	defer c.pushing.give()
	return c.refuse()
}

// refuse is Refuse, for a thread whose turn it is.
func (c *Client) refuse() error {
	results, err := c.ask(request.Refuse, &travel{}, nil)
	c.progress.stepped(results)
	return err
}

// Write sets the rows of the ids.
func (c *Client) Write(tables []TableRows) error {
	t, err := c.plan(request.Write, tables)
	if err != nil {
		return err
	}
	defer t.free()
	for i, r := range t.tables {
		if tables[i].Values.DType != op.Float32 {
			return status.New(status.Type, "write: rows of table %q are of %v; they must be of float32", r.table.Name, tables[i].Values.DType)
		}
		if int64(len(r.plan.Unique)) != tables[i].IDs.Count {
			return status.New(status.Argument, "write: ids of table %q appear several times", r.table.Name)
		}
		if err := r.table.roomFor(r.plan); err != nil {
			return err
		}
		if n := int64(len(r.plan.Unique)) * r.table.Dim; n > 0 {
			rows := unsafe.Slice((*float32)(r.rows), n)
			if !r.plan.Sum(rows, tables[i].Values, r.table.Dim) && r.table.Refuse {
				at := route.NotFinite(rows)
				return status.New(status.Argument, "write: the row of id %d of table %q is not finite: %v at element %d; nothing was written. non_finite=\"allow\" lets such rows through",
					r.plan.Unique[at/r.table.Dim], r.table.Name, rows[at], at%r.table.Dim)
			}
			if err := r.table.fit(r.plan.Unique, rows); err != nil {
				return err
			}
		}
	}
	if err := c.reserve(t); err != nil {
		return err
	}
	_, err = c.ask(request.Write, t, nil)
	return err
}

// reserve has the servers make the rows of a push or write that one of them might refuse when
// others have carried it out already: where several servers have tables with a limit, and rows that
// this trainer did not pull before.
func (c *Client) reserve(t *travel) error {
	if c.servers == 1 || c.progress.has(t) {
		return nil
	}
	if _, err := c.ask(request.Reserve, t, nil); err != nil {
		return err
	}
	c.progress.made(t)
	return nil
}

// Removed notes that the servers may have removed rows: they were restored.
func (c *Client) Removed() {
	c.progress.mu.Lock()
	c.progress.epoch++
	c.progress.mu.Unlock()
	c.geo.drop()
}

// travel is the rows of a call on their way. In the staging memory lie the ids of all tables, each
// once and dealt to servers, and their rows in the same order.
type travel struct {
	tables      []onTheWay
	ids, values *link.Memory
	byServer    *arranged // nil if a server's ids and rows lie together as it is
	list        int64     // words of room before the ids of a server, to name many tables
}

// onTheWay is the rows of one table in a travel.
type onTheWay struct {
	table  *Table
	rate   float64
	plan   *route.Plan
	madeAt int64          // the epoch in which the servers had all its rows; -1: they may lack some
	first  int64          // place of its ids in the staging memory
	rows   unsafe.Pointer // its rows there
	at     int64          // where they begin, in bytes

	rowBytes int64 // of a row
}

func (t *travel) free() {
	for _, r := range t.tables {
		if r.plan != nil {
			r.table.plans.put(r.plan, r.madeAt)
		}
	}
	for _, m := range []*link.Memory{t.ids, t.values} {
		if m != nil {
			m.Free()
		}
	}
	if t.byServer != nil {
		t.byServer.free()
	}
}

// plan deals the ids to the servers and takes memory for their rows.
func (c *Client) plan(what request.Op, tables []TableRows) (t *travel, err error) {
	if err := c.Completed(what.String()); err != nil {
		return nil, err
	}
	if len(tables) > request.MostTables {
		return nil, status.New(status.Argument, "%v: %d tables are more than one request takes, %d", what, len(tables), request.MostTables)
	}
	var n int64
	for i := range tables {
		if err := check(what, &tables[i]); err != nil {
			return nil, err
		}
		n += tables[i].IDs.Count
	}
	if err := once(what, tables); err != nil {
		return nil, err
	}
	t = &travel{tables: make([]onTheWay, len(tables))}
	t.list = (&request.Head{Tables: make([]request.TableRows, len(tables))}).ListLen()
	defer func() {
		if err != nil {
			t.free()
		}
	}()
	if t.ids, err = c.links.Memory(max(1, t.list+n) * 8); err != nil {
		return t, err
	}
	room := wordsOf(t.ids, t.list, n)
	var first, bytes int64
	for i := range tables {
		b, r := &tables[i], &t.tables[i]
		r.table, r.rate, r.first = b.Table, b.Rate, first
		r.rowBytes = what.Width(b.Table.Dim, b.Table.States) * int64(what.RowType(b.Table.Rows).Size())
		if r.plan, r.madeAt = b.Table.plans.take(b.IDs); r.plan == nil {
			if r.plan, err = route.New(b.IDs, c.servers, b.Table.By, b.Table.Offset); err != nil {
				return t, err
			}
		}
		copy(room[first:], r.plan.Unique)
		if limit := b.Table.NumIDs; limit > 0 {
			for _, id := range r.plan.Unique {
				if id < 0 || id >= limit {
					return t, status.New(status.Argument, "%v: id %d is not in table %q, which takes ids from 0 to %d (num_ids)", what, id, b.Table.Name, limit-1)
				}
			}
		}
		unique := int64(len(r.plan.Unique))
		if unique > 0 {
			bytes = request.Align(bytes)
		}
		r.at = bytes
		first += unique
		bytes += unique * r.rowBytes
	}
	if t.values, err = c.links.Memory(max(1, bytes)); err != nil {
		return t, err
	}
	for i := range t.tables {
		t.tables[i].rows = unsafe.Add(unsafe.Pointer(unsafe.SliceData(t.values.Bytes())), t.tables[i].at)
	}
	if c.servers > 1 && len(tables) > 1 {
		t.byServer, err = arrange(t, c.servers, c.links)
	}
	return t, err
}

// ask sends each server what is for it and returns how that has ended. The error is that of the
// first server that has one.
func (c *Client) ask(what request.Op, t *travel, seen []int64) (results []result, err error) {
	deadline := time.Now().Add(c.timeout)
	results = make([]result, c.servers)
	if t.byServer != nil {
		t.byServer.collect(t, what.Updates())
	}
	requests := make([]*link.Request, c.servers)
	for s := range c.servers {
		head := request.Head{Op: what, Seen: -1}
		var ids int64
		for _, r := range t.tables {
			n := r.plan.Starts[s+1] - r.plan.Starts[s]
			// All servers count the steps of a table, also in which they have none of its ids.
			if n > 0 || what.CountsSteps() && len(r.plan.Unique) > 0 {
				head.Tables = append(head.Tables, request.TableRows{Table: r.table.IDs[s], Count: uint32(n), Rate: r.rate})
			}
			ids += int64(n)
		}
		if ids == 0 && !what.Updates() {
			continue
		}
		c.progress.mu.Lock()
		here := c.progress.here[s]
		c.progress.mu.Unlock()
		switch {
		case what.IsStep():
			if what != request.Refuse {
				head.Seen = seen[s]
			}
			if !here.unsure {
				head.Step = here.steps + 1
			}
		case here.unsure:
			head.Step = request.AfterPush
		}
		r := &link.Request{Header: head.Encode(), Deadline: deadline, Interrupt: c.interrupt}
		if words := head.ListLen(); ids > 0 || words > 0 {
			at, rows := t.regions(s)
			if words > 0 {
				at.Offset, at.Bytes = at.Offset-8*words, at.Bytes+8*words
				head.PutList(wordsOf(at.M, at.Offset/8, words))
			}
			r.IDs = at
			switch what {
			case request.Pull, request.Look, request.LookZeros, request.ReadStates:
				r.Answer = rows
			case request.Push, request.Add, request.Write, request.WriteStates:
				r.Values = rows
			}
		}
		requests[s] = r
	}
	sent, err := c.send(requests, what.Updates())
	whole := !what.Writes() || len(t.tables) == 1 // it writes table by table
	for s, p := range sent {
		if p == nil {
			continue
		}
		var mistake error
		if results[s], mistake = resultOf(p, whole, deadline, unless(sent[s+1:], c.interrupt)); mistake != nil && err == nil {
			err = mistake
		}
	}
	if t.byServer != nil && what.Reads() {
		t.byServer.spread(t)
	}
	if status.CodeOf(err) == status.Timeout && c.Late != nil {
		err = c.Late(what.String(), err)
	}
	return results, err
}

// send sends the requests of a call, where there are some. It waits for free credits at all servers
// first: if that ends with an error, no server has got any. An update gets its number.
func (c *Client) send(requests []*link.Request, update bool) (sent []pending, err error) {
	sent = make([]pending, c.servers)
	for s, r := range requests {
		if r == nil {
			continue
		}
		if sent[s], err = c.links.claim(s, r); err != nil {
			for _, claimed := range sent[:s] {
				if claimed != nil {
					claimed.Drop()
				}
			}
			return nil, err
		}
	}
	if update {
		c.sending.Lock()
		defer c.sending.Unlock()
		c.number++
	}
	for s, p := range sent {
		if p == nil {
			continue
		}
		if update {
			request.SetNumber(requests[s].Header, c.number)
		}
		if mistake := p.Post(); mistake != nil {
			sent[s] = nil
			if err == nil {
				err = mistake
			}
		}
	}
	return sent, err
}

// wordsOf returns n words of memory, from one on.
func wordsOf(m *link.Memory, from, n int64) []int64 {
	return unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(m.Bytes()))), from+n)[from:]
}

// regions returns where the ids and the rows of a server lie.
func (t *travel) regions(s int) (ids, rows link.Region) {
	if a := t.byServer; a != nil {
		return link.Region{M: a.ids, Offset: 8 * a.firsts[s], Bytes: 8 * (a.lasts[s] - a.firsts[s])},
			link.Region{M: a.values, Offset: a.ats[s], Bytes: a.ends[s] - a.ats[s]}
	}
	if len(t.tables) == 1 {
		r := &t.tables[0]
		from, n, row := int64(r.plan.Starts[s]), int64(r.plan.Starts[s+1]-r.plan.Starts[s]), r.rowBytes
		return link.Region{M: t.ids, Offset: 8 * from, Bytes: 8 * n}, link.Region{M: t.values, Offset: from * row, Bytes: n * row}
	}
	last := &t.tables[len(t.tables)-1] // there is one server
	n := int64(len(last.plan.Unique))
	return link.Region{M: t.ids, Offset: 8 * t.list, Bytes: 8 * (last.first + n)}, link.Region{M: t.values, Bytes: last.at + n*last.rowBytes}
}
