package table

// #cgo noescape pt_read_states
// #cgo nocallback pt_read_states
// #cgo noescape pt_write_states
// #cgo nocallback pt_write_states
// #include "table.h"
import "C"

import (
	"github.com/paddlempi/paddlempi/gocore/op"
	"github.com/paddlempi/paddlempi/gocore/status"
)

// StateLen returns how many floats the state of a row has.
func (c *Config) StateLen() int64 {
	return int64(C.pt_state_bytes(c.Optimizer.code(), C.int64_t(c.Dim))) / 4
}

// ReadStates copies the states of ids, [len(ids), StateLen]: of those without a row the first ones.
// It makes no row. steps is the table's.
func (t *Table) ReadStates(ids, states *op.Buf) (steps int64, err error) {
	if err := t.states("read states", ids, states, func(c *C.pt_batch) C.int { return C.pt_read_states(t.t, c) }); err != nil {
		return 0, err
	}
	return t.Steps(), nil
}

// WriteStates sets the states of ids, and the table's steps. It makes the rows that are missing.
func (t *Table) WriteStates(ids, states *op.Buf, steps int64) error {
	if steps < 0 {
		return status.New(status.Argument, "write states: steps=%d is below 0", steps)
	}
	if err := t.states("write states", ids, states, func(c *C.pt_batch) C.int { return C.pt_write_states(t.t, c) }); err != nil {
		return err
	}
	t.SetSteps(steps)
	return nil
}

func (t *Table) states(name string, ids, states *op.Buf, work func(*C.pt_batch) C.int) error {
	return t.call(name, Batch{IDs: ids, States: states}, work)
}
