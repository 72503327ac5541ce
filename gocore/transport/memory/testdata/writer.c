/* A writer of the bulk, whose copies and whose reader's take what the arguments say: for each phase
 * the bytes, and for each of the three ways the cost of both sides. Prints for each phase the KiB
 * that went each way. */
#include <stdio.h>
#include <stdlib.h>

#include "../bulk.h"

int main(int argc, char **argv) {
	static uint32_t costs[PM_WAYS];
	pm_bulk b = {.costs = costs, .bytes = 2 << 20};
	for (int i = 1; i + 2 * PM_WAYS < argc; i += 1 + 2 * PM_WAYS) {
		int64_t gone[PM_WAYS] = {0};
		for (int64_t n = 0; n < atoll(argv[i]); n += PM_PIECE) {
			const int way = pm_way(&b);
			costs[way] = (uint32_t)atoi(argv[i + 1 + PM_WAYS + way]);
			pm_learn(&b, way, (uint32_t)atoi(argv[i + 1 + way]), PM_PIECE);
			gone[way] += PM_PIECE >> 10;
		}
		for (int way = 0; way < PM_WAYS; way++)
			printf("%lld ", (long long)gone[way]);
	}
	return 0;
}
