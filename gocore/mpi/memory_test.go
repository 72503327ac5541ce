package mpi

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/paddlempi/paddlempi/gocore/status"
)

func TestSharedMemoryWithWhichAnMPIStarts(t *testing.T) {
	const hydra = "/o/bin/hydra_pmi_proxy"
	ranks := func(n int, more ...string) map[string]string {
		vars := map[string]string{"PMI_SIZE": "8", "PMI_RANK": "1", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": fmt.Sprint(n)}
		for i := 0; i < len(more); i += 2 {
			vars[more[i]] = more[i+1]
		}
		return vars
	}
	mpich, intel, open := Info{Name: "MPICH"}, Info{Name: "Intel MPI"}, Info{Name: "Open MPI"}
	for _, c := range []struct {
		lib  Info
		ucx  bool
		vars map[string]string
		room int64 // MiB
		need string
	}{
		{mpich, true, ranks(2), 16, "MPICH needs 28 MiB of /dev/shm for the 2 ranks of this host, or it may crash when it starts, and there is room for 16 MiB"},
		{mpich, true, ranks(2), 28, ""},
		{mpich, true, ranks(12), 64, ""}, // what a container has
		{mpich, true, ranks(13), 64, "MPICH needs 68 MiB"},
		{mpich, true, ranks(1), 0, ""},
		{mpich, true, nil, 0, ""},
		{mpich, false, ranks(4), 4, "MPICH needs 5 MiB"},
		{mpich, false, ranks(4), 16, ""},
		{mpich, true, ranks(4, "UCX_TLS", "^posix,cma"), 16, ""},
		{mpich, true, ranks(4, "UCX_TLS", "tcp,self"), 16, ""},
		{mpich, true, ranks(4, "UCX_TLS", "tcp,sm"), 16, "UCX_TLS=^posix"},
		{mpich, true, ranks(4, "UCX_TLS", "^tcp"), 16, "UCX_TLS=^posix"},
		{mpich, true, ranks(4, "UCX_TLS", "all"), 16, "UCX_TLS=^posix"},
		{intel, false, ranks(4), 6, "Intel MPI needs 7 MiB"},
		{intel, false, ranks(4), 7, ""},
		{open, true, ranks(4), 0, ""},
	} {
		s := fakeHost(t, []string{hydra}, c.vars)
		err := s.checkShared(c.lib, s.launcher(), c.ucx, func() (int64, bool) { return c.room * mib, true })
		if c.need == "" {
			assert.NoError(t, err, "%+v", c)
			continue
		}
		assert.Equal(t, status.NoMemory, status.CodeOf(err))
		assert.ErrorContains(t, err, c.need)
		assert.NoError(t, s.checkShared(c.lib, s.launcher(), c.ucx, func() (int64, bool) { return 0, false }), "unknown")
	}
}
