/* Ids that come and go: a row is made by the push that has seen its id often enough, is removed
 * when no push had it for too long, and makes place for others when the table has as many as it
 * may.
 *
 * The clock is the number of pushes (or the step, which the caller passes). Every row has a stamp,
 * the clock at its last use. A stamp is an int64 and never wraps. The stamps lie behind the states
 * of a slab, 8 rows to a cache line: beside its row, each would take a line of its own, and scans
 * would read the rows.
 *
 * A push has two parts. The first goes through the shards as in other tables, updates the rows that
 * are there, and notes which places of the batch have none. Only if there are such, pt_admit
 * decides alone, in the order of appearance in the batch, which ids get a row: it counts them, and
 * removes rows if the table has no place. The second part makes those rows and updates them. So
 * what happens depends on nothing but the calls: not on the secret of the hash, the threads or the
 * shards.
 *
 * Who decides, or writes rows, holds the lock life alone; the parts of a push share it; whoever
 * only reads rows does not need it, but the locks of shards. A push that was given place (claims)
 * and has not taken it yet counts as if it had.
 *
 * A row that is too old is as if it were not there, from the moment on in which the clock says so.
 * Its memory is found later: by a push of its id, by pt_settle, which goes through a few bins after
 * every push, or by pt_live_rows. */
#include "table.h"

#include <string.h>

/* pt_key is the order in which rows make place: the last use, then the id. */
typedef unsigned __int128 pt_key;

static pt_key key_of(int64_t stamp, int64_t id) {
	const uint64_t sign = 1ull << 63;
	return (pt_key)((uint64_t)stamp ^ sign) << 64 | ((uint64_t)id ^ sign);
}

/* pt_set has places of a batch by their ids. */
typedef struct pt_set {
	const pt_batch *b;
	uint32_t *slots; /* 1 + a place; 0: free */
	uint32_t bits;
} pt_set;

/* new_set makes an empty set for n places, of which slots has room for four times as many. */
static pt_set new_set(const pt_batch *b, int64_t n, uint32_t *slots) {
	pt_set s = {b, slots, 1};
	while ((1ll << s.bits) < 2 * n)
		s.bits++;
	memset(slots, 0, sizeof *slots << s.bits);
	return s;
}

/* slot_of returns the slot that an id has, or will have. */
static uint32_t *slot_of(const pt_table *t, const pt_set *s, int64_t id) {
	/* The ids of one shard have the first bits of the hash in common. */
	uint32_t at = (uint32_t)(pt_hash(&t->c, id) << PT_SHARD_BITS >> (64 - s->bits));
	while (s->slots[at] && pt_id_at(s->b, s->slots[at] - 1) != id)
		at = (at + 1) & ((1u << s->bits) - 1);
	return &s->slots[at];
}

/* ---- which rows make place ---- */

/* pt_guard keeps the rows of the ids of a push; NULL: none. */
typedef struct pt_guard {
	int64_t now;
	pt_set ids;
} pt_guard;

static int guarded(const pt_table *t, const pt_guard *g, int64_t stamp, int64_t id) {
	return g && stamp >= g->now && *slot_of(t, &g->ids, id);
}

static void fetch_stamps(const pt_table *t, const pt_shard *s, uint32_t bin) {
	if (bin >= s->n_bins)
		return;
	for (uint32_t l = 0; l < s->bins[bin].used; l++)
		__builtin_prefetch(pt_stamp(t, s, s->bins[bin].row[l]));
}

enum { AHEAD = 8 };

/* purge removes the rows of some bins whose keys are at most so much, and returns how many. A bin
 * that is behind in the search may give it another id then, which is looked at too. */
static int64_t purge(pt_table *t, pt_shard *s, uint32_t from, uint32_t to, pt_key most,
					 const pt_guard *g) {
	int64_t removed = 0;
	for (uint32_t i = from; i < to; i++) {
		fetch_stamps(t, s, i + AHEAD);
		for (uint32_t l = 0; l < s->bins[i].used;) {
			int64_t id = s->bins[i].id[l], stamp = *pt_stamp(t, s, s->bins[i].row[l]);
			if (key_of(stamp, id) <= most && !guarded(t, g, stamp, id)) {
				pt_remove_at(t, s, i, l);
				removed++;
			} else {
				l++;
			}
		}
	}
	return removed;
}

