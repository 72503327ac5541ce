#define _GNU_SOURCE
#include "lines.h"

#include <sched.h>

_Static_assert(sizeof(pa_slot) == 64, "a slot is one cache line");
_Static_assert(sizeof(pa_member) == 256, "a member is four cache lines");

static inline void pa_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

void pa_announce(pa_member *m, int me, uint64_t seq, const uint64_t *word, uint32_t flags)
{
	pa_slot *s = &m[me].slot[seq & 1];
	for (int i = 0; i < PA_WORDS; i++)
		s->word[i] = word[i];
	s->flags = flags;
	__atomic_store_n(&s->seq, seq, __ATOMIC_RELEASE);
}

int pa_poll(const pa_member *m, int n, int me, uint64_t seq, int spin, int yield_every, int *from,
            uint32_t *all, uint32_t *any, uint32_t *diff)
{
	int i = *from, paused = 0;
	while (i < n) {
		if (__atomic_load_n(&m[i].slot[seq & 1].seq, __ATOMIC_ACQUIRE) == seq) {
			i++;
			continue;
		}
		if (spin-- <= 0) {
			*from = i;
			return PA_PENDING;
		}
		if (yield_every && ++paused % yield_every == 0)
			sched_yield();
		else
			pa_pause();
	}
	*from = n;
	const pa_slot *own = &m[me].slot[seq & 1];
	uint32_t both = ~0u, either = 0, d = 0;
	for (i = 0; i < n; i++) {
		const pa_slot *s = &m[i].slot[seq & 1];
		both &= s->flags;
		either |= s->flags;
		for (int w = 0; w < PA_WORDS; w++)
			d |= (uint32_t)(s->word[w] != own->word[w]) << w;
	}
	*all = both;
	*any = either;
	*diff = d;
	return d ? PA_DIFFER : PA_AGREED;
}

uint64_t pa_seq(const pa_member *m, int i)
{
	uint64_t a = __atomic_load_n(&m[i].slot[0].seq, __ATOMIC_ACQUIRE);
	uint64_t b = __atomic_load_n(&m[i].slot[1].seq, __ATOMIC_ACQUIRE);
	return a > b ? a : b;
}

void pa_leave(pa_member *m, int me)
{
	__atomic_store_n(&m[me].left, 1, __ATOMIC_RELEASE);
}

int pa_left(const pa_member *m, int i)
{
	return __atomic_load_n(&m[i].left, __ATOMIC_ACQUIRE) != 0;
}
