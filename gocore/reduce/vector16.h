// The reduction of 16-bit floats with one vector width. avx2.c and avx512.c include this file. They
// define
//   TARGET       the attribute that allows the instructions
//   VF, VW       a vector of float32, and the number of its elements
//   FN(name)     the name of a function for this instruction set
//   LOAD_BF16 LOAD_F16 STORE_BF16 STORE_F16 SET1 ADD MUL DIV MIN MAX, and
//   CANON(v)     v with each NaN replaced by the canonical one
//   KEEPNAN(a,v) v where a is a number, a where it is NaN
// The loop takes four vectors of every source at a time and keeps them in registers. So a source is
// read once, the result is written once, and dst may be a source.

#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE VF FN(load)(const uint16_t *p, const int bf16) {
	return bf16 ? LOAD_BF16(p) : LOAD_F16(p);
}

INLINE void FN(store)(uint16_t *p, VF v, const int bf16) {
	v = CANON(v);
	if (bf16)
		STORE_BF16(p, v);
	else
		STORE_F16(p, v);
}

INLINE VF FN(fold)(VF a, VF b, const int op) {
	switch (op) {
	case PMPI_K_SUM:
		return ADD(a, b);
	case PMPI_K_PRODUCT:
		return MUL(a, b);
	case PMPI_K_MIN:
		return KEEPNAN(a, MIN(a, b));
	default:
		return KEEPNAN(a, MAX(a, b));
	}
}

INLINE int64_t FN(run)(const pmpi_k16 *k, int64_t i, const int bf16, const int op,
					   const int scaled) {
	const uint16_t *const *srcs = k->srcs;
	const float *scales = k->scales;
	uint16_t *dst = k->dst;
	const int64_t n = k->n;
	const int32_t nsrc = k->nsrc;
	const VF divisor = SET1(k->divisor);
	const int divide = k->divisor != 1.0f;

	for (; i + 4 * VW <= n; i += 4 * VW) {
		const uint16_t *s = srcs[0] + i;
		VF a0 = FN(load)(s, bf16), a1 = FN(load)(s + VW, bf16);
		VF a2 = FN(load)(s + 2 * VW, bf16), a3 = FN(load)(s + 3 * VW, bf16);
		if (scaled) {
			VF f = SET1(scales[0]);
			a0 = MUL(a0, f), a1 = MUL(a1, f), a2 = MUL(a2, f), a3 = MUL(a3, f);
		}
		for (int32_t r = 1; r < nsrc; r++) {
			s = srcs[r] + i;
			// A processor does not prefetch this many streams by itself.
			__builtin_prefetch(s + 256);
			VF b0 = FN(load)(s, bf16), b1 = FN(load)(s + VW, bf16);
			VF b2 = FN(load)(s + 2 * VW, bf16), b3 = FN(load)(s + 3 * VW, bf16);
			if (scaled) {
				VF f = SET1(scales[r]);
				b0 = MUL(b0, f), b1 = MUL(b1, f), b2 = MUL(b2, f), b3 = MUL(b3, f);
			}
			a0 = FN(fold)(a0, b0, op), a1 = FN(fold)(a1, b1, op);
			a2 = FN(fold)(a2, b2, op), a3 = FN(fold)(a3, b3, op);
		}
		if (divide)
			a0 = DIV(a0, divisor), a1 = DIV(a1, divisor), a2 = DIV(a2, divisor),
			a3 = DIV(a3, divisor);
		FN(store)(dst + i, a0, bf16), FN(store)(dst + i + VW, a1, bf16);
		FN(store)(dst + i + 2 * VW, a2, bf16), FN(store)(dst + i + 3 * VW, a3, bf16);
	}
	for (; i + VW <= n; i += VW) {
		VF a = FN(load)(srcs[0] + i, bf16);
		if (scaled)
			a = MUL(a, SET1(scales[0]));
		for (int32_t r = 1; r < nsrc; r++) {
			VF b = FN(load)(srcs[r] + i, bf16);
			if (scaled)
				b = MUL(b, SET1(scales[r]));
			a = FN(fold)(a, b, op);
		}
		if (divide)
			a = DIV(a, divisor);
		FN(store)(dst + i, a, bf16);
	}
	return i;
}

// The constants below make this one loop for each case.
#define BY_TYPE(op, scaled)                                                                        \
	(k->bf16 ? FN(run)(k, start, 1, op, scaled) : FN(run)(k, start, 0, op, scaled))

TARGET int64_t FN(pmpi_reduce16)(const pmpi_k16 *k, int64_t start) {
	if (k->scales)
		return BY_TYPE(PMPI_K_SUM, 1);
	switch (k->op) {
	case PMPI_K_SUM:
		return BY_TYPE(PMPI_K_SUM, 0);
	case PMPI_K_PRODUCT:
		return BY_TYPE(PMPI_K_PRODUCT, 0);
	case PMPI_K_MIN:
		return BY_TYPE(PMPI_K_MIN, 0);
	default:
		return BY_TYPE(PMPI_K_MAX, 0);
	}
}