static int64_t purge_all(pt_table *t, pt_key most, const pt_guard *g) {
	int64_t removed = 0;
	for (int i = 0; i < PT_SHARDS; i++) {
		pt_shard *s = &t->shard[i];
		pthread_rwlock_wrlock(&s->lock);
		removed += purge(t, s, 0, s->n_bins, most, g);
		pthread_rwlock_unlock(&s->lock);
	}
	return removed;
}

/* expire_all removes all rows that are too old. */
static void expire_all(pt_table *t, int64_t oldest) {
	if (oldest == INT64_MIN)
		return;
	int64_t removed = purge_all(t, key_of(oldest, INT64_MIN) - 1, NULL);
	__atomic_add_fetch(&t->expired, removed, __ATOMIC_RELAXED);
}

enum { BUCKET_BITS = 10, BUCKETS = 1 << BUCKET_BITS };

/* pt_tally counts the keys from low to high in buckets of equal width. */
typedef struct pt_tally {
	pt_key low, high;
	int shift;
	int64_t count[BUCKETS];
	pt_key least[BUCKETS], most[BUCKETS];
} pt_tally;

static void tally(pt_tally *y, pt_key key) {
	if (key < y->low || key > y->high)
		return;
	uint32_t i = (uint32_t)((key - y->low) >> y->shift);
	if (y->count[i]++ == 0) {
		y->least[i] = y->most[i] = key;
		return;
	}
	y->least[i] = key < y->least[i] ? key : y->least[i];
	y->most[i] = key > y->most[i] ? key : y->most[i];
}

static void tally_table(const pt_table *t, pt_tally *y, const pt_guard *g) {
	for (int i = 0; i < PT_SHARDS; i++) {
		const pt_shard *s = &t->shard[i];
		for (uint32_t k = 0; k < s->n_bins; k++) {
			const pt_bin *b = &s->bins[k];
			fetch_stamps(t, s, k + AHEAD);
			for (uint32_t l = 0; l < b->used; l++) {
				int64_t stamp = *pt_stamp(t, s, b->row[l]);
				if (!guarded(t, g, stamp, b->id[l]))
					tally(y, key_of(stamp, b->id[l]));
			}
		}
	}
}

/* pt_new_rows are the ids of a write that have no row yet: places of the batch. */
typedef struct pt_new_rows {
	const pt_batch *b;
	const uint32_t *at;
	uint32_t n;
} pt_new_rows;

/* nth returns the key of which so many are at most as large, among the rows that may go and what
 * is new: all keys if there are fewer. It goes through the table once for every 10 bits that
 * distinguish keys, and needs no memory. The caller holds the lock life, so nobody changes an
 * index or a stamp. */
static pt_key nth(const pt_table *t, int64_t n, const pt_guard *g, const pt_new_rows *more) {
	pt_tally y;
	y.low = 0;
	y.high = ~(pt_key)0;
	for (;;) {
		for (y.shift = 0; (y.high - y.low) >> y.shift >= BUCKETS;)
			y.shift++;
		memset(y.count, 0, sizeof y.count);
		tally_table(t, &y, g);
		for (uint32_t k = 0; more && k < more->n; k++)
			tally(&y, key_of(pt_stamp_of(more->b, more->at[k]), pt_id_at(more->b, more->at[k])));
		uint32_t i = 0;
		while (i < BUCKETS && y.count[i] < n)
			n -= y.count[i++];
		if (i == BUCKETS)
			return y.high;
		if (y.count[i] == n)
			return y.most[i];
		y.low = y.least[i];
		y.high = y.most[i];
	}
}

static int64_t room(pt_table *t) {
	return t->c.max_rows - pt_rows(t) - __atomic_load_n(&t->claims, __ATOMIC_RELAXED);
}

static void claim(pt_table *t, pt_batch *b, int64_t rows) {
	__atomic_add_fetch(&t->claims, rows, __ATOMIC_RELAXED);
	b->claims = rows;
}

/* ---- what a push and a write get ---- */

/* keep leaves those places of the batch whose ids get a row, in every shard. */
static void keep(pt_sorted *s) {
	for (int i = 0; i < PT_SHARDS; i++) {
		uint32_t to = s->begin[i];
		for (uint32_t k = s->begin[i]; k < s->end[i]; k++)
			if (s->state[s->at[k]] == PT_MAKE) {
				s->ids[to] = s->ids[k];
				s->at[to++] = s->at[k];
			}
		s->end[i] = to;
		s->made += to - s->begin[i];
	}
	s->state = NULL;
	s->taken = 0;
}

