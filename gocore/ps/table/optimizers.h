/* One update of one row, which hot.h includes. w is the row, s its state, g the gradient, in
 * float32. room holds a row and may be g. The formulas are those of torch's optimizers (of
 * SparseAdam's lazy kind: a row that is not in a push stays as it is), in their order;
 * docs/ps-reference.md has them. */

/* prepared returns the gradient after clipping and weight decay. */
INLINE const float *FN(prepared)(const pt_step *o, const float *w, const float *g, float *room,
								 int64_t dim) {
	int by_value = o->clip_value < __builtin_inff(), by_norm = o->clip_norm < __builtin_inff();
	if (__builtin_expect(!by_value && !by_norm && o->weight_decay == 0, 1))
		return g;
	if (by_value) {
		for (int64_t j = 0; j < dim; j++) { /* a NaN stays */
			float x = g[j];
			x = x > o->clip_value ? o->clip_value : x;
			room[j] = x < -o->clip_value ? -o->clip_value : x;
		}
		g = room;
	}
	if (by_norm) {
		float norm = FN(root1)(FN(squares)(g, dim));
		if (norm > o->clip_norm) {
			float factor = o->clip_norm / norm;
			for (int64_t j = 0; j < dim; j++)
				room[j] = g[j] * factor;
			g = room;
		}
	}
	if (o->weight_decay != 0) {
		for (int64_t j = 0; j < dim; j++)
			room[j] = g[j] + o->weight_decay * w[j];
		g = room;
	}
	return g;
}

/* within returns the values x that an update has computed as the row keeps them. A value beyond the
 * largest number of the row's dtype becomes that number. Where x is a NaN, because the state or the
 * step was infinite, the row keeps its value from before the update: was. */
INLINE vec FN(within)(const pt_step *o, vec x, const vec was) {
	if (__builtin_expect(o->most == __builtin_inff(), 0))
		return x;
	const vec most = o->most + (vec){0};
	const ivec over = x > most, under = x < -most, none = x != x;
	const ivec kept = (ivec)x & ~(over | under | none);
	return (vec)(kept | ((ivec)most & over) | ((ivec)-most & under) | ((ivec)was & none));
}

INLINE void FN(sgd)(const pt_step *o, float *w, const float *g, int64_t dim) {
	for (int64_t j = 0; j < dim; j += LANES) {
		const vec was = FN(load)(w + j, dim - j);
		const vec x = was - o->rate * FN(load)(g + j, dim - j);
		FN(store)(w + j, FN(within)(o, x, was), dim - j);
	}
}

INLINE void FN(momentum)(const pt_step *o, float *w, float *s, const float *g, int64_t dim) {
	for (int64_t j = 0; j < dim; j += LANES) {
		const int64_t left = dim - j;
		const vec was = FN(load)(w + j, left), y = FN(load)(g + j, left);
		vec m = FN(load)(s + j, left);
		m = o->momentum * m + y;
		FN(store)(s + j, m, left);
		const vec x = was - o->rate * (o->nesterov ? y + o->momentum * m : m);
		FN(store)(w + j, FN(within)(o, x, was), left);
	}
}

INLINE void FN(adagrad)(const pt_step *o, float *w, float *s, const float *g, int64_t dim) {
	for (int64_t j = 0; j < dim; j += LANES) {
		const int64_t left = dim - j;
		const vec was = FN(load)(w + j, left), y = FN(load)(g + j, left);
		vec sum = FN(load)(s + j, left);
		sum += y * y;
		FN(store)(s + j, sum, left);
		const vec x = was - o->rate * y / (ROOT(sum) + o->epsilon);
		FN(store)(w + j, FN(within)(o, x, was), left);
	}
}

INLINE void FN(row_wise_adagrad)(const pt_step *o, float *w, float *s, const float *g,
								 int64_t dim) {
	*s += FN(squares)(g, dim) / (float)dim;
	float rate = o->rate / (FN(root1)(*s) + o->epsilon);
	for (int64_t j = 0; j < dim; j += LANES) {
		const vec was = FN(load)(w + j, dim - j);
		const vec x = was - rate * FN(load)(g + j, dim - j);
		FN(store)(w + j, FN(within)(o, x, was), dim - j);
	}
}

INLINE void FN(adam)(const pt_step *o, float rate, float divisor, float *w, float *s,
					 const float *g, int64_t dim) {
	float *square = s + dim;
	for (int64_t j = 0; j < dim; j += LANES) {
		const int64_t left = dim - j;
		const vec was = FN(load)(w + j, left), y = FN(load)(g + j, left);
		vec m = FN(load)(s + j, left), v = FN(load)(square + j, left);
		m += o->left1 * (y - m);
		v = o->beta2 * v + o->left2 * (y * y);
		FN(store)(s + j, m, left);
		FN(store)(square + j, v, left);
		const vec x = o->shrink * was - rate * (m / (ROOT(v) / divisor + o->epsilon));
		FN(store)(w + j, FN(within)(o, x, was), left);
	}
}

/* power returns x to the power n, by the same products on every machine. */
INLINE double FN(power)(double x, uint32_t n) {
	double y = 1;
	for (; n; n >>= 1) {
		if (n & 1)
			y *= x;
		x *= x;
	}
	return y;
}

/* adam_by_row corrects by the row's own count of updates, which lies behind its two moments. A
 * float counts to 2^24 and stays there: the correction is long none. */
INLINE void FN(adam_by_row)(const pt_step *o, float *w, float *s, const float *g, int64_t dim) {
	float *count = s + 2 * dim;
	*count += *count < 0x1p24f;
	/* A state that somebody has written may hold anything. */
	uint32_t t = *count >= 1 && *count <= 0x1p24f ? (uint32_t)*count : 1;
	float rate = (float)(o->whole_rate / (1 - FN(power)(o->beta[0], t)));
	float root = (float)pt_square_root(1 - FN(power)(o->beta[1], t));
	FN(adam)(o, rate, root, w, s, g, dim);
}

INLINE void FN(update)(int optimizer, const pt_step *o, float *w, float *s, const float *g,
					   float *room, int64_t dim) {
	g = FN(prepared)(o, w, g, room, dim);
	switch (optimizer) {
	case PT_SGD:
		FN(sgd)(o, w, g, dim);
		break;
	case PT_MOMENTUM:
		FN(momentum)(o, w, s, g, dim);
		break;
	case PT_ADAGRAD:
		FN(adagrad)(o, w, s, g, dim);
		break;
	case PT_ROW_WISE_ADAGRAD:
		FN(row_wise_adagrad)(o, w, s, g, dim);
		break;
	case PT_ADAM:
		FN(adam)(o, o->rate, o->root, w, s, g, dim);
		break;
	case PT_ADAM_BY_ROW:
		FN(adam_by_row)(o, w, s, g, dim);
		break;
	}
}
