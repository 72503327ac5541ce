#include "route.h"

#include <string.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

/* The words of so many ids are fetched while those of as many before are searched. */
enum { BLOCK = 64 };

static int64_t lines(int64_t bytes) {
	return (bytes + 63) / 64 * 64;
}

/* The set has a power of 2 of words, at least twice as many as ids. */
static int bits_of(int64_t n) {
	int bits = 5;
	while ((int64_t)1 << bits < 2 * n)
		bits++;
	return bits;
}

int64_t pr_scratch(int64_t n) {
	return lines(8 * n) + lines(4 * n) + lines(4 * n) + lines((int64_t)4 << bits_of(n));
}

static inline uint64_t keyed(const uint64_t *key, int64_t id) {
	unsigned __int128 product = (unsigned __int128)((uint64_t)id ^ key[0]) * key[1];
	uint64_t folded = (uint64_t)product ^ (uint64_t)(product >> 64);
	return folded * 0x9e3779b97f4a7c15u;
}

/* owner_of is By.Owner of route.go. */
static inline uint32_t owner_of(int64_t id, int32_t by, int64_t servers, int64_t offset) {
	if (by == PR_BY_MODULO) {
		int64_t rest = id % servers;
		return (uint32_t)((rest + (rest < 0 ? servers : 0) + offset) % servers);
	}
	uint64_t h = (uint64_t)id + (uint64_t)offset;
	h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
	h = (h ^ h >> 27) * 0x94d049bb133111ebu;
	h ^= h >> 31;
	return (uint32_t)((unsigned __int128)h * (uint64_t)servers >> 64);
}

static inline int64_t id_at(const void *ids, int32_t id_bytes, int64_t i) {
	return id_bytes == 8 ? ((const int64_t *)ids)[i] : ((const int32_t *)ids)[i];
}

/* fetch fetches the words of a block of ids. */
static inline __attribute__((always_inline)) void fetch(const void *ids, int32_t id_bytes,
														int64_t from, int64_t n,
														const uint64_t *key, uint64_t *hash,
														const uint32_t *set, int bits) {
	const int64_t m = n - from < BLOCK ? n - from : BLOCK;
	for (int64_t k = 0; k < m; k++) {
		hash[k] = keyed(key, id_at(ids, id_bytes, from + k));
		__builtin_prefetch(set + (hash[k] >> (64 - bits)), 1);
	}
}

/* distinct lists the ids in order of first appearance, in seen, and returns how many there are.
 * Whether an id was seen before, no processor can guess, so there is no branch on it: of a block,
 * the ids that the set has at once are found first, and what is left, mostly new ids, is searched
 * then. */
static inline __attribute__((always_inline)) int64_t distinct(const void *ids, int64_t n,
															  int32_t id_bytes, const uint64_t *key,
															  int64_t *seen, int32_t *inverse,
															  uint8_t *first, uint32_t *set) {
	const int bits = bits_of(n);
	/* The low bits of a word are an index into seen, which counts from 1. 0 is a free word. */
	const uint32_t index = (uint32_t)(((uint64_t)1 << bits) - 1);
	memset(set, 0, sizeof *set << bits);
	int64_t found = 0;
	uint64_t hashes[2][BLOCK];
	fetch(ids, id_bytes, 0, n, key, hashes[0], set, bits);
	for (int64_t from = 0; from < n; from += BLOCK) {
		const uint64_t *hash = hashes[from / BLOCK & 1];
		fetch(ids, id_bytes, from + BLOCK, n, key, hashes[~(from / BLOCK) & 1], set, bits);
		const uint32_t m = n - from < BLOCK ? (uint32_t)(n - from) : BLOCK;
		uint32_t rest[BLOCK], left = 0;
		for (uint32_t k = 0; k < m; k++) {
			const uint32_t word = set[hash[k] >> (64 - bits)];
			const uint32_t at = (word & index) - (word != 0);
			const int same = seen[at] == id_at(ids, id_bytes, from + k);
			const int here = (word != 0) & (((word ^ (uint32_t)hash[k]) & ~index) == 0) & same;
			inverse[from + k] = (int32_t)at;
			first[from + k] = 0;
			rest[left] = k;
			left += !here;
		}
		for (uint32_t r = 0; r < left; r++) {
			const uint32_t k = rest[r], tag = (uint32_t)hash[k] & ~index;
			const int64_t id = id_at(ids, id_bytes, from + k);
			uint32_t at = (uint32_t)(hash[k] >> (64 - bits)), word;
			while ((word = set[at]) != 0) {
				if ((word & ~index) == tag && seen[(word & index) - 1] == id)
					break;
				at = (at + 1) & index;
			}
			if (word == 0) {
				seen[found++] = id;
				set[at] = word = tag | (uint32_t)found;
				first[from + k] = 1;
			}
			inverse[from + k] = (int32_t)((word & index) - 1);
		}
	}
	return found;
}

