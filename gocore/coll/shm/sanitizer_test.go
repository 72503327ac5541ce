package shm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// compiler returns a C compiler that has ThreadSanitizer, and skips the test if there is none.
func compiler(t *testing.T) string {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "empty.c")
	require.NoError(t, os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600))
	program := filepath.Join(dir, "empty")
	if out, err := exec.Command(cc, "-fsanitize=thread", source, "-o", program).CombinedOutput(); err != nil {
		t.Skipf("%s has no ThreadSanitizer: %v: %s", cc, err, out)
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Skipf("a program with ThreadSanitizer does not start here (vm.mmap_rnd_bits?): %v: %s", err, out)
	}
	return cc
}

// sanitizer has the flags of a program under ThreadSanitizer.
const sanitizer = "-O1 -g -fsanitize=thread"

// harness compiles testdata/ranks.c with slots.c, chunks.c and pool.c. replace changes a copy of these: a
// file, what it has, and what it has then. cc may have arguments.
func harness(t *testing.T, cc, flags string, replace ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, file := range []string{"arrive/slots.c", "arrive/slots.h", "primitives/doorbells.h", "primitives/kill.h", "primitives/words.h", "coll/shm/chunks.c", "coll/shm/chunks.h", "coll/shm/testdata/ranks.c", "reduce/fold.h", "primitives/yield.h", "threads/pool.c", "threads/pool.h"} {
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		require.NoError(t, err)
		to := filepath.Join(dir, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
		for i := 0; i+2 < len(replace); i += 3 {
			if strings.HasSuffix(file, replace[i]) {
				require.Contains(t, string(text), replace[i+1], "the test does not know %s any more", file)
				text = []byte(strings.ReplaceAll(string(text), replace[i+1], replace[i+2]))
			}
		}
		require.NoError(t, os.WriteFile(to, text, 0o600))
	}
	program := filepath.Join(dir, "ranks")
	out, err := exec.Command("sh", "-c", cc+` -std=c11 -pthread "$@" `+flags, "sh", filepath.Join(dir, "coll/shm/testdata/ranks.c"),
		filepath.Join(dir, "coll/shm/chunks.c"), filepath.Join(dir, "arrive/slots.c"), filepath.Join(dir, "threads/pool.c"), "-o", program).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// run runs a program of harness. args are those of testdata/ranks.c. It returns what the program
// printed. Ranks that wait for ever are an error.
func run(program string, args ...any) (string, error) {
	return runFor(30*time.Second, program, args...)
}

func runFor(limit time.Duration, program string, args ...any) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, strings.Fields(fmt.Sprintln(args...))...)
	cmd.Env = append(os.Environ(), "TSAN_OPTIONS=halt_on_error=1 exitcode=66")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the ranks may be processes
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Ranks as threads of one process go through collectives under ThreadSanitizer.
func TestThreadSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	program := harness(t, compiler(t), sanitizer)
	for _, size := range []int{2, 3, 5} {
		out, err := run(program, size, 120, size, 0, 1)
		require.NoError(t, err, "%d ranks: %s", size, out)
		assert.Equal(t, "120 done, 0 refused, given up at 0\n", out)
	}
	refused := 0
	for _, ahead := range []int{2, 5, 31, 32} {
		out, err := run(program, 2+ahead%2, 200, ahead, 0, ahead)
		require.NoError(t, err, "%d ahead: %s", ahead, out)
		assert.Contains(t, out, "given up at 0\n")
		if !strings.Contains(out, " 0 refused") {
			refused++
		}
	}
	assert.NotZero(t, refused, "no rank refused late")
	closed := 0
	for seed := range 16 {
		out, err := run(program, 2+seed%2, 100, seed, 1, 1+seed/2%4)
		require.NoError(t, err, "seed %d: %s", seed, out)
		if !strings.HasSuffix(out, "at 0\n") {
			closed++
		}
	}
	assert.NotZero(t, closed, "no rank gave up")
}

// ThreadSanitizer finds a weaker order: else the test above would show nothing.
func TestThreadSanitizerFindsWeakOrders(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	cc := compiler(t)
	for name, replace := range map[string][]string{
		"the announcement": {"slots.c", "sw_publish64(&s->seq, &old, here)", "__atomic_compare_exchange_n(&s->seq, &old, here, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)"},
		"finished":         {"slots.c", "sw_write64(&m[me].finished, seq - 1)", "__atomic_store_n(&m[me].finished, seq - 1, __ATOMIC_RELAXED)"},
		"who looks at it":  {"slots.c", "return seq < PA_SLOTS || pa_finished(m, n, seq - PA_SLOTS + 1);", "(void)m, (void)n, (void)seq; return 1;"},
		"done":             {"chunks.c", "sw_publish64(&op->words[chunk], &mine, done)", "__atomic_compare_exchange_n(&op->words[chunk], &mine, done, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)"},
	} {
		t.Run(name, func(t *testing.T) {
			program := harness(t, cc, sanitizer, replace...)
			for seed := 1; seed <= 10; seed++ { // a run may also end in another error, or hang
				if out, _ := runFor(5*time.Second, program, 2, 300, seed, 0, 32); strings.Contains(out, "data race") {
					return
				}
			}
			assert.Fail(t, "no run found it")
		})
	}
}
