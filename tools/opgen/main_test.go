package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inModule puts a test into an empty module root.
func inModule(t *testing.T) string {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("go.mod", []byte("module m\n"), 0o644))
	return dir
}

func TestCommittedFilesAreUpToDate(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	assert.NoError(t, run(true))
}

func TestCheckNamesFilesThatAreNotUpToDate(t *testing.T) {
	inModule(t)
	require.NoError(t, run(false))
	require.NoError(t, run(true))

	require.NoError(t, os.WriteFile("docs/ops.md", []byte("edited by hand\n"), 0o644))
	err := run(true)
	require.ErrorContains(t, err, "docs/ops.md")
	assert.NotContains(t, err.Error(), "op_gen.go")
	text, err := os.ReadFile("docs/ops.md")
	require.NoError(t, err)
	assert.Equal(t, "edited by hand\n", string(text), "check writes nothing")

	require.NoError(t, os.Remove("capi/pmpi_ops.h"))
	require.ErrorContains(t, run(true), "capi/pmpi_ops.h")
	require.NoError(t, run(false))
	require.NoError(t, run(true))
}

func TestRunsInTheModuleRootOnly(t *testing.T) {
	t.Chdir(t.TempDir())
	assert.ErrorContains(t, run(false), "root of the module")
}

func TestValidateFindsContradictions(t *testing.T) {
	require.NoError(t, validate())
	for _, c := range []struct {
		spoil func()
		want  string
	}{
		{func() { operations[2].Code = 9 }, "all_reduce"},
		{func() { operations[2].Recv = "Two" }, "unknown arity"},
		{func() { operations[2].PeerToPeer = true }, "both"},
		{func() { operations[2].Gives = "Somebody" }, "in no table"},
		{func() { operations[2].Gives = "Nobody" }, "does not use"},
		{func() { operations[2].Gets = "Root" }, "only the root has"},
		{func() { operations[2].Shares = "Alike" }, "shares are Alike"},
		{func() { operations[2].Algorithms = nil }, "has 0 algorithms"},
		{func() { operations[2].Prefix, operations[2].Reduces = true, false }, "does not reduce"},
		{func() { dtypes[0].Code = 0 }, "dtype bool"},
		{func() { reduceOps[1].Code = 1 }, "PRODUCT"},
	} {
		o, d, r := operations[2], dtypes[0], reduceOps[1]
		c.spoil()
		assert.ErrorContains(t, validate(), c.want)
		operations[2], dtypes[0], reduceOps[1] = o, d, r
	}
}

func TestValidateFindsContradictionsOfCalls(t *testing.T) {
	require.NoError(t, validateCalls())
	for _, c := range []struct {
		spoil func()
		want  string
	}{
		{func() { calls[1].Code = 9 }, "PMPI_TABLE_PUSH has code 9 in row 2"},
		{func() { calls[1].Ident = "Pull" }, "PMPI_TABLE_PULL stands there twice"},
		{func() { calls[1].Needs = []string{"rows"} }, `a tensor "rows"`},
		{func() { calls[1].May = []string{"gradients"} }, `a tensor "gradients"`},
		{func() { calls[1].Writes = []string{"states"} }, "fills states, which it does not take"},
	} {
		before := calls[1]
		c.spoil()
		assert.ErrorContains(t, validateCalls(), c.want)
		calls[1] = before
	}
}
