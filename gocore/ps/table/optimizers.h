/* One update of one row, which hot.h includes. w is the row, s its state, g the gradient, in
 * float32. room holds a row and may be g. The formulas are those of torch's optimizers (of
 * SparseAdam's lazy kind: a row that is not in a push stays as it is), in their order; docs/ps.md
 * has them. */

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

INLINE void FN(sgd)(const pt_step *o, float *w, const float *g, int64_t dim) {
	for (int64_t j = 0; j < dim; j += LANES) {
		vec x = FN(load)(w + j, dim - j);
		x -= o->rate * FN(load)(g + j, dim - j);
		FN(store)(w + j, x, dim - j);
	}
}

INLINE void FN(momentum)(const pt_step *o, float *w, float *s, const float *g, int64_t dim) {
	for (int64_t j = 0; j < dim; j += LANES) {
		const int64_t left = dim - j;
		vec x = FN(load)(w + j, left), m = FN(load)(s + j, left);
		const vec y = FN(load)(g + j, left);
		m = o->momentum * m + y;
		FN(store)(s + j, m, left);
		x -= o->rate * (o->nesterov ? y + o->momentum * m : m);
		FN(store)(w + j, x, left);
	}
}

INLINE void FN(adagrad)(const pt_step *o, float *w, float *s, const float *g, int64_t dim) {
	for (int64_t j = 0; j < dim; j += LANES) {
		const int64_t left = dim - j;
		vec x = FN(load)(w + j, left), sum = FN(load)(s + j, left);
		const vec y = FN(load)(g + j, left);
		sum += y * y;
		FN(store)(s + j, sum, left);
		x -= o->rate * y / (ROOT(sum) + o->epsilon);
		FN(store)(w + j, x, left);
	}
}

INLINE void FN(row_wise_adagrad)(const pt_step *o, float *w, float *s, const float *g,
								 int64_t dim) {
	*s += FN(squares)(g, dim) / (float)dim;
	float rate = o->rate / (FN(root1)(*s) + o->epsilon);
	for (int64_t j = 0; j < dim; j += LANES) {
		vec x = FN(load)(w + j, dim - j);
		x -= rate * FN(load)(g + j, dim - j);
		FN(store)(w + j, x, dim - j);
	}
}

INLINE void FN(adam)(const pt_step *o, float *w, float *s, const float *g, int64_t dim) {
	float *square = s + dim;
	for (int64_t j = 0; j < dim; j += LANES) {
		const int64_t left = dim - j;
		vec x = FN(load)(w + j, left), m = FN(load)(s + j, left), v = FN(load)(square + j, left);
		const vec y = FN(load)(g + j, left);
		m += o->left1 * (y - m);
		v = o->beta2 * v + o->left2 * (y * y);
		FN(store)(s + j, m, left);
		FN(store)(square + j, v, left);
		x = o->shrink * x;
		x -= o->rate * (m / (ROOT(v) / o->root + o->epsilon));
		FN(store)(w + j, x, left);
	}
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
		FN(adam)(o, w, s, g, dim);
		break;
	}
}
