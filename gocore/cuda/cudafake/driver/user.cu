// A kernel that stands for a user's kernels before and after the library's operations, for tests.
#include "dialect.h"

typedef struct fakecuda_add_args {
	float *values;
	int64_t count;
	float addend;
} fakecuda_add_args;

// values[i] += addend
KERNEL(fakecuda_add, fakecuda_add_args) {
	for (int64_t i = THREAD; i < args->count; i += THREADS)
		args->values[i] += args->addend;
}
