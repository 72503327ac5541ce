package server

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// This file has what tables whose ids come and go need of a server (package table says what these
// are). Their clock is the number of steps of the table, which is the same on all servers at a cut.
// Only pushes and writes make their rows, so nothing depends on when trainers pull.

// Fits returns an error if so many servers cannot hold a table as it is declared.
func (m *Meta) Fits(servers int) error {
	c := &m.Config
	switch {
	case !c.ComeAndGo():
		return nil
	case m.Dims != nil:
		return status.New(status.Unsupported, "table %q has %s and is a dense parameter: all of its blocks stay; admit_after, expire_after and max_rows are for embeddings", m.Name, lifetimeOf(c))
	case c.MaxRows > 0 && c.MaxRows < int64(servers):
		return status.New(status.Argument, "table %q has max_rows=%d, which the %d servers share: each needs room for a row", m.Name, c.MaxRows, servers)
	case c.MemoryLimit > 0 && servers > 1:
		// To refuse a push on all servers or on none the rows would have to be made before it.
		return status.New(status.Unsupported, "table %q has memory_limit=%d and %s on %d servers, where one might refuse a push that others have applied: "+
			"give max_rows alone, which bounds the memory of each server", m.Name, c.MemoryLimit, lifetimeOf(c), servers)
	}
	return nil
}

// lifetimeOf names what a table has of a lifetime.
func lifetimeOf(c *table.Config) string {
	var has []string
	for _, one := range []struct {
		name  string
		value int64
	}{{"admit_after", c.AdmitAfter}, {"expire_after", c.ExpireAfter}, {"max_rows", c.MaxRows}} {
		if one.value > 0 {
			has = append(has, fmt.Sprintf("%s=%d", one.name, one.value))
		}
	}
	return strings.Join(has, ", ")
}

// pullMeans copies means of the squares of gradients (delay.go). Those of ids without a row are 0.
func (t *served) pullMeans(means table.Batch) error {
	if t.table.ComeAndGo() {
		return t.means.Look(means, true)
	}
	return t.means.Pull(means)
}

// writeMeans sets means. Where ids come and go, these are means of ids that have rows: a push may
// have made none of some. there is room for a byte for each id.
func (t *served) writeMeans(means table.Batch, there []byte) error {
	if !t.table.ComeAndGo() {
		return t.means.Write(means) // its rows are there: it needs no memory
	}
	if err := t.table.Find(table.Batch{IDs: means.IDs}, there); err != nil {
		return err
	}
	ids := unsafe.Slice((*int64)(means.IDs.Data), means.IDs.Count)
	values := unsafe.Slice((*float32)(means.Values.Data), means.Values.Count)
	var n int64
	for i, is := range there {
		if is == 1 {
			ids[n] = ids[i]
			copy(values[n*t.table.Dim:(n+1)*t.table.Dim], values[int64(i)*t.table.Dim:])
			n++
		}
	}
	t.means.SetSteps(t.table.Steps())
	return t.means.Write(table.Batch{IDs: &op.Buf{Data: means.IDs.Data, Count: n, DType: op.Int64, NDim: 1},
		Values: &op.Buf{Data: means.Values.Data, Count: n * t.table.Dim, DType: op.Float32, NDim: 1}})
}
