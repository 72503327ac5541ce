// All are one copy of an n-dimensional box, in which each side has strides. Those of
// a contiguous side follow from the shape. Adjacent dimensions that continue each other on both
// sides become one. The last of the remaining dimensions is the inner loop. If another dimension
// has a smaller stride in the tensor, as in a transposed one, these two are walked in tiles. So a
// cache line of the tensor is used completely before it is evicted.
#include "strided.h"

#include <string.h>

typedef struct {
	int64_t n;    // elements
	int64_t d, s; // bytes from one element to the next, in dst and in src
} dim;

static int64_t magnitude(int64_t v) {
	return v < 0 ? -v : v;
}

typedef void (*line_fn)(char *d, const char *s, int64_t n, int64_t dstep, int64_t sstep);

// A memcpy of a constant size is one load and one store, aligned or not.
#define DEFINE_LINE(size)                                                                          \
	static void line##size(char *d, const char *s, int64_t n, int64_t dstep, int64_t sstep) {      \
		int64_t i = 0;                                                                             \
		for (; i + 4 <= n; i += 4, d += 4 * dstep, s += 4 * sstep) {                               \
			memcpy(d, s, size);                                                                    \
			memcpy(d + dstep, s + sstep, size);                                                    \
			memcpy(d + 2 * dstep, s + 2 * sstep, size);                                            \
			memcpy(d + 3 * dstep, s + 3 * sstep, size);                                            \
		}                                                                                          \
		for (; i < n; i++, d += dstep, s += sstep)                                                 \
			memcpy(d, s, size);                                                                    \
	}

DEFINE_LINE(1)
DEFINE_LINE(2)
DEFINE_LINE(4)
DEFINE_LINE(8)
DEFINE_LINE(16)

// A tile has this many elements along each side. Its cache lines of both sides fit into L1.
enum { TILE = 16 };

// copy_plane copies across.n * along.n elements. Neighbours in across are close in the source,
// neighbours in along are close in the destination, because scattered reads wait for one another
// less than scattered writes do.
static void copy_plane(char *d, const char *s, dim across, dim along, line_fn line) {
	for (int64_t i = 0; i < across.n; i += TILE) {
		int64_t rows = across.n - i < TILE ? across.n - i : TILE;
		for (int64_t j = 0; j < along.n; j += TILE) {
			int64_t m = along.n - j < TILE ? along.n - j : TILE;
			for (int64_t r = i; r < i + rows; r++)
				line(d + r * across.d + j * along.d, s + r * across.s + j * along.s, m, along.d,
					 along.s);
		}
	}
}

static void copy_box(char *d, const char *s, int size, dim *dims, int n, int pack) {
	line_fn line = size == 1   ? line1
				   : size == 2 ? line2
				   : size == 4 ? line4
				   : size == 8 ? line8
							   : line16;
	dim inner = {1, size, size};
	if (n > 0)
		inner = dims[--n];
	int whole = inner.d == size && inner.s == size;

	// The dimension to tile with is the one with the smallest stride in the tensor.
	dim outer = {1, 0, 0};
	int64_t step = magnitude(pack ? inner.s : inner.d);
	int best = -1;
	for (int k = 0; k < n; k++) {
		int64_t t = magnitude(pack ? dims[k].s : dims[k].d);
		if (t != 0 && t < step) {
			step = t;
			best = k;
		}
	}
	if (best >= 0) {
		outer = dims[best];
		memmove(dims + best, dims + best + 1, (size_t)(n - 1 - best) * sizeof *dims);
		n--;
	}

	int64_t at[PMPI_MAX_DIMS] = {0};
	for (;;) {
		if (outer.n > 1)
			copy_plane(d, s, pack ? outer : inner, pack ? inner : outer, line);
		else if (whole)
			memcpy(d, s, (size_t)(inner.n * size));
		else
			line(d, s, inner.n, inner.d, inner.s);
		int k = n - 1;
		for (; k >= 0; k--) {
			d += dims[k].d;
			s += dims[k].s;
			if (++at[k] < dims[k].n)
				break;
			d -= dims[k].d * dims[k].n;
			s -= dims[k].s * dims[k].n;
			at[k] = 0;
		}
		if (k < 0)
			return;
	}
}

