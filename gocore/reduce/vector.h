// The reduction of 16-bit floats and of float32 with one vector width. avx2.c, avx512.c and neon.c
// include this file. They define
//   TARGET       the attribute that allows the instructions
//   VF, VI, VW   a vector of float32, one of integers, and the number of float32 in it
//   FN(name)     the name of a function for this instruction set
//   SET1 ADD MUL DIV MIN MAX, and
//   KEEPNAN(a,v) v where a is a number, a where it is NaN
//   LOAD_F32(p) LOAD_BF16(p) LOAD_F16(p) STORE_F32(p,v) STORE_BF16(p,v) STORE_F16(p,v)
//                VW elements as a vector of float32; a 16-bit NaN is stored as the canonical one
//   EVEN(p) ODD(p)
//                of 2 * VW bfloat16 those with an even and with an odd index. In a 32-bit lane, the
//                odd one is a float32 already but for its low half, and the even one is shifted.
//   ROUND2(even,odd)
//                the integer vector of the bfloat16 of both, which is stored with STOREI(p,v)
// A bfloat16 pair needs no instruction that moves elements between lanes: those cost more than the
// arithmetic.
// The loop takes four vectors of every source at a time and keeps them in registers. So a source is
// read once, each result is written once, and a destination may be a source.

#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE VF FN(load)(const char *p, const int type) {
	return type == PMPI_T_F32 ? LOAD_F32(p) : type == PMPI_T_BF16 ? LOAD_BF16(p) : LOAD_F16(p);
}

INLINE void FN(store)(char *p, VF v, const int type) {
	if (type == PMPI_T_F32)
		STORE_F32(p, v);
	else if (type == PMPI_T_BF16)
		STORE_BF16(p, v);
	else
		STORE_F16(p, v);
}

// load2 takes 2 * VW elements. Which of them go into which vector is known to store2 alone: pairs
// says that those with an even index go into the first.
INLINE void FN(load2)(const char *p, VF *a, VF *b, const int type, const int pairs) {
	const int64_t half = VW * (type == PMPI_T_F32 ? 4 : 2);
	*a = pairs ? EVEN(p) : FN(load)(p, type);
	*b = pairs ? ODD(p) : FN(load)(p + half, type);
}

INLINE void FN(store2)(char *p, VF a, VF b, const int type, const int pairs) {
	const int64_t half = VW * (type == PMPI_T_F32 ? 4 : 2);
	if (pairs) {
		STOREI(p, ROUND2(a, b));
	} else {
		FN(store)(p, a, type);
		FN(store)(p + half, b, type);
	}
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

INLINE int64_t FN(run)(const pmpi_floats *k, int64_t from, const int type, const int out,
					   const int op, const int scaled) {
	const char *const *srcs = (const char *const *)k->srcs;
	char *const *dsts = (char *const *)k->dsts;
	const float *scales = k->scales;
	const int32_t nsrc = k->nsrc, ndst = k->ndst;
	char *dst = dsts[0], *second = dsts[ndst > 1];
	const VF divisor = SET1(k->divisor);
	const int divide = k->divisor != 1.0f;
	const int64_t size = type == PMPI_T_F32 ? 4 : 2, end = k->n * size;
	const int64_t one = VW * size, two = 2 * one; // bytes of so many vectors
	const int pairs = type == PMPI_T_BF16 && out == PMPI_T_BF16;
	const int64_t outsize = out == PMPI_T_F32 ? 4 : 2, outone = VW * outsize, outtwo = 2 * outone;
	int64_t i = from * size, o = from * outsize;

	for (; i + 2 * two <= end; i += 2 * two, o += 2 * outtwo) {
		const char *s = srcs[0] + i;
		VF a0, a1, a2, a3;
		FN(load2)(s, &a0, &a1, type, pairs), FN(load2)(s + two, &a2, &a3, type, pairs);
		if (scaled) {
			VF f = SET1(scales[0]);
			a0 = MUL(a0, f), a1 = MUL(a1, f), a2 = MUL(a2, f), a3 = MUL(a3, f);
		}
		for (int32_t r = 1; r < nsrc; r++) {
			s = srcs[r] + i;
			// A processor prefetches a few streams by itself, but not more than four.
			if (nsrc > 4)
				__builtin_prefetch(s + 512);
			VF b0, b1, b2, b3;
			FN(load2)(s, &b0, &b1, type, pairs), FN(load2)(s + two, &b2, &b3, type, pairs);
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
		FN(store2)(dst + o, a0, a1, out, pairs), FN(store2)(dst + o + outtwo, a2, a3, out, pairs);
		if (ndst > 1)
			FN(store2)(second + o, a0, a1, out, pairs),
				FN(store2)(second + o + outtwo, a2, a3, out, pairs);
		for (int32_t d = 2; d < ndst; d++) {
			char *p = dsts[d] + o;
			FN(store2)(p, a0, a1, out, pairs), FN(store2)(p + outtwo, a2, a3, out, pairs);
		}
	}
	for (; i + one <= end; i += one, o += outone) {
		VF a = FN(load)(srcs[0] + i, type);
		if (scaled)
			a = MUL(a, SET1(scales[0]));
		for (int32_t r = 1; r < nsrc; r++) {
			VF b = FN(load)(srcs[r] + i, type);
			if (scaled)
				b = MUL(b, SET1(scales[r]));
			a = FN(fold)(a, b, op);
		}
		if (divide)
			a = DIV(a, divisor);
		for (int32_t d = 0; d < ndst; d++)
			FN(store)(dsts[d] + o, a, out);
	}
	return i / size;
}

// The constants below make this one loop for each case.
INLINE int64_t FN(by_type)(const pmpi_floats *k, int64_t start, const int op, const int scaled) {
	const int wide = k->out == PMPI_T_F32;
	switch (k->type) {
	case PMPI_T_F32:
		if (wide)
			return FN(run)(k, start, PMPI_T_F32, PMPI_T_F32, op, scaled);
		if (k->out == PMPI_T_BF16)
			return FN(run)(k, start, PMPI_T_F32, PMPI_T_BF16, op, scaled);
		return FN(run)(k, start, PMPI_T_F32, PMPI_T_F16, op, scaled);
	case PMPI_T_BF16:
		if (wide)
			return FN(run)(k, start, PMPI_T_BF16, PMPI_T_F32, op, scaled);
		return FN(run)(k, start, PMPI_T_BF16, PMPI_T_BF16, op, scaled);
	default:
		if (wide)
			return FN(run)(k, start, PMPI_T_F16, PMPI_T_F32, op, scaled);
		return FN(run)(k, start, PMPI_T_F16, PMPI_T_F16, op, scaled);
	}
}

TARGET int64_t FN(pmpi_floats)(const pmpi_floats *k, int64_t start) {
	if (k->scales)
		return FN(by_type)(k, start, PMPI_K_SUM, 1);
	switch (k->op) {
	case PMPI_K_SUM:
		return FN(by_type)(k, start, PMPI_K_SUM, 0);
	case PMPI_K_PRODUCT:
		return FN(by_type)(k, start, PMPI_K_PRODUCT, 0);
	case PMPI_K_MIN:
		return FN(by_type)(k, start, PMPI_K_MIN, 0);
	default:
		return FN(by_type)(k, start, PMPI_K_MAX, 0);
	}
}