void pr_plan(const void *ids, int64_t n, int32_t id_bytes, int32_t by, int64_t servers,
			 int64_t offset, const uint64_t *key, int64_t *unique, int64_t *starts,
			 int32_t *inverse, uint8_t *first, void *scratch) {
	char *room = scratch;
	int64_t *seen = servers == 1 ? unique : (int64_t *)room;
	room += lines(8 * n);
	uint32_t *owner = (uint32_t *)room;
	room += lines(4 * n);
	int32_t *place = (int32_t *)room;
	uint32_t *set = (uint32_t *)(room + lines(4 * n));
	int64_t found = id_bytes == 8 ? distinct(ids, n, 8, key, seen, inverse, first, set)
								  : distinct(ids, n, 4, key, seen, inverse, first, set);
	memset(starts, 0, sizeof *starts * (size_t)(servers + 1));
	starts[servers] = found;
	if (servers == 1)
		return;
	/* A counting sort by servers. starts[s] first counts the ids of s, then says where the next of
	 * them goes, which ends where those of s+1 begin. */
	for (int64_t u = 0; u < found; u++)
		starts[owner[u] = owner_of(seen[u], by, servers, offset)]++;
	for (int64_t s = 0, sum = 0; s < servers; s++) {
		int64_t count = starts[s];
		starts[s] = sum;
		sum += count;
	}
	for (int64_t u = 0; u < found; u++) {
		int64_t to = starts[owner[u]]++;
		unique[to] = seen[u];
		place[u] = (int32_t)to;
	}
	memmove(starts + 1, starts, sizeof *starts * (size_t)(servers - 1));
	starts[0] = 0;
	for (int64_t i = 0; i < n; i++)
		inverse[i] = place[inverse[i]];
}

int32_t pr_same(const void *ids, int64_t n, int32_t id_bytes, const int64_t *unique,
				const int32_t *inverse) {
	enum {
		AT_ONCE = 512
	}; /* without branches between them; other batches differ in the first ones */
	for (int64_t from = 0; from < n; from += AT_ONCE) {
		const int64_t to = n < from + AT_ONCE ? n : from + AT_ONCE;
		int64_t differ = 0;
		for (int64_t i = from; i < to; i++)
			differ |= unique[inverse[i]] ^ id_at(ids, id_bytes, i);
		if (differ)
			return 0;
	}
	return 1;
}

void pr_gather(int32_t isa, void *out, const void *rows, int64_t row_bytes, const int32_t *inverse,
			   int64_t n) {
	if (isa == PR_AVX512)
		pr_gather_avx512(out, rows, row_bytes, inverse, n);
	else if (isa == PR_AVX2)
		pr_gather_avx2(out, rows, row_bytes, inverse, n);
	else
		pr_gather_portable(out, rows, row_bytes, inverse, n);
}

void pr_widen(int32_t isa, float *out, const uint16_t *rows, int32_t dtype, int64_t dim,
			  const int32_t *inverse, int64_t n) {
	if (isa == PR_AVX512)
		pr_widen_avx512(out, rows, dtype, dim, inverse, n);
	else if (isa == PR_AVX2)
		pr_widen_avx2(out, rows, dtype, dim, inverse, n);
	else
		pr_widen_portable(out, rows, dtype, dim, inverse, n);
}

/* The settings of floating point arithmetic of a new thread. */
#ifdef __x86_64__
typedef uint32_t fp_mode;
enum { USUAL = 0x1f80 };

static fp_mode get_mode(void) {
	return _mm_getcsr();
}

static void set_mode(fp_mode m) {
	_mm_setcsr(m);
}
#elif defined(__aarch64__)
typedef uint64_t fp_mode;
enum { USUAL = 0 };

static fp_mode get_mode(void) {
	uint64_t m;
	__asm__ volatile("mrs %0, fpcr" : "=r"(m));
	return m;
}

static void set_mode(fp_mode m) {
	__asm__ volatile("msr fpcr, %0" : : "r"(m));
}
#endif

uint32_t pr_sum(int32_t isa, float *sums, const void *gradients, int32_t dtype, int64_t dim,
				const int32_t *inverse, const uint8_t *first, int64_t n) {
	fp_mode before = get_mode();
	uint32_t wrong;
	set_mode(USUAL);
	if (isa == PR_AVX512)
		wrong = pr_sum_avx512(sums, gradients, dtype, dim, inverse, first, n);
	else if (isa == PR_AVX2)
		wrong = pr_sum_avx2(sums, gradients, dtype, dim, inverse, first, n);
	else
		wrong = pr_sum_portable(sums, gradients, dtype, dim, inverse, first, n);
	set_mode(before);
	return wrong;
}

static int is_finite(float value) {
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return (bits & 0x7f800000) != 0x7f800000;
}

int64_t pr_not_finite(const float *values, int64_t n) {
	enum { BLOCK = 1024 }; /* a loop without branches, which the compiler makes vectors of */
	for (int64_t at = 0; at < n; at += BLOCK) {
		int64_t end = at + BLOCK < n ? at + BLOCK : n;
		uint32_t wrong = 0;
		for (int64_t i = at; i < end; i++)
			wrong |= !is_finite(values[i]);
		for (int64_t i = at; wrong && i < end; i++)
			if (!is_finite(values[i]))
				return i;
	}
	return -1;
}
