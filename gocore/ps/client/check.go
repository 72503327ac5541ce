package client

import (
	"math"
	"slices"

	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/ps/request"
	"github.com/paddlempi/paddlempi/gocore/ps/route"
	"github.com/paddlempi/paddlempi/gocore/ps/table"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// This file refuses calls before anything is sent.

// once returns an error if a table is named twice.
func once(what request.Op, tables []TableRows) error {
	const few = 32 // of fewer tables each is compared with all before it
	var seen map[*Table]bool
	if len(tables) > few {
		seen = make(map[*Table]bool, len(tables))
	}
	for i, r := range tables {
		there := seen[r.Table]
		if seen != nil {
			seen[r.Table] = true
		} else {
			there = slices.ContainsFunc(tables[:i], func(before TableRows) bool { return before.Table == r.Table })
		}
		if there {
			return status.New(status.Argument, "%v: table %q is named twice; put all its ids into one tensor", what, r.Table.Name)
		}
	}
	return nil
}

// wrongOut is the error of a pull into a tensor that is not of float32.
func wrongOut(what request.Op, r *TableRows) error {
	return status.New(status.Type, "%v: out of table %q is of %v; it must be of float32", what, r.Table.Name, r.Values.DType)
}

// check returns an error about a tensor of a call.
func check(what request.Op, r *TableRows) error {
	ids, values, name := r.IDs, r.Values, r.Table.Name
	width, of := what.Width(r.Table.Dim, r.Table.States), "dim"
	if what.OfStates() {
		of = "states of length"
	}
	switch {
	case ids.DType != op.Int64 && ids.DType != op.Int32:
		return status.New(status.Type, "%s: ids of table %q are of %v; they must be of int64 or int32", what, name, ids.DType)
	case values.DType != op.Float32 && values.DType != op.Float16 && values.DType != op.BFloat16:
		return status.New(status.Type, "%s: gradients or rows of table %q are of %v; they must be of float32, and gradients may be of float16 or bfloat16", what, name, values.DType)
	case values.Count != ids.Count*width:
		return status.New(status.Argument, "%s: %d ids of table %q, of %s %d, need %d elements, and there are %d", what, ids.Count, name, of, width, ids.Count*width, values.Count)
	case ids.Count > math.MaxInt32:
		return status.New(status.Argument, "%s: %d ids of table %q are more than one call takes, %d", what, ids.Count, name, math.MaxInt32)
	case !(r.Rate >= 0 || math.IsNaN(r.Rate)) || math.IsInf(r.Rate, 0):
		return status.New(status.Argument, "%s: learning_rate=%v of table %q is not a finite number of at least 0", what, r.Rate, name)
	}
	for _, b := range []*op.Buf{ids, values} {
		if !b.Contiguous() {
			return status.New(status.Argument, "%s: a tensor of table %q is not contiguous; pass a contiguous copy", what, name)
		}
		if !b.OnHost() {
			return status.New(status.Unsupported, "%s: a tensor of table %q is in device memory; tables take host memory: move it to the CPU", what, name)
		}
	}
	return nil
}

// roomFor returns an error if a write has more rows for a server than this one may have in all.
func (t *Table) roomFor(plan *route.Plan) error {
	if t.Config.MaxRows == 0 {
		return nil
	}
	servers := len(plan.Starts) - 1
	for s := range servers {
		n, most := int64(plan.Starts[s+1]-plan.Starts[s]), route.Share(t.Config.MaxRows, s, servers)
		if n > most {
			return status.New(status.Argument, "write: %d of the ids are for server %d of table %q, which has room for %d rows, its part of max_rows=%d; nothing was written",
				n, s, t.Name, most, t.Config.MaxRows)
		}
	}
	return nil
}

// fit returns an error if rows that are to be written, which are finite, would not be so in the
// dtype of the table.
func (t *Table) fit(ids []int64, rows []float32) error {
	at := t.Config.Beyond(rows)
	if at < 0 || !t.Refuse {
		return nil
	}
	return status.New(status.Argument, "write: the row of id %d of table %q has %v at element %d; the largest number of %s is %v; nothing was written. non_finite=\"allow\" makes it infinite",
		ids[at/t.Dim], t.Name, rows[at], at%t.Dim, t.Config.DType, table.Largest(t.Rows))
}
