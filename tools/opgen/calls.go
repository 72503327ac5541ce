package main

import (
	"fmt"
	"slices"
	"strings"
)

// call is one thing that pmpi_table does, with a table of embeddings or with a KV. Its code is part
// of the C ABI, and counts up over both.
type call struct {
	Code   int
	KV     bool     // of a KV; else of a table
	Ident  string   // in Go, behind Table or KV
	Needs  []string // the tensors that it cannot do without
	May    []string // those that may be absent
	Writes []string // those that it fills
	Doc    string   // what it does; it follows the name
}

// tensors are the tensors of a call, in their order in pmpi_table_op.
var tensors = []string{"ids", "values", "states"}

var calls = []call{
	{Code: 1, Ident: "Pull", Needs: []string{"ids", "values"}, Writes: []string{"values"},
		Doc: "copies the rows of the ids to values; missing rows are made"},
	{Code: 2, Ident: "Push", Needs: []string{"ids", "values"},
		Doc: "takes a gradient for each id in values, and updates its row by it"},
	{Code: 3, Ident: "Read", Needs: []string{"ids", "values"}, May: []string{"states"}, Writes: []string{"values", "states"},
		Doc: "copies the rows and states of the ids, which all have rows"},
	{Code: 4, Ident: "Write", Needs: []string{"ids", "values"}, May: []string{"states"},
		Doc: "sets the rows and states of the ids; missing rows are made"},
	{Code: 5, Ident: "IDs", Needs: []string{"ids"}, Writes: []string{"ids"},
		Doc: "fills ids, of int64, with ids that have rows"},

	{Code: 6, KV: true, Ident: "Push", Needs: []string{"ids", "values"},
		Doc: "starts a call that sends a row for each key; each key appears once. step: the command"},
	{Code: 7, KV: true, Ident: "Pull", Needs: []string{"ids"}, May: []string{"states"},
		Doc: "starts a call that asks for the rows of the keys. step: the command"},
	{Code: 8, KV: true, Ident: "PushPull", Needs: []string{"ids", "values"}, May: []string{"states"},
		Doc: "starts a call that sends a row for each key, and asks for the rows that the function returns. step: the command"},
	{Code: 9, KV: true, Ident: "Wait", May: []string{"values"}, Writes: []string{"values"},
		Doc: "waits for a call that was started; values get the rows of a pull. step: its timestamp"},
	{Code: 10, KV: true, Ident: "Take", Needs: []string{"ids"}, May: []string{"values"}, Writes: []string{"ids", "values"},
		Doc: "fills ids, of int64, and values with the keys and rows of a call, on its server; a pull has no values. step: the call, of ps_kv_next"},
	{Code: 11, KV: true, Ident: "Reply", May: []string{"ids", "values"},
		Doc: "answers a call, on its server; values: the rows of a pull. step: the call, of ps_kv_next"},

	{Code: 12, Ident: "Look", Needs: []string{"ids", "values"}, Writes: []string{"values"},
		Doc: "is a PULL that makes no rows: an id without one has what its row would begin with"},
	{Code: 13, Ident: "LookZeros", Needs: []string{"ids", "values"}, Writes: []string{"values"},
		Doc: "is a LOOK that has zeros for an id without a row"},

	{Code: 14, Ident: "ReadStates", Needs: []string{"ids", "states"}, Writes: []string{"states"},
		Doc: "copies the states of the ids, of those without a row the first ones, and makes no row; it counts the table's steps"},
	{Code: 15, Ident: "WriteStates", Needs: []string{"ids", "states"},
		Doc: "sets the states of the ids; missing rows are made. step: how many the table has made from now on"},
	{Code: 16, Ident: "Remove", Needs: []string{"ids"},
		Doc: "removes the rows of those ids that have one"},
}

// Of says whose call it is: "Table" or "KV".
func (c call) Of() string {
	if c.KV {
		return "KV"
	}
	return "Table"
}

// Name is the name in C and Python, behind PMPI_TABLE_ or PMPI_KV_: PUSH_PULL.
func (c call) Name() string {
	if c.Ident == "IDs" {
		return "IDS"
	}
	return snake(c.Ident)
}

// Macro is the name in C.
func (c call) Macro() string { return "PMPI_" + strings.ToUpper(c.Of()) + "_" + c.Name() }

// bits turns names of tensors into bits, the first one of tensors being bit 0.
func bits(names []string) (set int) {
	for _, name := range names {
		set |= 1 << slices.Index(tensors, name)
	}
	return set
}

// callsOf returns the calls of KVs, or of tables.
func callsOf(kv bool) (out []call) {
	for _, c := range calls {
		if c.KV == kv {
			out = append(out, c)
		}
	}
	return out
}

// validateCalls returns an error if the table of calls contradicts itself.
func validateCalls() error {
	seen := map[string]bool{}
	for i, c := range calls {
		if c.Code != i+1 {
			return fmt.Errorf("call %s has code %d in row %d: codes count up from 1", c.Macro(), c.Code, i+1)
		}
		if seen[c.Macro()] {
			return fmt.Errorf("call %s stands there twice", c.Macro())
		}
		seen[c.Macro()] = true
		for _, name := range slices.Concat(c.Needs, c.May, c.Writes) {
			if !slices.Contains(tensors, name) {
				return fmt.Errorf("call %s has a tensor %q; tensors are %q", c.Macro(), name, tensors)
			}
		}
		for _, name := range c.Writes {
			if !slices.Contains(c.Needs, name) && !slices.Contains(c.May, name) {
				return fmt.Errorf("call %s fills %s, which it does not take", c.Macro(), name)
			}
		}
	}
	return nil
}
