package table

// #include "table.h"
import "C"

import "github.com/paddlempi/paddlempi/gocore/op"

// Remove removes the rows of those ids that have one, and returns how many it has removed. New rows
// take their memory. Calls under way come to their end first, and others wait meanwhile: a push that
// has made sure of its rows keeps them.
func (t *Table) Remove(ids *op.Buf) (int64, error) {
	c, err := t.checked("remove", Batch{IDs: ids})
	if err != nil {
		return 0, err
	}
	t.inUse.Lock()
	defer t.inUse.Unlock()
	if t.t == nil {
		return 0, freed()
	}
	return int64(C.pt_remove(t.t, &c)), nil
}
