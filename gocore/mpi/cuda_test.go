package mpi

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestALibraryThatCannotBeAsked(t *testing.T) {
	aware, says := nothing(t).QueryCUDA() // libc has none of the functions
	assert.False(t, aware)
	assert.Contains(t, says, "no way to be asked")
}
