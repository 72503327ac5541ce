// pmpi_copy_strided_<bytes of an element>: copies elements from strided memory to flat memory, or
// back.
//
// It reads and writes every element once, 2 * count elements. That is the least possible if the
// last dimension has stride 1. With another stride the memory moves all sectors of 32 bytes in
// which the elements are.
#include "arguments.h"

typedef struct {
	uint64_t x, y; // the alignment of complex128 is 8
} wide;

// A 64-bit division takes several times as long as a 32-bit one.
#define DEFINE_OFFSET(index, most)                                                                 \
	INLINE int64_t offset_##index(const pmpi_strided_args *args, int64_t element) {                \
		index rest = (index)element;                                                               \
		int64_t offset = 0;                                                                        \
		ROLLED for (int64_t d = args->ndim - 1; d > 0; d--) {                                      \
			const int64_t size = args->shape[d];                                                   \
			const index extent = (index)(size < (most) ? size : (most));                           \
			const index next = rest / extent;                                                      \
			offset += (int64_t)(rest - next * extent) * args->strides[d];                          \
			rest = next;                                                                           \
		}                                                                                          \
		return offset + (int64_t)rest * args->strides[0];                                          \
	}

#define MOST_32 0xffffffffll
#define MOST_64 0x7fffffffffffffffll
DEFINE_OFFSET(uint32_t, MOST_32)
DEFINE_OFFSET(uint64_t, MOST_64)

// Four elements are read before the first of them is written.
#define COPY(T, index)                                                                             \
	ROLLED for (int64_t i = THREAD; i < count; i += 4 * step) {                                    \
		T x[4];                                                                                    \
		int64_t at[4];                                                                             \
		UNROLL for (int k = 0; k < 4; k++) {                                                       \
			const int64_t e = i + k * step;                                                        \
			if (e < count) {                                                                       \
				at[k] = offset_##index(args, args->from + e);                                      \
				x[k] = args->to_strided ? flat[e] : strided[at[k]];                                \
			}                                                                                      \
		}                                                                                          \
		UNROLL for (int k = 0; k < 4; k++) {                                                       \
			const int64_t e = i + k * step;                                                        \
			if (e < count)                                                                         \
				*(args->to_strided ? strided + at[k] : flat + e) = x[k];                           \
		}                                                                                          \
	}

#define DEFINE_COPY(bytes, T)                                                                      \
	KERNEL(pmpi_copy_strided_##bytes, pmpi_strided_args) {                                         \
		const int64_t count = args->count, step = THREADS;                                         \
		T *flat = (T *)args->flat, *strided = (T *)args->strided;                                  \
		if (args->from + count < MOST_32) {                                                        \
			COPY(T, uint32_t)                                                                      \
		} else {                                                                                   \
			COPY(T, uint64_t)                                                                      \
		}                                                                                          \
	}

DEFINE_COPY(1, uint8_t)
DEFINE_COPY(2, uint16_t)
DEFINE_COPY(4, uint32_t)
DEFINE_COPY(8, uint64_t)
DEFINE_COPY(16, wide)
