/* Batches of many kinds, in memory of exactly the bytes that they need, so that a sanitizer sees
 * each access outside. Prints how many batches were right. */
#include "../route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 1;

static uint64_t draw(void) {
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static void *room(int64_t bytes) {
	void *p = malloc((size_t)bytes);
	if (p == NULL)
		exit(3);
	memset(p, 0xa5, (size_t)bytes);
	return p;
}

static int check(int64_t n, int64_t servers, int id_bytes, int64_t kinds, int64_t dim, int isa) {
	char *ids = room(n * id_bytes);
	for (int64_t i = 0; i < n; i++) {
		int64_t id = (int64_t)(draw() % (uint64_t)kinds) - kinds / 2;
		int32_t narrow = (int32_t)id;
		memcpy(ids + i * id_bytes, id_bytes == 8 ? (void *)&id : (void *)&narrow, (size_t)id_bytes);
	}
	const uint64_t key[2] = {draw(), draw() | 1};
	int64_t *unique = room(8 * n), *starts = room(8 * (servers + 1));
	int32_t *inverse = room(4 * n);
	uint8_t *first = room(n);
	void *scratch = room(pr_scratch(n));
	pr_plan(ids, n, id_bytes, n % 2 ? PR_BY_HASH : PR_BY_MODULO, servers, servers - 1, key, unique,
			starts, inverse, first, scratch);
	const int64_t found = starts[servers];
	int right = starts[0] == 0;
	for (int64_t s = 0; s < servers; s++)
		right &= starts[s] <= starts[s + 1];
	for (int64_t i = 0; i < n; i++) {
		int64_t id = 0;
		if (id_bytes == 8) {
			memcpy(&id, ids + 8 * i, 8);
		} else {
			int32_t narrow;
			memcpy(&narrow, ids + 4 * i, 4);
			id = narrow;
		}
		right &= inverse[i] >= 0 && inverse[i] < found && unique[inverse[i]] == id;
	}
	right &= pr_same(ids, n, id_bytes, unique, inverse);
	for (int type = PR_FLOAT32; type <= PR_BFLOAT16; type++) {
		const int64_t size = type == PR_FLOAT32 ? 4 : 2;
		char *gradients = room(n * dim * size), *rows = room(found * dim * size);
		float *sums = room(4 * found * dim);
		memset(gradients, 0, (size_t)(n * dim * size));
		right &= pr_sum(isa, sums, gradients, type, dim, inverse, first, n) == 0;
		for (int64_t i = 0; i < found * dim; i++)
			right &= sums[i] == 0;
		pr_gather(isa, gradients, rows, dim * size, inverse, n);
		for (int64_t i = 0; i < n * dim * size; i++)
			right &= (unsigned char)gradients[i] == 0xa5;
		if (type != PR_FLOAT32) {
			float *wide = room(4 * n * dim);
			pr_widen(isa, wide, (const uint16_t *)rows, type, dim, inverse, n);
			free(wide);
		}
		free(gradients), free(rows), free(sums);
	}
	free(ids), free(unique), free(starts), free(inverse), free(first), free(scratch);
	return right;
}

int main(int argc, char **argv) {
	if (argc != 2)
		return 2;
	int wrong = 0;
	static const int64_t sizes[] = {1, 2, 31, 63, 64, 65, 127, 128, 129, 1000, 4096};
	static const int64_t dims[] = {1, 2, 3, 4, 5, 8, 15, 16, 17, 20, 31, 36, 64, 67, 200};
	const int isa = atoi(argv[1]);
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		const int id_bytes = s % 2 ? 4 : 8;
		for (int64_t kinds = 1; kinds <= 1 << 20; kinds *= 32)
			for (int64_t servers = 1; servers <= 81; servers *= 9)
				wrong += !check(sizes[s], servers, id_bytes, kinds, 1, isa);
		for (size_t d = 0; sizes[s] <= 129 && d < sizeof dims / sizeof *dims; d++)
			wrong += !check(sizes[s], 3, id_bytes, 40, dims[d], isa);
	}
	printf("%d wrong\n", wrong);
	return 0;
}
