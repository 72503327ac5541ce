package memory

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// compiled returns a program of testdata, and skips the test if the compiler does not have what flags ask for.
func compiled(t *testing.T, name, flags string) string {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	program := filepath.Join(t.TempDir(), name)
	build := func(source string) ([]byte, error) {
		command := exec.Command("sh", "-c", cc+` -std=gnu11 -O1 -g -Wall -Werror -pthread "$@" `+flags, "sh", source, "-o", program)
		return command.CombinedOutput()
	}
	if flags != "" {
		empty := filepath.Join(t.TempDir(), "empty.c")
		require.NoError(t, os.WriteFile(empty, []byte("int main(void) { return 0; }\n"), 0o600))
		if out, err := build(empty); err != nil {
			t.Skipf("%s does not take %s: %v: %s", cc, flags, err, out)
		}
		if out, err := exec.Command(program).CombinedOutput(); err != nil {
			t.Skipf("a program with %s does not start here: %v: %s", flags, err, out)
		}
	}
	out, err := build(filepath.Join("testdata", name+".c"))
	require.NoError(t, err, string(out))
	return program
}

// C sends and receives what C has to, in order, and trusts nothing that another process writes.
func TestRingsInC(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make test-ci runs it")
	}
	if byPieces {
		return // TestMain's other runs change nothing here
	}
	for _, run := range []struct{ what, flags string }{
		{"pass", "-fsanitize=thread"},
		{"pass", "-fsanitize=address,undefined -fno-sanitize-recover=all"},
		{"damage", "-fsanitize=address,undefined -fno-sanitize-recover=all"},
	} {
		t.Run(run.what+run.flags, func(t *testing.T) {
			program := compiled(t, "rings", run.flags)
			for seed := 1; seed <= 3; seed++ {
				out, err := exec.Command("timeout", "120", program, run.what, fmt.Sprint(seed)).CombinedOutput()
				assert.NoError(t, err, "seed %d: %s", seed, out)
			}
		})
	}
}
