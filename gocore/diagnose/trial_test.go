package diagnose

import (
	"context"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whatever happens to the child, MPI is given device memory only if the child says that it was
// moved.
func TestTrialInAChild(t *testing.T) {
	for _, c := range []struct {
		script string
		works  bool
		seen   string
	}{
		{`echo noise; echo '{"moved": "8 bytes"}'`, true, "8 bytes"},
		{`echo '{"error": "byte 3 arrived wrong"}'; exit 1`, false, "says: byte 3 arrived wrong"},
		{`kill -SEGV $$`, false, "died of segmentation fault"},
		{`echo '{"moved": "8 bytes"}'; kill -ABRT $$`, false, "died of aborted"}, // MPI ends a process in this way
		{`echo 'no module named x' >&2; exit 1`, false, "exit status 1: no module named x"},
		{`echo '{}'`, false, "failed"},
	} {
		works, seen := tryInChild(context.Background(), []string{"/bin/sh", "-c", c.script, "{}"}, nil)
		assert.Equal(t, c.works, works, c.script)
		assert.Contains(t, seen, c.seen, c.script)
	}
	works, seen := tryInChild(context.Background(), []string{"/nonexistent/python"}, nil)
	assert.False(t, works)
	assert.Contains(t, seen, "/nonexistent/python")
}

// A child that hangs is killed, with the processes that it started. Its files are deleted.
func TestTrialHasADeadline(t *testing.T) {
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Second)
	defer stop()
	said := t.TempDir() + "/said"
	script := "sleep 1000 & echo $! $TMPDIR >" + said + "; touch $TMPDIR/segment; wait"
	works, seen := tryInChild(ctx, []string{"/bin/sh", "-c", script}, []string{"PATH=/usr/bin:/bin"})
	assert.False(t, works)
	assert.Contains(t, seen, "did not end in time")
	text, err := os.ReadFile(said)
	require.NoError(t, err)
	words := strings.Fields(string(text))
	require.Len(t, words, 2)
	pid, err := strconv.Atoi(words[0])
	require.NoError(t, err)
	assert.NoDirExists(t, words[1])
	require.Eventually(t, func() bool { // the process stays a zombie if nothing reaps it
		state, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || strings.Contains(string(state), ") Z ") || syscall.Kill(pid, 0) != nil
	}, 20*time.Second, 10*time.Millisecond)
}

func TestTheChildIsNoRank(t *testing.T) {
	kept := withoutLauncher([]string{"PATH=/bin", "OMPI_COMM_WORLD_RANK=1", "PMIX_NAMESPACE=x", "PMI_FD=3", "SLURM_PROCID=0", "OMPI_MCA_pml=ucx",
		"PADDLEMPI_MPI=/other", "PADDLEMPI_CUDA_PATHS=direct", "MPI_LOCALRANKID=0"})
	assert.Equal(t, []string{"PATH=/bin", "OMPI_MCA_pml=ucx", "PADDLEMPI_CUDA_PATHS=direct"}, kept)
}