// reduce lists the dimensions of a tensor, the last ones of PMPI_MAX_DIMS, and returns where the
// list begins. A side without strides is contiguous. Returns -1 if the tensor is empty.
static int reduce(dim *dims, int size, int ndim, const int64_t *shape, const int64_t *dst_strides,
				  const int64_t *src_strides) {
	int n = PMPI_MAX_DIMS; // filled from the last dimension on
	int64_t packed = size;
	for (int k = ndim - 1; k >= 0; k--) {
		if (shape[k] == 0)
			return -1;
		if (shape[k] == 1)
			continue;
		dim v = {shape[k], dst_strides ? dst_strides[k] * size : packed,
				 src_strides ? src_strides[k] * size : packed};
		if (n < PMPI_MAX_DIMS && v.d == dims[n].d * dims[n].n && v.s == dims[n].s * dims[n].n)
			dims[n].n *= v.n;
		else
			dims[--n] = v;
		packed *= shape[k];
	}
	return n;
}

static int in_range(int size, int ndim) {
	return ndim >= 0 && ndim <= PMPI_MAX_DIMS &&
		   (size == 1 || size == 2 || size == 4 || size == 8 || size == 16);
}

static int copy(void *dst, const void *src, int size, int ndim, const int64_t *shape,
				const int64_t *dst_strides, const int64_t *src_strides) {
	if (!in_range(size, ndim))
		return -1;
	dim dims[PMPI_MAX_DIMS];
	int n = reduce(dims, size, ndim, shape, dst_strides, src_strides);
	if (n >= 0)
		copy_box(dst, src, size, dims + n, PMPI_MAX_DIMS - n, src_strides != NULL);
	return 0;
}

int pmpi_pack(void *dst, const void *src, int size, int ndim, const int64_t *shape,
			  const int64_t *strides) {
	return copy(dst, src, size, ndim, shape, NULL, strides);
}

int pmpi_unpack(void *dst, const void *src, int size, int ndim, const int64_t *shape,
				const int64_t *strides) {
	return copy(dst, src, size, ndim, shape, strides, NULL);
}

// A range is a part of a tensor, elements [from, from+count) in row-major order, and flat memory
// with these elements. size is the bytes of an element, into says that flat memory is copied to the
// tensor.
typedef struct {
	char *flat, *tensor;
	int64_t from, count;
	int size, into;
} range;

// copy_range copies a part of the tensor that n dimensions make up. It is a box of whole rows, and
// parts of a row before and behind it, which have a dimension less. The d of a dimension is the
// step in flat memory, s that in the tensor.
static void copy_range(range r, const dim *dims, int n) {
	int64_t row = 1; // elements of one index of the first dimension
	for (int k = 1; k < n; k++)
		row *= dims[k].n;
	int64_t first = r.from / row, skip = r.from % row;
	int64_t step = n > 0 ? dims[0].s : 0;
	if (skip > 0 || r.count < row) {
		range part = r;
		part.tensor += first * step;
		part.from = skip;
		part.count = r.count < row - skip ? r.count : row - skip;
		copy_range(part, dims + 1, n - 1);
		r.flat += part.count * r.size;
		r.count -= part.count;
		first++;
	}
	int64_t whole = r.count / row;
	if (whole > 0) {
		dim box[PMPI_MAX_DIMS + 1];
		for (int k = 0; k < n; k++)
			box[k] = r.into ? (dim){dims[k].n, dims[k].s, dims[k].d} : dims[k];
		if (n > 0)
			box[0].n = whole;
		char *at = r.tensor + first * step;
		copy_box(r.into ? at : r.flat, r.into ? r.flat : at, r.size, box, n, !r.into);
		r.flat += whole * row * r.size;
		r.count -= whole * row;
	}
	if (r.count > 0) {
		r.tensor += (first + whole) * step;
		r.from = 0;
		copy_range(r, dims + 1, n - 1);
	}
}

int pmpi_copy_range(void *flat, void *tensor, int size, int ndim, const int64_t *shape,
					const int64_t *strides, int64_t from, int64_t bytes, int into) {
	if (!in_range(size, ndim))
		return -1;
	dim dims[PMPI_MAX_DIMS + 1];
	int first = reduce(dims, size, ndim, shape, NULL, strides), n = PMPI_MAX_DIMS - first;
	if (first < 0 || bytes == 0)
		return 0;
	range r = {flat, tensor, from / size, bytes / size, size, into};
	if (from % size || bytes % size) { // the bytes of an element are a dimension
		dims[PMPI_MAX_DIMS] = (dim){size, 1, 1};
		r.from = from, r.count = bytes, r.size = 1;
		n++;
	}
	copy_range(r, dims + first, n);
	return 0;
}