static int there(pt_table *t, const pt_batch *b, int64_t id) {
	return pt_live(t, &t->shard[pt_shard_of(pt_hash(&t->c, id))], b, id) >= 0;
}

static int64_t missing(const pt_batch *b, const pt_sorted *s) {
	int64_t n = 0;
	for (int64_t i = 0; i < b->n; i++)
		n += s->state[i] == PT_MISSING;
	return n;
}

/* count says of every missing id whether it was seen often enough, once for each, and lists where
 * those that were appear first. */
static uint32_t count(pt_table *t, pt_batch *b, pt_sorted *s, const pt_set *seen, uint32_t *list) {
	uint32_t n = 0;
	if (t->sketch)
		pt_sketch_halve(t);
	for (int64_t i = 0; i < b->n; i++) {
		if (s->state[i] != PT_MISSING)
			continue;
		int64_t id = pt_id_at(b, i);
		uint32_t *slot = slot_of(t, seen, id);
		if (*slot) {
			s->state[i] = PT_AGAIN;
			continue;
		}
		*slot = (uint32_t)i + 1;
		s->state[i] = PT_MAKE;
		if (there(t, b, id)) /* another push has made it meanwhile */
			continue;
		if (t->sketch && pt_sketch_count(t, id) < t->c.admit_after) {
			s->state[i] = PT_DROP;
			__atomic_add_fetch(&t->dropped, 1, __ATOMIC_RELAXED);
		} else {
			list[n++] = (uint32_t)i;
		}
	}
	return n;
}

/* make_place removes rows until a push can make so many, if it can. A sixteenth of the table goes
 * with them, so that the next pushes need not go through it. */
static void make_place(pt_table *t, const pt_batch *b, int64_t rows, uint32_t *work) {
	if (room(t) < rows)
		expire_all(t, b->oldest);
	int64_t lacking = rows - room(t);
	if (lacking <= 0)
		return;
	pt_guard g = {b->now, new_set(b, b->n, work)};
	for (int64_t i = 0; i < b->n; i++)
		*slot_of(t, &g.ids, pt_id_at(b, i)) = (uint32_t)i + 1;
	t->evicted += purge_all(t, nth(t, lacking + t->c.max_rows / 16, &g, NULL), &g);
}

int64_t pt_admit(pt_table *t, pt_batch *b) {
	pt_sorted *s = b->scratch;
	int64_t n = t->stamped ? missing(b, s) : 0;
	if (n == 0)
		return 0;
	pthread_rwlock_wrlock(&t->life);
	/* s->work has 12 words for each place: less than 4 for the set, 1 for the list, 4 for a guard.
	 */
	pt_set seen = new_set(b, n, s->work);
	uint32_t *list = s->work + (1ull << seen.bits), rows = count(t, b, s, &seen, list);
	if (t->c.max_rows && rows > 0) {
		make_place(t, b, rows, list + rows);
		int64_t places = room(t);
		for (; rows > 0 && rows > places; t->dropped++)
			s->state[list[--rows]] = PT_DROP;
		claim(t, b, rows);
	}
	for (int64_t i = 0; i < b->n; i++)
		if (s->state[i] == PT_AGAIN)
			s->state[i] = s->state[*slot_of(t, &seen, pt_id_at(b, i)) - 1];
	keep(s);
	pthread_rwlock_unlock(&t->life);
	return s->made;
}

/* The last place of an id says what it is. */
void pt_choose(pt_table *t, pt_batch *b) {
	pt_sorted *s = b->scratch;
	pt_set seen = new_set(b, missing(b, s), s->work);
	uint32_t *list = s->work + (1ull << seen.bits), rows = 0;
	for (int64_t i = b->n - 1; i >= 0; i--) {
		if (s->state[i] != PT_MISSING)
			continue;
		uint32_t *slot = slot_of(t, &seen, pt_id_at(b, i));
		s->state[i] = PT_DROP;
		if (*slot)
			continue;
		*slot = (uint32_t)i + 1;
		if (pt_stamp_of(b, i) >= b->oldest) {
			s->state[i] = PT_MAKE;
			list[rows++] = (uint32_t)i;
		}
	}
	uint32_t made = rows;
	if (t->c.max_rows && room(t) < rows)
		expire_all(t, b->oldest);
	if (t->c.max_rows && room(t) < rows) {
		pt_new_rows all = {b, list, rows};
		pt_key most = nth(t, rows - room(t), NULL, &all);
		t->evicted += purge_all(t, most, NULL);
		for (uint32_t k = 0; k < rows; k++) {
			uint32_t i = list[k];
			if (key_of(pt_stamp_of(b, i), pt_id_at(b, i)) > most)
				continue;
			s->state[i] = PT_DROP;
			t->evicted++;
			made--;
		}
	}
	if (t->c.max_rows)
		claim(t, b, made);
	keep(s);
}

