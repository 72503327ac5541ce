package cgroup

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fake makes a tree with the given lines of /proc/self/cgroup and files.
func fake(t *testing.T, proc string, files map[string]string) tree {
	t.Helper()
	root := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text+"\n"), 0o644))
	}
	write("proc", proc)
	for file, text := range files {
		write(file, text)
	}
	return tree{filepath.Join(root, "proc"), root}
}

func TestMemoryLeft(t *testing.T) {
	for name, c := range map[string]struct {
		proc  string
		files map[string]string
		left  int64
		where string
	}{
		"version 2":       {"0::/a/b", map[string]string{"a/b/memory.max": "1000", "a/b/memory.current": "400"}, 600, "/a/b"},
		"one above":       {"0::/c/d", map[string]string{"c/d/memory.max": "max", "c/d/memory.current": "4", "c/memory.max": "50", "c/memory.current": "45"}, 5, "/c"},
		"more than it is": {"0::/e", map[string]string{"e/memory.max": "10", "e/memory.current": "40"}, 0, "/e"},
		"copies of files": {"0::/e", map[string]string{"e/memory.max": "50", "e/memory.current": "48", "e/memory.stat": "anon 8\ninactive_file 9\nactive_file 20"}, 31, "/e"},
		"version 1": {"5:cpu,memory:/f\n0::/", map[string]string{"memory/f/memory.limit_in_bytes": "90", "memory/f/memory.usage_in_bytes": "1"},
			89, "/f"},
		"version 1, copies of files": {"5:memory:/f", map[string]string{"memory/f/memory.limit_in_bytes": "90", "memory/f/memory.usage_in_bytes": "80",
			"memory/f/memory.stat": "active_file 1\ninactive_file 2\ntotal_active_file 10\ntotal_inactive_file 20"}, 40, "/f"},
		"version 1 without a limit": {"5:memory:/h", map[string]string{"memory/h/memory.limit_in_bytes": "9223372036854771712", "memory/h/memory.usage_in_bytes": "1"},
			math.MaxInt64, ""},
		"none": {"0::/g\n1:name=systemd:/g", nil, math.MaxInt64, ""},
	} {
		t.Run(name, func(t *testing.T) {
			left, where := fake(t, c.proc, c.files).memoryLeft()
			assert.Equal(t, c.left, left)
			assert.Equal(t, c.where, where)
		})
	}
	left, _ := tree{"/absent", "/"}.memoryLeft()
	assert.Equal(t, int64(math.MaxInt64), left)
}

func TestCPUs(t *testing.T) {
	for name, c := range map[string]struct {
		proc  string
		files map[string]string
		want  float64
	}{
		"version 2":                 {"0::/a", map[string]string{"a/cpu.max": "250000 100000"}, 2.5},
		"version 2 without a quota": {"0::/a", map[string]string{"a/cpu.max": "max 100000"}, math.Inf(1)},
		"less above":                {"0::/a/b", map[string]string{"a/cpu.max": "100000 100000", "a/b/cpu.max": "400000 100000"}, 1},
		"version 1":                 {"3:cpu,cpuacct:/a", map[string]string{"cpu/a/cpu.cfs_quota_us": "30000", "cpu/a/cpu.cfs_period_us": "10000"}, 3},
		"version 1 without a quota": {"3:cpu:/a", map[string]string{"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "10000"}, math.Inf(1)},
		"another controller":        {"3:cpuset:/a", map[string]string{"cpu/a/cpu.cfs_quota_us": "30000", "cpu/a/cpu.cfs_period_us": "10000"}, math.Inf(1)},
		"none":                      {"0::/g", nil, math.Inf(1)},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, fake(t, c.proc, c.files).cpus())
		})
	}
}

func TestWhoTakesMemoryWaitsForOthers(t *testing.T) {
	few := fake(t, "0::/a/b", map[string]string{"a/memory.max": "1000", "a/memory.current": "400"})
	unlock := few.lock(100, time.Minute)
	held := make(chan func())
	go func() { held <- few.lock(100, time.Minute) }()
	select {
	case <-held:
		t.Fatal("two have the lock")
	case <-time.After(50 * time.Millisecond):
	}
	few.lock(1, time.Minute)() // 600 bytes are enough for all
	unlock()
	second := <-held
	assert.False(t, impatient.Load())

	few.lock(100, 20*time.Millisecond)() // somebody keeps it
	assert.True(t, impatient.Load())
	few.lock(100, time.Hour)()
	impatient.Store(false)
	second()
	few.lock(100, time.Hour)()
	fake(t, "0::/a", nil).lock(100, time.Hour)()
	assert.False(t, impatient.Load())
}
