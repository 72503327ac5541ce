/* A table of embeddings: int64 id -> a row of dim floats, and the state of its optimizer.
 *
 * Memory. A table has 64 shards; the hash of an id says which one it is in. A shard has an index
 * and slabs. The index is a list of bins of one cache line: five ids, their row numbers and
 * their count. All ids of a bin are compared at once. A bin fills from its first place, and an id
 * that is removed leaves no gap before other ids that passed its bin, so a search that finds a
 * place free ends there. A slab holds a fixed number of rows, and behind them the states of these
 * rows, and behind those their stamps (lifetime.c), each at a fixed stride. Slabs never move. They
 * are cut from blocks of the table, which are large enough for huge pages. The rows of removed ids
 * are a list of the shard, and new ids take them first.
 *
 * A call takes a whole batch. Every shard has a lock for readers and writers. A pull takes those of
 * its shards for reading, for some thousand ids at a time, and copies rows in the order of the
 * batch. A call that changes rows first sorts the ids by their shards, in order of appearance, and
 * then works on one shard after the other, with the lock of that shard alone. If another thread
 * holds it, it takes another shard first. So a row is seen whole by every thread, pulls do not wait
 * for each other, and others wait only where they need the same shard at the same time. An index
 * that grows stops its shard only. Nobody who holds a lock for writing waits for another one, so
 * there is no deadlock.
 *
 * Why the result depends on nothing but the calls: a new row is computed from the seed and the id
 * (initialise.c). The gradients of an id that appears several times in a push are added in their
 * order of appearance, in float32, and the row is updated once. Every instruction set does the same
 * float32 operations in the same order. */
#ifndef PMPI_PS_TABLE_H
#define PMPI_PS_TABLE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { PT_SHARDS = 64, PT_SHARD_BITS = 6, PT_LANES = 5 };

enum { PT_FLOAT32, PT_FLOAT16, PT_BFLOAT16 };

enum { PT_ZEROS, PT_UNIFORM, PT_NORMAL };

enum { PT_SGD, PT_MOMENTUM, PT_ADAGRAD, PT_ROW_WISE_ADAGRAD, PT_ADAM, PT_ADAM_BY_ROW };

enum { PT_PORTABLE, PT_AVX2, PT_AVX512 };

/* What a call returns. */
enum {
	PT_OK,
	PT_NO_MEMORY,    /* the machine refused memory */
	PT_OVER_LIMIT,   /* the table would grow past its limit */
	PT_OUT_OF_RANGE, /* fault.index is the place of the id */
	PT_NOT_FINITE,   /* fault.index is the place of the element */
	PT_ABSENT,       /* fault.index is the place of the id */
	PT_BUSY,         /* what is left of the limit is reserved: call again in a moment */
	PT_FULL          /* of pt_insert: the table has max_rows */
};

/* pt_config says what a table is. */
typedef struct pt_config {
	int64_t dim;          /* elements of a row */
	int64_t ids;          /* ids are 0 to ids-1; 0: any id */
	int64_t memory_limit; /* bytes; 0: none */
	uint64_t seed;
	uint64_t secret[2];   /* of the hash; secret[1] is odd */
	double initial[2];    /* low and high, or mean and standard deviation */
	int64_t admit_after;  /* the push of an id that makes its row; up to 1: the first */
	int64_t expire_after; /* steps that a row stays without a push; 0: for ever */
	int64_t max_rows;     /* 0: no cap */
	float initial_state;
	int32_t initializer; /* PT_ZEROS, ... */
	int32_t dtype;       /* of the rows: PT_FLOAT32, ... States are float32. */
	int32_t optimizer;   /* PT_SGD, ... */
	int32_t isa;         /* PT_PORTABLE, ... */
	int32_t reserved;
} pt_config;

