package cudafake_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/cuda/cudafake"
	"github.com/paddlempi/paddlempi/gocore/dl"
)

func TestBuildGivesALibraryThatLoads(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	library, err := dl.Open(cudafake.Build(t), dl.Now|dl.Local)
	require.NoError(t, err)
	for _, name := range []string{"cuInit", "cuMemAlloc_v2", "cuLaunchKernel", "cuIpcOpenMemHandle_v2", "fakecuda_calls"} {
		assert.NotNil(t, library.Lookup(name), name)
	}
	assert.Nil(t, library.Lookup("memory_at"), "the fake's own functions stay inside")
}
