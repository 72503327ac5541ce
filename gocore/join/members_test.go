package join

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/mpi"
	"github.com/paddlempi/paddlempi/gocore/mpi/mpifake"
	"github.com/paddlempi/paddlempi/gocore/registry"
	"github.com/paddlempi/paddlempi/gocore/status"
	"github.com/paddlempi/paddlempi/gocore/transport"
)

// without connects the members of a job of MPI, of which this process is rank 2 of 4.
func without(t *testing.T, lib mpi.Library, interrupt error, members ...int) (transport.Comm, error) {
	t.Helper()
	registry.MPI = lib
	t.Cleanup(func() { registry.MPI = nil })
	o := Options{Job: &Job{Exchange: -1, Members: members, ID: "0e1f"}, Within: 200 * time.Millisecond}
	o.Interrupt = func() error { return interrupt }
	comm, got, err := o.Connect()
	if err == nil {
		assert.Equal(t, lib, got)
	}
	return comm, err
}

func TestMembersOfMPIsWorld(t *testing.T) {
	libs := mpifake.New(4)
	go func() { _, _ = libs[3].CreateWithout([]int32{3, 2}, "0e1f") }()
	comm, err := without(t, libs[2], nil, 3, 2)
	require.NoError(t, err)
	assert.Equal(t, 2, comm.Size())
	assert.Equal(t, 1, comm.Rank())
}

func TestMembersWhoseMPIDoesNotReturn(t *testing.T) {
	_, err := without(t, mpifake.New(4)[2], nil, 0, 2)
	assert.Equal(t, status.Timeout, status.CodeOf(err))
	assert.ErrorContains(t, err, "had not made a communicator of the 2 ranks that have met")
}

func TestMembersWhoAreInterrupted(t *testing.T) {
	revoked := status.New(status.Revoked, "reform: given up")
	_, err := without(t, mpifake.New(4)[2], revoked, 0, 2)
	assert.Equal(t, revoked, err)
}

func TestMembersWithoutMPI(t *testing.T) {
	_, err := without(t, nil, nil, 0, 2)
	assert.Equal(t, status.NotInitialized, status.CodeOf(err))
}
