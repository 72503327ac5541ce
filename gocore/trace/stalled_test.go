package trace

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// kernel has the functions of this package read made-up files of process 7.
func kernel(t *testing.T, files map[string]string) {
	t.Helper()
	folder := t.TempDir()
	for name, text := range files {
		path := filepath.Join(folder, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	}
	before, beforeGroups := processes, cgroups
	processes, cgroups = folder, filepath.Join(folder, "groups")
	t.Cleanup(func() { processes, cgroups = before, beforeGroups })
}

func TestStalled(t *testing.T) {
	stat := func(state string) string { return "7 (a) R b) " + state + " 1 7 7 0" }
	for name, c := range map[string]struct {
		files map[string]string
		says  string
	}{
		"it sleeps":          {map[string]string{"7/stat": stat("S"), "7/schedstat": "5 6 7\n"}, ""},
		"stopped":            {map[string]string{"7/stat": stat("T")}, "is stopped by a signal"},
		"debugged":           {map[string]string{"7/stat": stat("t")}, "is stopped by a debugger"},
		"on a disk":          {map[string]string{"7/stat": stat("D"), "7/schedstat": "5 6 7\n"}, "waits in the kernel, for a disk, a network file system or swapped memory"},
		"without a CPU":      {map[string]string{"7/stat": stat("R"), "7/schedstat": "5 6 7\n"}, "is ready to run and gets no CPU"},
		"nothing is known":   {map[string]string{"7/stat": stat("R")}, ""},
		"rubbish":            {map[string]string{"7/stat": "7 (x", "7/schedstat": "x", "7/cgroup": "0::"}, ""},
		"there is none":      {nil, ""},
		"its cgroup runs":    {map[string]string{"7/stat": stat("S"), "7/cgroup": "0::/a/b\n", "groups/a/b/cgroup.events": "populated 1\nfrozen 0\n"}, ""},
		"its cgroup is kept": {map[string]string{"7/stat": stat("S"), "7/cgroup": "1:x:/\n0::/a/b\n", "groups/a/b/cgroup.events": "populated 1\nfrozen 1\n"}, "is in a cgroup that is frozen"},
	} {
		t.Run(name, func(t *testing.T) {
			kernel(t, c.files)
			assert.Equal(t, c.says, Stalled(7))
		})
	}
}

// A process that got a CPU between two looks is not stalled.
func TestAProcessThatRunsIsNotStalled(t *testing.T) {
	kernel(t, map[string]string{"7/stat": "7 (a) R 1", "7/schedstat": "5 6 7\n"})
	file := processFile(7, "schedstat")
	time.AfterFunc(stallLook/3, func() { _ = os.WriteFile(file, []byte("5 6 8\n"), 0o666) })
	assert.Empty(t, Stalled(7))
}

func TestAChildThatIsStopped(t *testing.T) {
	child := exec.Command("sleep", "60")
	require.NoError(t, child.Start())
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	pid := child.Process.Pid
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	assert.Eventually(t, func() bool { return Stalled(pid) == "is stopped by a signal" }, 20*time.Second, time.Millisecond)
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	assert.Eventually(t, func() bool { return Stalled(pid) == "" }, 20*time.Second, time.Millisecond)
}

func TestReportsInARing(t *testing.T) {
	r, v := newRing(t), &View{}
	v.file, v.pid = r.file, os.Getpid()
	assert.False(t, v.Told(77, time.Hour))
	r.Tell(77)
	assert.True(t, v.Told(77, time.Hour))
	assert.False(t, v.Told(78, time.Hour))
	time.Sleep(time.Millisecond)
	assert.False(t, v.Told(77, time.Microsecond))
	for id := range uint64(toldSlots) {
		r.Tell(100 + id)
	}
	assert.False(t, v.Told(77, time.Hour)) // it keeps the last ones
	assert.True(t, v.Told(100, time.Hour))
	var none *Ring
	none.Tell(1)
	none.Lock()()
}