/* pt_step has the numbers of one update, in float32. */
typedef struct pt_step {
	double whole_rate;  /* of Adam by row: the learning rate, which each row corrects */
	double beta[2];     /* of Adam by row, of the mean and of the square */
	float rate;         /* learning rate; of Adam divided by the bias correction of the mean */
	float weight_decay; /* added to the gradient, times the row */
	float shrink;       /* of decoupled weight decay: the row is multiplied by it first; 1: none */
	float clip_value;   /* elements of a gradient are at most this far from 0; +Inf: no limit */
	float clip_norm;    /* the norm of a row's gradient is at most this; +Inf: no limit */
	float momentum;
	float beta2;
	float left1, left2; /* 1 - beta of the mean and of the square */
	float root;         /* of Adam: the square root of the bias correction of the square */
	float epsilon;
	float most; /* the largest number of a row; +Inf: rows may have what is not finite */
	int32_t nesterov;
	int32_t adds; /* 1: the update is row -= rate * gradient, whatever the optimizer; states stay */
} pt_step;

typedef struct pt_bin {
	int64_t id[PT_LANES];
	uint32_t row[PT_LANES];
	uint32_t used;
} __attribute__((aligned(64))) pt_bin;

typedef struct pt_shard {
	pthread_rwlock_t lock;
	pt_bin *bins;
	uint32_t n_bins;
	uint32_t rows;
	uint32_t most; /* rows at which the index grows */
	uint32_t n_slabs, slab_room;
	char **slabs;
	uint32_t top;      /* rows that were ever in use have smaller numbers */
	uint32_t unused;   /* 1 + the number of the row that was removed last; 0: none is free */
	uint32_t promised; /* rows for which there must be room: pt_promise */
	uint32_t swept;    /* the bin at which pt_settle goes on */
} __attribute__((aligned(128))) pt_shard;

typedef struct pt_block {
	struct pt_block *next;
	size_t mapped; /* bytes, from this header on */
} pt_block;

typedef struct pt_table {
	pt_config c;
	int64_t row_bytes;    /* of a row in its slab */
	int64_t state_bytes;  /* of the state of a row */
	int64_t state_offset; /* of the states in a slab */
	int64_t stamp_offset; /* of the stamps in a slab */
	int32_t stamped;      /* ids come and go, so rows have stamps */
	int64_t slab_bytes;
	uint32_t slab_shift;  /* a slab has 1 << slab_shift rows */
	pthread_mutex_t lock; /* of the blocks */
	pt_block *blocks;
	char *free_at, *free_end; /* what is left of the newest block */
	int64_t block_bytes;      /* of all blocks */
	int64_t bytes;            /* of all memory; atomic */
	int64_t reserved;         /* bytes that pushes under way may still take; atomic */
	int32_t tight;            /* nothing is reserved any more; atomic */
	uint32_t turn;            /* atomic: where the next call begins */
	pthread_rwlock_t life;    /* see lifetime.c; it is taken before the lock of a shard */
	pthread_mutex_t sweeping;
	uint32_t sweep_at;                 /* the shard at which pt_settle goes on */
	int64_t claims;                    /* rows that pushes under way may still make; atomic */
	int64_t dropped, expired, evicted; /* ids without a row in a push; rows; atomic */
	uint8_t *sketch;                   /* NULL: every new id gets a row */
	int64_t counted;                   /* ids in the sketch since it was halved */
	pt_shard shard[PT_SHARDS];
} pt_table;

/* pt_batch is one call. ids, values and states belong to the caller;
 * they are contiguous, and aligned for their elements. */
typedef struct pt_batch {
	const void *ids;
	int64_t n;
	int32_t id_bytes; /* 4 or 8 */
	int32_t dtype;    /* of values: PT_FLOAT32, or that of the table */
	void
		*values; /* n rows: the results of a pull or a read, gradients of a push, rows of a write */
	float *states;   /* n states of a read or a write; NULL: none */
	void *scratch;   /* pt_scratch bytes, aligned to a cache line */
	pt_step step;    /* of a push */
	int64_t *stamps; /* n last uses of a read or a write; NULL: none */
	int64_t now;     /* the clock: the last use of what a push or a write touches */
	int64_t oldest;  /* rows whose last use was before it are as if not there; INT64_MIN: none */
	int64_t claims;  /* rows that this call may still make of a table with max_rows; atomic */
	uint32_t promised[PT_SHARDS]; /* rows for which pt_promise keeps room */
	uint8_t *there;   /* of a read: pt_find says 1 of each id that has a row, else 0; else NULL */
	int64_t reserved; /* bytes that pt_reserve has set aside for this batch */
	int64_t fault;    /* set with an error: the place of the id or element */
	int64_t value;    /* set with PT_OUT_OF_RANGE and PT_ABSENT: the id */
} pt_batch;

