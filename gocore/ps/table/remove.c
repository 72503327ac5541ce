/* Removal of rows by their ids. */
#include "table.h"

/* remove_id removes the row of an id, and returns how many it had: 0 or 1. */
static int64_t remove_id(pt_table *t, int64_t id) {
	uint64_t hash = pt_hash(&t->c, id);
	pt_shard *s = &t->shard[pt_shard_of(hash)];
	if (s->n_bins == 0)
		return 0;
	for (uint32_t at = pt_bin_of(hash, s->n_bins);; at = at + 1 == s->n_bins ? 0 : at + 1) {
		for (uint32_t lane = 0; lane < s->bins[at].used; lane++)
			if (s->bins[at].id[lane] == id) {
				pt_remove_at(t, s, at, lane);
				return 1;
			}
		if (s->bins[at].used < PT_LANES)
			return 0;
	}
}

int64_t pt_remove(pt_table *t, const pt_batch *b) {
	int64_t removed = 0;
	for (int64_t i = 0; i < b->n; i++)
		removed += remove_id(t, pt_id_at(b, i));
	return removed;
}
