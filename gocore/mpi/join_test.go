package mpi

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOldUCXIsRefused(t *testing.T) {
	for _, c := range []struct {
		version, device string
		refused         bool
	}{
		{"MPICH Version: 4.0.2", "ch4:ucx", true},
		{"MPICH Version: 4.1", "ch4:ucx", true},
		{"MPICH Version: 3.4.3", "ch4:ucx", true},
		{"MPICH Version: 4.2.0", "ch4:ucx", false},
		{"MPICH Version: 4.3.0b1", "ch4:ucx", false},
		{"MPICH Version: 5.0.2", "ch4:ucx", false},
		{"MPICH Version: 4.0.2", "ch4:ofi", false},
		{"MPICH Version: 4.0.2", "", false},
		{"Intel(R) MPI Library 2021.18", "", false},
	} {
		err := overOldUCX(c.version, c.device)
		if !c.refused {
			assert.NoError(t, err, "%s over %s", c.version, c.device)
			continue
		}
		assert.ErrorContains(t, err, strings.Fields(c.version)[2], "%s over %s", c.version, c.device)
	}
}