int pmpi_make_box(pmpi_box *box, int size, int ndim, const int64_t *shape,
				  const int64_t *dst_strides, const int64_t *src_strides) {
	if (!in_range(size, ndim))
		return -1;
	dim dims[PMPI_MAX_DIMS];
	int from = reduce(dims, size, ndim, shape, dst_strides, src_strides);
	box->size = size;
	box->ndim = from < 0 ? -1 : PMPI_MAX_DIMS - from; // -1: the box is empty
	if (box->ndim > PMPI_BOX_DIMS)
		return -1;
	for (int k = 0; k < box->ndim; k++) {
		box->n[k] = dims[from + k].n;
		box->d[k] = dims[from + k].d;
		box->s[k] = dims[from + k].s;
	}
	return 0;
}

static void copy_one(char *dst, const char *src, const pmpi_box *b) {
	dim dims[PMPI_BOX_DIMS];
	for (int k = 0; k < b->ndim; k++)
		dims[k] = (dim){b->n[k], b->d[k], b->s[k]};
	int last = b->ndim - 1;
	copy_box(dst + b->dst, src + b->src, b->size, dims, b->ndim, last < 0 || b->s[last] != b->size);
}

typedef void (*pair_fn)(char *d, const char *s, int64_t n, int64_t dstep, int64_t sstep,
						int64_t dother, int64_t sother);

#define DEFINE_PAIR(size)                                                                          \
	static void pair##size(char *d, const char *s, int64_t n, int64_t dstep, int64_t sstep,        \
						   int64_t dother, int64_t sother) {                                       \
		for (int64_t i = 0; i < n; i++, d += dstep, s += sstep) {                                  \
			char a[size], b[size];                                                                 \
			memcpy(a, s, size);                                                                    \
			memcpy(b, s + sother, size);                                                           \
			memcpy(d, a, size);                                                                    \
			memcpy(d + dother, b, size);                                                           \
		}                                                                                          \
	}

DEFINE_PAIR(1)
DEFINE_PAIR(2)
DEFINE_PAIR(4)
DEFINE_PAIR(8)
DEFINE_PAIR(16)

// are_pair tells whether two boxes are copied element by element in turn: they have the same
// lengths and steps, and elements of the last dimension, which are closest, have a cache line each.
static int are_pair(const pmpi_box *a, const pmpi_box *b) {
	int last = a->ndim - 1;
	size_t bytes = (size_t)a->ndim * sizeof *a->n;
	if (last < 0 || a->ndim != b->ndim || a->size != b->size || memcmp(a->n, b->n, bytes) ||
		memcmp(a->d, b->d, bytes) || memcmp(a->s, b->s, bytes) ||
		(a->s[last] == a->size && a->d[last] == a->size))
		return 0;
	for (int k = 0; k < last; k++)
		if (magnitude(a->s[k]) < magnitude(a->s[last]) ||
			magnitude(a->d[k]) < magnitude(a->d[last]))
			return 0;
	return 1;
}

static void copy_pair(char *d, const char *s, const pmpi_box *a, const pmpi_box *b) {
	pair_fn pair = a->size == 1   ? pair1
				   : a->size == 2 ? pair2
				   : a->size == 4 ? pair4
				   : a->size == 8 ? pair8
								  : pair16;
	int last = a->ndim - 1;
	int64_t at[PMPI_BOX_DIMS] = {0};
	d += a->dst, s += a->src;
	for (;;) {
		pair(d, s, a->n[last], a->d[last], a->s[last], b->dst - a->dst, b->src - a->src);
		int k = last - 1;
		for (; k >= 0; k--) {
			d += a->d[k], s += a->s[k];
			if (++at[k] < a->n[k])
				break;
			d -= a->d[k] * a->n[k], s -= a->s[k] * a->n[k];
			at[k] = 0;
		}
		if (k < 0)
			return;
	}
}

void pmpi_copy_boxes(void *dst, const void *src, const pmpi_box *boxes, int64_t count) {
	for (const pmpi_box *b = boxes, *end = boxes + count; b < end; b++) {
		if (b->ndim < 0)
			continue;
		if (b + 1 < end && are_pair(b, b + 1)) {
			copy_pair(dst, src, b, b + 1);
			b++;
		} else {
			copy_one(dst, src, b);
		}
	}
}