/* ---- rows that are too old ---- */

enum {
	SWEPT_AT_ONCE = 64, /* bins for which a lock is held */
	SWEPT = 256         /* bins after a push, and 2 for each row that it made: some 6 rows */
};

/* sweep removes rows that are too old in some bins, where the last sweep has ended. */
static void sweep(pt_table *t, int64_t oldest, int64_t bins) {
	pt_key most = key_of(oldest, INT64_MIN) - 1;
	int64_t removed = 0;
	for (int shards = 0; bins > 0 && shards < PT_SHARDS;) {
		pt_shard *s = &t->shard[t->sweep_at];
		pthread_rwlock_wrlock(&s->lock);
		uint32_t from = s->swept < s->n_bins ? s->swept : 0;
		uint32_t to = s->n_bins - from > SWEPT_AT_ONCE ? from + SWEPT_AT_ONCE : s->n_bins;
		removed += purge(t, s, from, to, most, NULL);
		bins -= to - from + 1;
		s->swept = to;
		if (to == s->n_bins) {
			s->swept = 0;
			t->sweep_at = (t->sweep_at + 1) % PT_SHARDS;
			shards++;
		}
		pthread_rwlock_unlock(&s->lock);
	}
	__atomic_add_fetch(&t->expired, removed, __ATOMIC_RELAXED);
}

void pt_settle(pt_table *t, pt_batch *b) {
	if (!t->stamped || b->n == 0)
		return;
	__atomic_sub_fetch(&t->claims, b->claims, __ATOMIC_RELAXED);
	b->claims = 0;
	int64_t oldest = b->now - t->c.expire_after;
	if (t->c.expire_after == 0 || oldest <= 0 || pthread_mutex_trylock(&t->sweeping))
		return;
	pthread_rwlock_rdlock(&t->life);
	sweep(t, oldest, SWEPT + 2 * (int64_t)((pt_sorted *)b->scratch)->made);
	pthread_rwlock_unlock(&t->life);
	pthread_mutex_unlock(&t->sweeping);
}

int pt_promise(pt_table *t, pt_batch *b) {
	if (b->n == 0)
		return PT_OK;
	pt_sorted *s = pt_sort(t, b);
	int rc = PT_OK;
	pthread_rwlock_rdlock(&t->life);
	for (int i = 0; i < PT_SHARDS && rc == PT_OK; i++) {
		uint32_t n = s->end[i] - s->begin[i], lacking = 0;
		if (n == 0)
			continue;
		pt_set seen = new_set(b, n, s->work);
		pt_shard *shard = &t->shard[i];
		pthread_rwlock_wrlock(&shard->lock);
		for (uint32_t k = s->begin[i]; k < s->end[i]; k++) {
			uint32_t *slot = slot_of(t, &seen, s->ids[k]);
			lacking += *slot == 0 && pt_live(t, shard, b, s->ids[k]) < 0;
			*slot = s->at[k] + 1;
		}
		shard->promised += lacking - b->promised[i];
		b->promised[i] = lacking;
		rc = pt_provide(t, shard, (uint64_t)shard->rows + shard->promised, 0);
		pthread_rwlock_unlock(&shard->lock);
	}
	pthread_rwlock_unlock(&t->life);
	return rc;
}

int64_t pt_live_rows(pt_table *t, int64_t oldest) {
	if (!t->stamped)
		return pt_rows(t);
	pthread_rwlock_wrlock(&t->life);
	expire_all(t, oldest);
	int64_t rows = pt_rows(t);
	pthread_rwlock_unlock(&t->life);
	return rows;
}

void pt_count_of(pt_table *t, pt_counts *c) {
	pthread_rwlock_wrlock(&t->life);
	*c = (pt_counts){t->dropped, t->expired, t->evicted};
	pthread_rwlock_unlock(&t->life);
}
