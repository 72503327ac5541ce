package table

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// harness compiles testdata/threads.c with the C code of the table for a sanitizer. It skips the
// test if the compiler does not have it. replace changes a copy of the code: a file, what it has,
// and what it has then.
func harness(t *testing.T, sanitizer string, replace ...string) string {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	dir := t.TempDir()
	compile := func(program string, sources ...string) ([]byte, error) {
		arguments := append([]string{"-c", cc + ` -std=c11 -D_GNU_SOURCE -pthread -O1 -g -fno-sanitize-recover=all -fsanitize=` + sanitizer + ` "$@"`, "sh", "-o", program}, sources...)
		return exec.Command("sh", arguments...).CombinedOutput()
	}
	empty := filepath.Join(dir, "empty.c")
	require.NoError(t, os.WriteFile(empty, []byte("int main(void) { return 0; }\n"), 0o600))
	program := filepath.Join(dir, "program")
	if out, err := compile(program, empty); err != nil {
		t.Skipf("%s has no -fsanitize=%s: %v: %s", cc, sanitizer, err, out)
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Skipf("a program with -fsanitize=%s does not start here (vm.mmap_rnd_bits?): %v: %s", sanitizer, err, out)
	}
	var sources []string
	files, err := filepath.Glob("*.[ch]")
	require.NoError(t, err)
	for _, file := range append(files, "testdata/threads.c", "../../reduce/float16.h") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for i := 0; i+2 < len(replace); i += 3 {
			if file == replace[i] {
				require.Contains(t, string(text), replace[i+1], "the test does not know %s any more", file)
				text = []byte(strings.Replace(string(text), replace[i+1], replace[i+2], 1))
			}
		}
		to := filepath.Join(dir, "gocore/ps/table", filepath.Base(file))
		if strings.HasSuffix(file, "float16.h") {
			to = filepath.Join(dir, "gocore/reduce/float16.h")
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
		require.NoError(t, os.WriteFile(to, text, 0o600))
		if strings.HasSuffix(file, ".c") {
			sources = append(sources, to)
		}
	}
	out, err := compile(program, sources...)
	require.NoError(t, err, "%s", out)
	return program
}

func run(program string, arguments ...int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var words []string
	for _, a := range arguments {
		words = append(words, strconv.Itoa(a))
	}
	cmd := exec.CommandContext(ctx, program, words...)
	cmd.Env = append(os.Environ(), "TSAN_OPTIONS=halt_on_error=1 exitcode=66")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestThreadSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	program := harness(t, "thread")
	for seed, ids := range []int{1, 40, 3000, 100000} {
		for _, comeAndGo := range []int{0, 1} {
			out, err := run(program, 4, 60, ids, int(isas[best()]), seed, comeAndGo)
			require.NoError(t, err, "%d ids: %s", ids, out)
			assert.Equal(t, "0 wrong, some rows\n", out)
		}
	}
}

// ThreadSanitizer, or a row that is seen half updated, shows a lock that is missing: else the test
// above would show nothing.
func TestThreadSanitizerFindsMissingLocks(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	for name, replace := range map[string][]string{
		"of a pull":    {"batch.c", "pthread_rwlock_rdlock(&t->shard[__builtin_ctzll(left)].lock);", ";", "batch.c", "pthread_rwlock_unlock(&t->shard[__builtin_ctzll(left)].lock);", ";"},
		"of a push":    {"batch.c", "pthread_rwlock_trywrlock(&t->shard[left[i]].lock)", "0", "batch.c", "pthread_rwlock_trywrlock(&t->shard[shard].lock)", "0", "batch.c", "pthread_rwlock_unlock(&t->shard[shard].lock);", ";"},
		"of admission": {"lifetime.c", "pthread_rwlock_wrlock(&t->life);", ";", "lifetime.c", "pthread_rwlock_unlock(&t->life);", ";"},
		"of a block":   {"memory.c", "pthread_mutex_lock(&t->lock);", ";", "memory.c", "pthread_mutex_unlock(&t->lock);", ";"},
	} {
		t.Run(name, func(t *testing.T) {
			program := harness(t, "thread", replace...)
			for seed := range 30 { // the first two usually find it
				if out, err := run(program, 4, 100, 3000, int(isas[best()]), seed, seed%2); err != nil {
					assert.Contains(t, out, "data race")
					return
				}
			}
			assert.Fail(t, "no run found it")
		})
	}
}

func TestAddressSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	program := harness(t, "address,undefined")
	for isa, code := range isas {
		if isa != "portable" && isa != best() {
			continue
		}
		for seed, ids := range []int{1, 300, 20000} {
			for _, comeAndGo := range []int{0, 1} {
				out, err := run(program, 2, 80, ids, int(code), seed, comeAndGo)
				require.NoError(t, err, "%s, %d ids: %s", isa, ids, out)
				assert.Equal(t, "0 wrong, some rows\n", out)
			}
		}
	}
}
