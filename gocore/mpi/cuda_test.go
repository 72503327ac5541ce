package mpi

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

func TestTheUserSaysWhetherMPIIsCUDAAware(t *testing.T) {
	for value, want := range map[string][2]bool{"": {false, false}, "0": {false, true}, "1": {true, true}} {
		aware, set, err := fakeHost(t, nil, map[string]string{EnvCUDAAware: value}).cudaForced()
		require.NoError(t, err)
		assert.Equal(t, want, [2]bool{aware, set}, "%q", value)
	}
	for _, value := range []string{"yes", "2", " 1"} {
		_, _, err := fakeHost(t, nil, map[string]string{EnvCUDAAware: value}).cudaForced()
		assert.Equal(t, status.Argument, status.CodeOf(err))
		assert.ErrorContains(t, err, EnvCUDAAware+"=\""+value+"\"")
	}
}

func TestALibraryThatCannotBeAsked(t *testing.T) {
	aware, says := nothing(t).QueryCUDA() // libc has none of the functions
	assert.False(t, aware)
	assert.Contains(t, says, "no way to be asked")
}
