/* How often ids without a row were seen: a count-min sketch with conservative update (Estan and
 * Varghese, SIGCOMM 2002). It has 4 rows of 2^21 counters of 8 bits, 8 MiB. An id has one counter
 * in each row, and its count is the least of them. To count it, those that are the least become one
 * more; a counter stays at 255. So a count is never too small, and it is too large only where other
 * ids have all four counters.
 *
 * The counters depend on the seed and the ids alone, in the order in which they are counted: not on
 * the secret of this process, so that cuts and other servers can go on with them. Sketches of
 * several servers are joined by the greater of two counters, which is at least the count of each
 * id. A sum would be, too, but where servers have joined the same sketches before, each counter
 * would become twice as large when they are joined again.
 *
 * It forgets: after 2^20 counted ids all counters are halved, and 1 becomes 0. So ids that are seen
 * once do not fill it. Even if all 2^20 are such ids, the last of them finds all four counters
 * taken with a probability of (1 - exp(-1/2))^4 = 2.4 %, and is then admitted one sight too early;
 * on the average over the time between two halvings that are 0.6 %. */
#include "table.h"

#include <sys/mman.h>
#include <string.h>

enum { HALVED_AFTER = 1 << (PT_SKETCH_BITS - 1) };

int pt_sketch_new(pt_table *t) {
	void *at =
		mmap(NULL, PT_SKETCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return PT_NO_MEMORY;
	t->sketch = at;
	t->bytes += PT_SKETCH_BYTES;
	return PT_OK;
}

/* mix is the finalizer of splitmix64 (Steele et al., OOPSLA 2014). */
static uint64_t mix(uint64_t x) {
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

int64_t pt_sketch_count(pt_table *t, int64_t id) {
	uint64_t one = mix((uint64_t)id + mix(t->c.seed + 0x9e3779b97f4a7c15u));
	uint64_t two = mix(one ^ 0x9e3779b97f4a7c15u), width = 1u << PT_SKETCH_BITS;
	const uint64_t places[PT_SKETCH_ROWS] = {one, one >> PT_SKETCH_BITS, one >> 2 * PT_SKETCH_BITS,
											 two};
	uint8_t *counter[PT_SKETCH_ROWS], least = UINT8_MAX;
	for (uint64_t i = 0; i < PT_SKETCH_ROWS; i++) {
		counter[i] = t->sketch + i * width + (places[i] & (width - 1));
		least = *counter[i] < least ? *counter[i] : least;
	}
	least += least < UINT8_MAX;
	for (int i = 0; i < PT_SKETCH_ROWS; i++)
		*counter[i] = *counter[i] < least ? least : *counter[i];
	t->counted++;
	return least;
}

void pt_sketch_halve(pt_table *t) {
	if (t->counted < HALVED_AFTER)
		return;
	for (size_t i = 0; i < PT_SKETCH_BYTES; i += sizeof(uint64_t)) {
		uint64_t eight;
		memcpy(&eight, t->sketch + i, sizeof eight);
		eight = eight >> 1 & 0x7f7f7f7f7f7f7f7fu;
		memcpy(t->sketch + i, &eight, sizeof eight);
	}
	t->counted = 0;
}

int64_t pt_sketch_read(pt_table *t, uint8_t *counters) {
	pthread_rwlock_wrlock(&t->life);
	memcpy(counters, t->sketch, PT_SKETCH_BYTES);
	int64_t counted = t->counted;
	pthread_rwlock_unlock(&t->life);
	return counted;
}

void pt_sketch_add(pt_table *t, const uint8_t *counters, int64_t counted) {
	pthread_rwlock_wrlock(&t->life);
	for (size_t i = 0; i < PT_SKETCH_BYTES; i++)
		t->sketch[i] = t->sketch[i] < counters[i] ? counters[i] : t->sketch[i];
	/* What matters is whether it is due. */
	t->counted = counted < HALVED_AFTER - t->counted ? t->counted + counted : HALVED_AFTER;
	pthread_rwlock_unlock(&t->life);
}
