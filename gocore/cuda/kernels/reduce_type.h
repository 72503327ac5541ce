// The reduction of one dtype: reduce_<dtype>(args, op), where op is a constant. reduce.cu includes
// this file once for each dtype. It defines the following macros, and this file undefines them.
//   DTYPE      its name
//   T          an element in memory
//   W          a word, which is combined at once: one T, or several in the lanes
//              of an unsigned integer, the first in the lowest lane
//   A          the type in which words are accumulated
//   DECODE(w)  an A made of a W
//   ENCODE(a)  a W made of an A
//   FOLD(a, b, op)
// For dtypes that have AVG:
//   FACTOR     the type of a factor and of a divisor
//   DIVIDE(a, by)
// For dtypes that have PREMUL_SUM, too:
//   SCALE(a, factor)

#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)
#define FN(name)     PASTE(name, DTYPE)

enum { FN(words) = 16 / sizeof(W), FN(elements) = 16 / sizeof(T) };

// 16 bytes, which one instruction moves as `all`.
typedef union FN(pack) {
	uint4 all;
	W w[FN(words)];
} FN(pack);

#ifdef SCALE
#define TAKE(w, j) (op == PREMUL_SUM ? SCALE(DECODE(w), (FACTOR)args->scale[j]) : DECODE(w))
#else
#define TAKE(w, j) DECODE(w)
#endif
#ifdef DIVIDE
#define GIVE(a) ENCODE(op == AVG ? DIVIDE(a, (FACTOR)args->n_src) : (a))
#else
#define GIVE(a) ENCODE(a)
#endif

// Combines n packs if `wide` is set. The first pack begins after `head` elements. If `wide` is 0,
// combines n single elements: those before and those after the packs, in which there are `gap`
// elements. A single element is in the lowest lane of a word.
INLINE void FN(run)(const pmpi_reduce_args *args, const int op, const int wide, const int64_t n,
					const int64_t head, const int64_t gap) {
	const int words = wide ? FN(words) : 1;
	const int64_t n_src = args->n_src, n_dst = args->n_dst, step = THREADS;
	ROLLED for (int64_t i = THREAD; i < n; i += step) {
		const int64_t at = wide ? head + i * FN(elements) : i < head ? i : i + gap;
		A a[FN(words)] = {0};
		// Four sources are read before the first of them is used.
		ROLLED for (int64_t j = 0; j < n_src; j += 4) {
			FN(pack) p[4];
			UNROLL for (int k = 0; k < 4; k++) {
				if (j + k >= n_src)
					continue;
				const T *s = (const T *)args->src[j + k] + at;
				if (wide)
					p[k].all = *(const uint4 *)s;
				else
					p[k].w[0] = *s;
			}
			UNROLL for (int k = 0; k < 4; k++) {
				if (j + k >= n_src)
					continue;
				UNROLL for (int w = 0; w < words; w++) {
					const A b = TAKE(p[k].w[w], j + k);
					a[w] = j + k == 0 ? b : FOLD(a[w], b, op);
				}
			}
		}
		FN(pack) r;
		UNROLL for (int w = 0; w < words; w++) r.w[w] = GIVE(a[w]);
		ROLLED for (int64_t j = 0; j < n_dst; j++) {
			T *d = (T *)args->dst[j] + at;
			if (wide)
				store16(d, r.all);
			else
				*d = r.w[0];
		}
	}
}

INLINE void FN(reduce)(const pmpi_reduce_args *args, const int op) {
	// The first address, and the bits in which the other addresses differ from it.
	const uint64_t first = (uint64_t)args->src[0];
	uint64_t differ = 0;
	ROLLED for (int64_t j = 1; j < args->n_src; j++) differ |= first ^ (uint64_t)args->src[j];
	ROLLED for (int64_t j = 0; j < args->n_dst; j++) differ |= first ^ (uint64_t)args->dst[j];
	const int64_t count = args->count, to_boundary = (0 - first) & 15;
	int64_t head = count, packs = 0;
	if (!(differ & 15) && to_boundary % sizeof(T) == 0 &&
		to_boundary / (int64_t)sizeof(T) < count) {
		head = to_boundary / sizeof(T);
		packs = (count - head) / FN(elements);
	}
	FN(run)(args, op, 1, packs, head, 0);
	FN(run)(args, op, 0, count - packs * FN(elements), head, packs * FN(elements));
}

#undef PASTE_
#undef PASTE
#undef FN
#undef TAKE
#undef GIVE
#undef DTYPE
#undef T
#undef W
#undef A
#undef DECODE
#undef ENCODE
#undef FOLD
#undef FACTOR
#undef SCALE
#undef DIVIDE
