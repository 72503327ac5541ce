// Package worktest is for tests of what rings doorbells.
package worktest

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/paddlempi/paddlempi/gocore/work"
)

// Bells returns the doorbells of n ranks, as each of them uses them.
func Bells(t testing.TB, n int) []*work.Bells {
	t.Helper()
	mem, err := syscall.Mmap(-1, 0, int(work.BellBytes(n)), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	all := make([]*work.Bells, n)
	for me := range all {
		all[me] = work.NewBells(unsafe.Pointer(unsafe.SliceData(mem)), n, me)
	}
	return all
}

// Rings tells whether this process rings while it does act, as a rank of two of which the other one sleeps.
func Rings(t testing.TB, act func()) bool {
	t.Helper()
	bells := Bells(t, 2)
	bells[0].Answer(false)
	defer bells[0].Ignore()
	seen := bells[1].Enter()
	act()
	return bells[1].Enter() != seen
}
