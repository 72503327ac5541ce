package route

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// No batch reads or writes outside its memory: testdata/batches.c with the C code of the room,
// under AddressSanitizer. It is skipped if the compiler does not have it.
func TestAddressSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	dir := t.TempDir()
	compile := func(program string, sources ...string) ([]byte, error) {
		arguments := append([]string{"-c", cc + ` -std=c11 -O1 -g -fno-sanitize-recover=all -fsanitize=address,undefined "$@"`, "sh", "-o", program}, sources...)
		return exec.CommandContext(ctx, "sh", arguments...).CombinedOutput()
	}
	empty := filepath.Join(dir, "empty.c")
	require.NoError(t, os.WriteFile(empty, []byte("int main(void) { return 0; }\n"), 0o600))
	program := filepath.Join(dir, "program")
	if out, err := compile(program, empty); err != nil {
		t.Skipf("%s has no -fsanitize=address: %v: %s", cc, err, out)
	}
	if out, err := exec.CommandContext(ctx, program).CombinedOutput(); err != nil {
		t.Skipf("a program with -fsanitize=address does not start here (vm.mmap_rnd_bits?): %v: %s", err, out)
	}
	sources, err := filepath.Glob("*.c")
	require.NoError(t, err)
	out, err := compile(program, append(sources, "testdata/batches.c")...)
	require.NoError(t, err, "%s", out)
	for _, isa := range instructionSets() {
		out, err := exec.CommandContext(ctx, program, strconv.Itoa(int(isas[isa]))).CombinedOutput()
		require.NoError(t, err, "%s: %s", isa, out)
		assert.Equal(t, "0 wrong\n", string(out), isa)
	}
}
