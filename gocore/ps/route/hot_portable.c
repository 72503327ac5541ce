/* For every processor: the vectors become those that it has, such as SSE2's or NEON's. */
#include "../../reduce/float16.h"

#define TARGET
#define FN(name)            name##_portable
#define WIDEN16(v, p, bf16) widen16(v, p, bf16)

static inline __attribute__((always_inline)) void widen16(void *v, const uint16_t *p, int bf16) {
	float *f = v;
	for (int i = 0; i < 16; i++)
		f[i] = bf16 ? load_bf16(p[i]) : load_f16(p[i]);
}

#include "hot.h"
