// Package cudafake builds a CUDA driver that needs no GPU, for the tests of package cuda and
// of what stands on it. What it does, and how tests make it fail: driver/fake.h.
package cudafake

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Build compiles the fake driver and returns the path of the library, for PADDLEMPI_CUDA.
// PMPI_FAKECUDA_LIBRARY names one that is built already. Where there is no C compiler the
// test is skipped.
func Build(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("PMPI_FAKECUDA_LIBRARY"); path != "" {
		return path
	}
	if _, err := exec.LookPath("gcc"); err != nil && os.Getenv("CC") == "" {
		t.Skip("the fake CUDA driver needs gcc, or another C compiler in CC")
	}
	_, here, _, _ := runtime.Caller(0)
	out := filepath.Join(t.TempDir(), "libcuda_fake.so")
	command := exec.Command(filepath.Join(filepath.Dir(here), "build.sh"), out)
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("building the fake CUDA driver: %v\n%s", err, text)
	}
	return out
}
