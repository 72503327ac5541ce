// Package cudafake builds a CUDA driver that needs no GPU, for the tests of package cuda and of the
// packages above it. driver/fake.h says what it does, and how tests make it fail.
package cudafake

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Build returns the path of the fake driver, for PADDLEMPI_CUDA. It is the one that make has built,
// or, if that is older than a source, one that is compiled for this test. Without a C compiler the
// test is skipped.
func Build(t testing.TB) string {
	t.Helper()
	here := filepath.Join(root(t), "gocore", "cuda", "cudafake")
	made := filepath.Join(root(t), "build", "libcuda_fake.so")
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

// root returns the folder of the module, above the package that is tested. What the compiler tells of
// this file has no folders, by -trimpath.
func root(t testing.TB) string {
	t.Helper()
	at, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at
		}
		if at == filepath.Dir(at) {
			t.Fatal("no folder above this one has a go.mod")
		}
		at = filepath.Dir(at)
	}
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
