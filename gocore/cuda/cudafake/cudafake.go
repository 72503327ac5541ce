// Package cudafake builds a CUDA driver that needs no GPU, for the tests of package cuda and of the
// packages above it. driver/fake.h says what it does, and how tests make it fail.
package cudafake

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Build returns the path of the fake driver, for PADDLEMPI_CUDA. It is the one that make has built,
// or, if that is older than a source, one that is compiled for this test. Without a C compiler the
// test is skipped.
func Build(t testing.TB) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	here := filepath.Dir(file)
	made := filepath.Join(here, "..", "..", "..", "build", "libcuda_fake.so")
	if upToDate(made, filepath.Join(here, "build.sh"), filepath.Join(here, "driver", "*"),
		filepath.Join(here, "..", "kernels", "*.cu"), filepath.Join(here, "..", "kernels", "*.h")) {
		return made
	}
	if _, err := exec.LookPath("gcc"); err != nil && os.Getenv("CC") == "" {
		t.Skip("the fake CUDA driver needs gcc, or another C compiler in CC")
	}
	out := filepath.Join(t.TempDir(), "libcuda_fake.so")
	if text, err := exec.Command(filepath.Join(here, "build.sh"), out).CombinedOutput(); err != nil {
		t.Fatalf("building the fake CUDA driver: %v\n%s", err, text)
	}
	return out
}

// upToDate tells whether the file made exists and no file of the patterns is newer.
func upToDate(made string, patterns ...string) bool {
	built, err := os.Stat(made)
	if err != nil {
		return false
	}
	for _, pattern := range patterns {
		sources, _ := filepath.Glob(pattern) // the patterns are well-formed
		for _, source := range sources {
			if s, err := os.Stat(source); err != nil || s.ModTime().After(built.ModTime()) {
				return false
			}
		}
	}
	return true
}
