// Package fpmode carries out a reduction on a thread whose settings of floating point arithmetic are
// not the usual ones, for tests. A Go test cannot do so by itself: it may not contain C, and its
// goroutine may move to another thread.
package fpmode

/*
#cgo CFLAGS: -std=c11 -O1
#include "../fold.h"

#ifdef __x86_64__
#include <xmmintrin.h>
enum { USUAL = 0x1f80, FLUSH = USUAL | 0x8040, UPWARD = USUAL | 0x4000 };
static uint64_t get(void) { return _mm_getcsr() & ~0x3fu; } // without the flags of what has happened
static void set(uint64_t mode) { _mm_setcsr((unsigned)mode); }
#elif defined(__aarch64__)
enum { USUAL = 0, FLUSH = 1 << 24, UPWARD = 1 << 22 };
static uint64_t get(void) { uint64_t m; __asm__ volatile("mrs %0, fpcr" : "=r"(m)); return m; }
static void set(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#endif

static uint64_t call(void *run, const void *fold, void *const *dst, int ndst, const void *const *src, int nsrc,
					 int64_t n, uint64_t mode) {
	uint64_t before = get(), after;
	set(mode);
	((pmpi_folder)run)(fold, dst, ndst, src, nsrc, n);
	after = get();
	set(before);
	return after;
}

// sample returns bits that depend on what is done with subnormal numbers, and on the rounding.
static uint64_t sample(uint64_t mode) {
	uint64_t before = get();
	// Volatile, so that the compiler divides where it is written.
	volatile float tiny = 0x1p-126f, two = 2, one = -1, three = 3, half, third;
	set(mode);
	half = tiny / two;
	third = one / three;
	set(before);
	union { float f; uint32_t u; } a = {half}, b = {third};
	return (uint64_t)a.u << 32 | b.u;
}
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// Usual are the settings of a new thread.
const Usual = C.USUAL

// Odd are other settings, by name.
var Odd = map[string]uint64{"flush to zero": C.FLUSH, "rounding upward": C.UPWARD}

// Fold carries out a Fold of package reduce by run, its Folder, with the settings mode. It returns the
// settings afterwards; the thread gets its own ones back.
func Fold(run, fold unsafe.Pointer, dst, src []unsafe.Pointer, n int64, mode uint64) (after uint64) {
	return uint64(C.call(run, fold, unsafe.SliceData(dst), C.int(len(dst)), unsafe.SliceData(src), C.int(len(src)), C.int64_t(n), C.uint64_t(mode)))
}

// With calls f on a thread with the settings mode.
func With(mode uint64, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := C.get()
	C.set(C.uint64_t(mode))
	defer C.set(before)
	f()
}

// Sample returns bits that differ between Usual and each of Odd.
func Sample(mode uint64) uint64 { return uint64(C.sample(C.uint64_t(mode))) }