/* pt_state_bytes returns the bytes of the state of a row of dim elements. */
int64_t pt_state_bytes(int32_t optimizer, int64_t dim);

/* pt_new returns a table without rows, or NULL without memory. */
pt_table *pt_new(const pt_config *c);

/* pt_free frees a table that no call uses. */
void pt_free(pt_table *t);

/* pt_live_rows returns how many rows there are when b->oldest holds: it removes others. */
int64_t pt_live_rows(pt_table *t, int64_t oldest);

/* pt_counts is what has come of ids: see Info in table.go. */
typedef struct pt_counts {
	int64_t dropped, expired, evicted;
} pt_counts;
void pt_count_of(pt_table *t, pt_counts *c);

/* pt_rows and pt_index_bytes say how many rows there are, and how many bytes the indexes take. */
int64_t pt_rows(pt_table *t);
int64_t pt_index_bytes(pt_table *t);

/* pt_bytes returns how many bytes the table holds of the machine. */
int64_t pt_bytes(pt_table *t);

/* pt_scratch returns how many bytes of scratch memory a batch of n ids needs. */
int64_t pt_scratch(const pt_table *t, int64_t n);

/* pt_finite returns PT_NOT_FINITE if a gradient of the batch is not finite, with its place. */
int pt_finite(pt_table *t, pt_batch *b);

/* pt_check returns PT_OUT_OF_RANGE if the table does not take an id of the batch. */
int pt_check(pt_table *t, pt_batch *b);

/* pt_reserve sets aside what a push of the batch may need of the limit, and returns 1; or returns 0
 * if that much is not surely left. Others cannot take it until pt_unreserve. After a 0 pt_pull
 * without values makes the rows, and the push then needs nothing more. */
int pt_reserve(pt_table *t, pt_batch *b);
void pt_unreserve(pt_table *t, pt_batch *b);

/* pt_promise is for a table whose ids come and go, of which a push alone decides what gets a row.
 * After pt_reserve has returned 0, it makes room in the shards for every id of the batch that has
 * no row, and keeps it until pt_unreserve, so that the push needs nothing more. Returns a PT_*
 * code. */
int pt_promise(pt_table *t, pt_batch *b);

/* pt_pull copies the rows of the ids into values, and makes those that are missing. values may be
 * NULL: then it makes them only. It is not for tables whose ids come and go: pt_look is. pt_push
 * updates the rows of the ids, and makes those that are missing. After an error, rows of some
 * shards may have been updated: pt_reserve first. pt_read copies rows and states, and pt_write sets
 * them. Each returns a PT_* code. After PT_BUSY all but pt_push, which never returns it after
 * pt_reserve, may be called again. */
int pt_pull(pt_table *t, pt_batch *b);
int pt_push(pt_table *t, pt_batch *b);
int pt_read(pt_table *t, pt_batch *b);
int pt_write(pt_table *t, pt_batch *b);

/* pt_read_states copies the states of the ids to states: of those without a row the first ones. It
 * makes no row. pt_write_states sets them, and makes the rows that are missing. */
int pt_read_states(pt_table *t, pt_batch *b);
int pt_write_states(pt_table *t, pt_batch *b);

/* pt_look is pt_pull that makes nothing and needs no memory: ids without a row have the values that
 * it would begin with, or zeros. It returns PT_OK. */
int pt_look(pt_table *t, pt_batch *b, int zeros);

/* Several threads share a push. One calls pt_share, which sorts the batch and returns how many
 * bytes of scratch memory each thread needs, aligned to a cache line. Then each calls
 * pt_push_share; the push has failed if one returns an error. If none does, one calls pt_admit, and
 * if that returns more than 0, each calls pt_push_share once more. In the end one calls pt_settle,
 * also after an error. All together have done what pt_push does. */
int64_t pt_share(pt_table *t, pt_batch *b);
int pt_push_share(pt_table *t, pt_batch *b, void *scratch);
int64_t pt_admit(pt_table *t, pt_batch *b);
void pt_settle(pt_table *t, pt_batch *b);

/* pt_find is pt_read of those ids that have a row, and fills b->there. The values of the others
 * stay as they are. values may be NULL. */
