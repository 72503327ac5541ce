/* The words that ranks share in memory are read and written by these functions alone: in
 * arrive/slots.c, coll/shm/chunks.c, coll/bounce/rounds.c, transport/memory, and by windows. x86-64
 * hides a missing order, because its plain loads and stores have it; aarch64 does not. So
 * tests/wheels/test_order.py looks at the instructions of each of these functions on aarch64, and
 * that no other order is asked for elsewhere.
 *
 * A word without an order of its own (__ATOMIC_RELAXED) is ordered by another one that is written
 * after it and read before it. */
#ifndef PADDLEMPI_PRIMITIVES_WORDS_H
#define PADDLEMPI_PRIMITIVES_WORDS_H

#include <stdint.h>

/* sw_read returns a word. What its writer wrote before it is seen after this. */
static inline uint64_t sw_read64(const uint64_t *at) {
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline uint32_t sw_read32(const uint32_t *at) {
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

/* sw_write writes a word, after all that was written before. */
static inline void sw_write64(uint64_t *at, uint64_t value) {
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static inline void sw_write32(uint32_t *at, uint32_t value) {
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
}

/* sw_swap writes value if the word is *old. It returns 1, or 0 with the word in *old. It reads and
 * writes as the two above do. */
static inline int sw_swap64(uint64_t *at, uint64_t *old, uint64_t value) {
	return __atomic_compare_exchange_n(at, old, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* sw_publish is sw_swap for whoever reads nothing that the writer of *old wrote. */
static inline int sw_publish64(uint64_t *at, uint64_t *old, uint64_t value) {
	return __atomic_compare_exchange_n(at, old, value, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

/* sw_lock takes a lock: it writes holder if the word is 0, and returns whether it did. */
static inline int sw_lock32(uint32_t *at, uint32_t holder) {
	uint32_t free = 0;
	return __atomic_compare_exchange_n(at, &free, holder, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* sw_less takes 1 from a counter, after all that was read and written before. */
static inline void sw_less32(uint32_t *at) {
	__atomic_fetch_sub(at, 1, __ATOMIC_RELEASE);
}

/* These have one order, which all processes see: if one writes A and then reads B, and another one
 * writes B and then reads A, at least one of them sees what the other wrote. */
static inline uint32_t sw_read32_in_turn(const uint32_t *at) {
	return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}

static inline void sw_more32_in_turn(uint32_t *at) {
	__atomic_fetch_add(at, 1, __ATOMIC_SEQ_CST);
}

static inline void sw_more64_in_turn(uint64_t *at) {
	__atomic_fetch_add(at, 1, __ATOMIC_SEQ_CST);
}

/* sw_fence is the same for whatever was written before it and is read after it. */
static inline void sw_fence(void) {
#ifdef __SANITIZE_THREAD__ /* which knows no fences */
	static uint64_t order;
	__atomic_fetch_add(&order, 0, __ATOMIC_SEQ_CST);
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* sw_enter adds bits to a set, sw_leave takes some out of it. sw_take empties a set, and returns
 * what was in it. What follows sw_enter is read, and what precedes the others was written, in that
 * order, only with a fence. */
static inline void sw_enter64(uint64_t *at, uint64_t bits) {
	__atomic_fetch_or(at, bits, __ATOMIC_ACQ_REL);
}

static inline void sw_leave64(uint64_t *at, uint64_t bits) {
	__atomic_fetch_and(at, ~bits, __ATOMIC_ACQ_REL);
}

static inline uint64_t sw_take64(uint64_t *at) {
	return __atomic_exchange_n(at, 0, __ATOMIC_ACQ_REL);
}

#endif
