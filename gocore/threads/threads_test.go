package threads

import (
	"cmp"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSetting(t *testing.T) {
	for text, want := range map[string]int{"": 0, "1": 1, "64": 64} {
		t.Setenv(Variable, text)
		n, err := Setting()
		require.NoError(t, err)
		assert.Equal(t, want, n)
	}
	for _, text := range []string{"0", "-1", "65", "2.5", "two", "99999999999999999999"} {
		t.Setenv(Variable, text)
		_, err := Setting()
		assert.ErrorContains(t, err, "init: PADDLEMPI_THREADS="+text+" is no number of threads from 1 to 64")
	}
}

func TestUsual(t *testing.T) {
	for _, c := range []struct {
		cpus, ranks int
		quota       float64
		sharing     int
		want        int
	}{
		{2, 2, math.Inf(1), 2, 1},
		{2, 1, math.Inf(1), 2, 1},
		{4, 1, math.Inf(1), 1, 2},
		{16, 2, math.Inf(1), 2, 4},
		{16, 4, math.Inf(1), 4, 2},
		{7, 1, math.Inf(1), 1, 3},
		{96, 2, math.Inf(1), 2, 8},
		{96, 2, 12, 2, 3},
		{1, 4, 0.5, 4, 1},
	} {
		assert.Equal(t, c.want, Usual(c.cpus, c.ranks, c.quota, c.sharing), "%+v", c)
	}
}

func TestFor(t *testing.T) {
	defer Use(Count(), true)
	Use(4, true)
	for bytes, want := range map[int64]int{0: 1, Least - 1: 1, Least: 2, 3 * perThread: 3, 1 << 40: 4} {
		assert.Equal(t, want, For(bytes), "%d bytes", bytes)
	}
	assert.Positive(t, CPUs())
}

// program compiles testdata/pool.c with a pool.c in which replace[0] is replace[1], if there is such a thing.
func program(t *testing.T, cc, flags string, replace ...string) string {
	dir := t.TempDir()
	pool, err := os.ReadFile("pool.c")
	require.NoError(t, err)
	text := string(pool)
	if len(replace) > 0 {
		require.Contains(t, text, replace[0])
		text = strings.ReplaceAll(text, replace[0], replace[1])
	}
	here, err := os.Getwd()
	require.NoError(t, err)
	text = strings.ReplaceAll(text, `#include "`, `#include "`+here+"/")
	changed, out := filepath.Join(dir, "pool.c"), filepath.Join(dir, "pool")
	require.NoError(t, os.WriteFile(changed, []byte(text), 0o600))
	said, err := exec.Command("sh", "-c", cc+` -std=c11 -pthread "$@" `+flags, "sh", "testdata/pool.c", changed, "-o", out).CombinedOutput()
	require.NoError(t, err, "%s", said)
	return out
}

func compiler() string { return cmp.Or(os.Getenv("CC"), "gcc") }

// Several callers spread work: every part is done once, by workers with numbers of their own, and helpers do some.
func TestSpread(t *testing.T) {
	run := program(t, compiler(), "-O2")
	for _, callers := range []string{"1", "3"} {
		out, err := exec.Command(run, callers, "2000", "1").CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Equal(t, "helpers did some\n", string(out), "%s callers", callers)
	}
}

// The same under ThreadSanitizer, which finds a helper that comes too early or stays too long.
func TestThreadSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	const sanitizer = "-O1 -g -fsanitize=thread"
	for name, replace := range map[string][]string{
		"as it is":               nil,
		"a helper that comes in": {"__ATOMIC_ACQUIRE, __ATOMIC_RELAXED))", "__ATOMIC_RELAXED, __ATOMIC_RELAXED))"},
		"a helper that goes out": {"INSIDE, __ATOMIC_RELEASE)", "INSIDE, __ATOMIC_RELAXED)"},
		"nobody waits for it":    {"inside(door) != 0; paused++", "0; paused++"},
	} {
		t.Run(name, func(t *testing.T) {
			run := program(t, compiler(), sanitizer, replace...)
			found := false
			for seed := 1; seed <= 5 && !found; seed++ {
				cmd := exec.Command(run, "2", "300", string(rune('0'+seed)))
				cmd.Env = append(os.Environ(), "TSAN_OPTIONS=halt_on_error=1 exitcode=66")
				out, err := cmd.CombinedOutput()
				found = strings.Contains(string(out), "data race") || err != nil
				if replace == nil {
					require.NoError(t, err, "%s", out)
				}
			}
			assert.Equal(t, replace != nil, found)
		})
	}
}