int pt_find(pt_table *t, pt_batch *b);

/* pt_delta makes n numbers of now those of (now - before) / parts, which are finite where both
 * are. */
void pt_delta(float *now, const float *before, float parts, int64_t n);

/* pt_compensate adds to n gradients g of rows of dim elements what the delay of each has changed,
 * lambda g g (row - before): where there says that before has the row. squares may be NULL; else it
 * has a mean of the squares of earlier gradients, which becomes decay of itself and 1 - decay of
 * g g, in all rows, and lambda is divided by its root. */
void pt_compensate(float *g, const float *row, const float *before, const uint8_t *there,
				   float *squares, float lambda, float decay, int64_t n, int64_t dim);

/* pt_ids copies at most n ids, in no order, and returns how many there are. */
int64_t pt_ids(pt_table *t, int64_t *out, int64_t n, int64_t oldest);

/* pt_remove removes the rows of those ids that have one, and returns how many. No other call is
 * under way. */
int64_t pt_remove(pt_table *t, const pt_batch *b);

/* pt_sketch_read copies the counters of the sketch, PT_SKETCH_BYTES, and returns how many ids were
 * counted since they were halved. pt_sketch_add joins them with others. */
int64_t pt_sketch_read(pt_table *t, uint8_t *counters);
void pt_sketch_add(pt_table *t, const uint8_t *counters, int64_t counted);

/* ---- between the files of this folder ---- */

/* pt_sorted is a batch by shards. It lies at the beginning of the batch's scratch memory. */
typedef struct pt_sorted {
	int64_t *ids;
	uint32_t *at;
	uint32_t *work; /* of the thread that has sorted; others bring their own */
	float *sum;
	uint8_t *state; /* of each place, PT_FOUND, ...; NULL: every id that has no row gets one */
	uint32_t begin[PT_SHARDS], end[PT_SHARDS];
	uint32_t first;  /* the shard that comes first */
	uint32_t taken;  /* how many shards threads have taken; atomic */
	uint32_t failed; /* a thread has an error: the others take no more; atomic */
	uint32_t made;   /* places of ids that got a row */
} pt_sorted;

/* What is known of a place of a batch. */
enum {
	PT_FOUND,   /* its id had a row, and all is done */
	PT_MISSING, /* its id has none */
	PT_AGAIN,   /* another place has the same id */
	PT_DROP,    /* its id gets none */
	PT_MAKE     /* its id gets one */
};

/* pt_portion is what a batch has in one shard, in order of appearance. */
typedef struct pt_portion {
	const int64_t *ids;
	const uint32_t *at; /* places in the batch */
	uint32_t n;
	uint32_t *work; /* scratch memory of the portion: PT_WORK words for each id, and more */
	float *sum;     /* two rows of floats, rounded up to 16 */
	uint8_t *state; /* that of pt_sorted */
} pt_portion;

enum { PT_WORK = 8 };

/* pt_insert makes the row of an id that is not there, in its shard. The caller holds the lock.
 * b->reserved says that pt_reserve has set memory aside for it. Sets *row and returns a PT_* code.
 */
int pt_insert(pt_table *t, pt_shard *s, pt_batch *b, int64_t id, uint64_t hash, uint32_t *row);

/* pt_provide makes room for so many rows in a shard, as pt_insert does. */
int pt_provide(pt_table *t, pt_shard *s, uint64_t rows, int reserved);

/* pt_expire removes an id that is there and was not used for too long, and pt_remove_at the one in
 * a lane of a bin. The caller holds the lock. */
void pt_expire(pt_table *t, pt_shard *s, int64_t id);
void pt_remove_at(pt_table *t, pt_shard *s, uint32_t bin, uint32_t lane);

/* pt_sort sorts a batch in its scratch memory. pt_sums_bytes says how much of that the sums of a
 * thread take. */
int64_t pt_sums_bytes(const pt_table *t);
pt_sorted *pt_sort(pt_table *t, const pt_batch *b);

/* pt_row_of returns the row of an id, or -1; pt_live those that are not too old for the batch. */
int64_t pt_row_of(const pt_table *t, const pt_shard *s, int64_t id);
int64_t pt_live(const pt_table *t, const pt_shard *s, const pt_batch *b, int64_t id);

