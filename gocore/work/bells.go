package work

/*
#include <stdlib.h>

#include "../primitives/doorbells.h"

static int64_t pw_bells_bytes(int n) { return (int64_t)(pmpi_bells_stride(n) * (size_t)n); }

static pmpi_doorbells *pw_bells_new(char *at, int n, int me)
{
	pmpi_doorbells *b = calloc(1, sizeof *b);
	if (b) {
		b->at = at;
		b->n = n;
		b->me = me;
	}
	return b;
}

// pw_bells_find returns where the list points to b; NULL: nowhere.
static pmpi_doorbells **pw_bells_find(const pmpi_doorbells *b)
{
	pmpi_doorbells **at = &pmpi_bells;
	while (*at != NULL && *at != b)
		at = &(*at)->next;
	return *at == NULL ? NULL : at;
}

// One thread calls these at a time, others walk through the list meanwhile.
static void pw_bells_answer(pmpi_doorbells *b, int crowded)
{
	__atomic_store_n(&b->crowded, crowded, __ATOMIC_RELAXED);
	if (pw_bells_find(b) != NULL)
		return;
	__atomic_store_n(&b->next, pmpi_bells, __ATOMIC_RELEASE);
	__atomic_store_n(&pmpi_bells, b, __ATOMIC_RELEASE);
}

static void pw_bells_ignore(pmpi_doorbells *b)
{
	pmpi_doorbells **at = pw_bells_find(b);
	if (at != NULL)
		__atomic_store_n(at, b->next, __ATOMIC_RELEASE);
}

static void pw_ring(void) { pmpi_ring(); }
static void pw_bells_ring(pmpi_doorbells *b)
{
	for (int32_t i = 0; i < b->n; i++)
		pmpi_bell_ring(b->at, b->n, i);
}

static void pw_bell_ring(pmpi_doorbells *b) { pmpi_bell_ring(b->at, b->n, b->me); }
static uint32_t pw_bell_enter(pmpi_doorbells *b) { return pmpi_bell_enter(b->at, b->n, b->me); }
static void pw_bell_leave(pmpi_doorbells *b) { pmpi_bell_leave(b->at, b->n, b->me); }

static void pw_bell_sleep(pmpi_doorbells *b, uint32_t seen, long ns)
{
	pmpi_bell_sleep(b->at, b->n, b->me, seen, ns);
}
*/
import "C"

import (
	"sync"
	"time"
	"unsafe"
)

// Bells are the doorbells of a world on a node, as one of its ranks uses them (doorbells.h).
type Bells struct{ c *C.pmpi_doorbells }

// BellBytes returns the bytes of the doorbells of n ranks.
func BellBytes(n int) int64 { return int64(C.pw_bells_bytes(C.int(n))) }

// NewBells returns the doorbells in memory of BellBytes(n) that n ranks share, for rank me of them. Once Answer was called, the
// place of that memory has to stay mapped for as long as the process lives: see Ignore.
func NewBells(mem unsafe.Pointer, n, me int) *Bells {
	c := C.pw_bells_new((*C.char)(mem), C.int(n), C.int(me))
	if c == nil {
		panic("out of memory")
	}
	return &Bells{c}
}

// Of tells whether these are the doorbells of rank me of n.
func (b *Bells) Of(n, me int) bool { return int(b.c.n) == n && int(b.c.me) == me }

// Memory returns where they are.
func (b *Bells) Memory() unsafe.Pointer { return unsafe.Pointer(b.c.at) }

// answering guards the list of doorbells that this process rings, which threads that ring walk through without it.
var answering sync.Mutex

// Answer makes this process ring these doorbells whenever it writes something for which another rank may wait. crowded says
// that the node has more ranks than cores.
func (b *Bells) Answer(crowded bool) {
	more := C.int(0)
	if crowded {
		more = 1
	}
	answering.Lock()
	defer answering.Unlock()
	C.pw_bells_answer(b.c, more)
}

// Ignore ends that. A thread that has begun before may still ring them. The same Bells can be used again.
func (b *Bells) Ignore() {
	answering.Lock()
	defer answering.Unlock()
	C.pw_bells_ignore(b.c)
}

// Ring rings those that sleep until this process has done something. C that writes for other ranks does so by itself.
func Ring() { C.pw_ring() }

// Enter enters this rank among those whom the others ring, and returns the number of its bell, which a ring changes.
func (b *Bells) Enter() (seen uint32) { return uint32(C.pw_bell_enter(b.c)) }

// Leave takes this rank out again.
func (b *Bells) Leave() { C.pw_bell_leave(b.c) }

// ring wakes the threads of this rank that sleep.
func (b *Bells) ring() { C.pw_bell_ring(b.c) }

// RingAll rings the bells of all ranks, this one too: each has to look at once. It does nothing on nil.
func (b *Bells) RingAll() {
	if b != nil {
		C.pw_bells_ring(b.c)
	}
}

// UseBells says that the waits of this engine may sleep by b, whose ranks all answer.
func (e *Engine) UseBells(b *Bells) { e.bells.Store(b) }

// rouse wakes the goroutines of this process that sleep in Wait, because one of them may have to do something, or be done.
func (e *Engine) rouse() {
	if e.dozing.Load() > 0 {
		if b := e.bells.Load(); b != nil {
			b.ring()
		}
	}
}

// Looks counts the looks of something that waits, and says at which of them it looks at the clock as well, and for ranks that
// have died or left. Nearly all looks are nanoseconds apart, so every 32nd does, and the first one after a sleep until a bell
// rings: 32 of those take half a second. The zero value is ready for use.
type Looks struct {
	n     uint32
	dozes uint32 // of the engine, at the last look
}

// Due tells whether this look of a task of e, or in a wait of e, is such a one.
func (l *Looks) Due(e *Engine) bool {
	dozes := e.dozes.Load()
	slept := l.n > 0 && dozes != l.dozes
	l.n, l.dozes = l.n+1, dozes
	return slept || l.n%32 == 0
}

// enter enters this rank among those whom the others ring. Several goroutines may sleep.
func (e *Engine) enter(b *Bells) (seen uint32) {
	e.bed.Lock()
	defer e.bed.Unlock()
	e.dozing.Add(1)
	return b.Enter()
}

// getUp takes it out again, with the last goroutine.
func (e *Engine) getUp(b *Bells) {
	e.bed.Lock()
	defer e.bed.Unlock()
	if e.dozing.Add(-1) == 0 {
		b.Leave()
	}
}

// doze sleeps until another rank, or another thread of this process, has done something. It looks once more before it
// sleeps, and again after it: what a task finds out comes before what Background does. Returns whether done returned true.
func (e *Engine) doze(bells *Bells, b *Backoff, deadline time.Time, done func() bool) (over bool) {
	b.last = false
	seen := e.enter(bells)
	defer e.getUp(bells)
	moved, looked := e.tick(false, false)
	switch {
	case done():
		return true
	case moved:
		b.Reset()
	case !looked, b.Pace != Rung, Pace(e.pace.Load()) != Rung, e.stopped.Load() != nil:
		Yield()
	default:
		b.doze(deadline, func(d time.Duration) { C.pw_bell_sleep(bells.c, C.uint32_t(seen), C.long(d)) })
		e.dozes.Add(1)
		if moved, _ = e.tick(false, false); moved {
			b.Reset()
		}
		return done()
	}
	return false
}