/* pt_choose says which missing ids of a write get a row, and removes those that make place. The
 * caller holds the lock life. Both it and pt_admit leave the places of these ids only. */
void pt_choose(pt_table *t, pt_batch *b);

/* The sketch counts an id, and returns how often it was seen; it halves itself when it is due. */
enum { PT_SKETCH_ROWS = 4, PT_SKETCH_BITS = 21, PT_SKETCH_BYTES = 4 << 21 };
int pt_sketch_new(pt_table *t);
int64_t pt_sketch_count(pt_table *t, int64_t id);
void pt_sketch_halve(pt_table *t);

/* pt_square_root returns a root, without libm where the processor has one. */
double pt_square_root(double x);

/* pt_initialise writes the first values of the row of an id, over zeros. */
void pt_initialise(const pt_config *c, int64_t id, void *row);

/* pt_first_values gives these values of an initializer that is not PT_ZEROS, as the row has them:
 * in the dtype of the table, or in float32. */
void pt_first_values(const pt_config *c, int64_t id, int32_t dtype, void *row);

/* The code for one instruction set (hot.h). pull copies the rows of the ids from one place of the
 * batch to another, lists the places of those that have none, and returns how many these are; the
 * caller holds the locks of their shards. push works on one portion, in the shard whose lock the
 * caller holds, and returns a PT_* code. finite returns the place of the first element that is not
 * finite, or -1. */
#define PT_DECLARE(isa)                                                                            \
	uint32_t pt_pull_##isa(pt_table *t, pt_batch *b, uint32_t from, uint32_t to,                   \
						   uint32_t *missing);                                                     \
	int pt_push_##isa(pt_table *t, pt_shard *s, pt_batch *b, const pt_portion *p);                 \
	int64_t pt_finite_##isa(const void *values, int dtype, int64_t n);
PT_DECLARE(portable)
PT_DECLARE(avx2)
PT_DECLARE(avx512)

static inline uint64_t pt_hash(const pt_config *c, int64_t id) {
	unsigned __int128 product = (unsigned __int128)((uint64_t)id ^ c->secret[0]) * c->secret[1];
	uint64_t folded = (uint64_t)product ^ (uint64_t)(product >> 64);
	return folded * 0x9e3779b97f4a7c15u;
}

static inline uint32_t pt_shard_of(uint64_t hash) {
	return (uint32_t)(hash >> (64 - PT_SHARD_BITS));
}

/* Bins are in the order of the hash, so a growing index is read and written from its beginning
 * to its end. */
static inline uint32_t pt_bin_of(uint64_t hash, uint32_t n_bins) {
	return (uint32_t)((uint64_t)(uint32_t)(hash >> (32 - PT_SHARD_BITS)) * n_bins >> 32);
}

static inline char *pt_row(const pt_table *t, const pt_shard *s, uint32_t row) {
	uint32_t in_slab = row & ((1u << t->slab_shift) - 1);
	return s->slabs[row >> t->slab_shift] + (size_t)in_slab * (size_t)t->row_bytes;
}

static inline float *pt_state(const pt_table *t, const pt_shard *s, uint32_t row) {
	uint32_t in_slab = row & ((1u << t->slab_shift) - 1);
	return (float *)(s->slabs[row >> t->slab_shift] + t->state_offset +
					 (size_t)in_slab * (size_t)t->state_bytes);
}

/* pt_stamp is the last use of a row, of a table that has stamps. */
static inline int64_t *pt_stamp(const pt_table *t, const pt_shard *s, uint32_t row) {
	uint32_t in_slab = row & ((1u << t->slab_shift) - 1);
	return (int64_t *)(s->slabs[row >> t->slab_shift] + t->stamp_offset) + in_slab;
}

static inline int64_t pt_id_at(const pt_batch *b, int64_t i) {
	return b->id_bytes == 8 ? ((const int64_t *)b->ids)[i] : ((const int32_t *)b->ids)[i];
}

/* pt_stamp_of is the last use that a write notes of a place: no later than now. */
static inline int64_t pt_stamp_of(const pt_batch *b, int64_t at) {
	return b->stamps && b->stamps[at] < b->now ? b->stamps[at] : b->now;
}

#pragma GCC visibility pop

#endif
