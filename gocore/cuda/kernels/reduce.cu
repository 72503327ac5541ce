// pmpi_reduce_<dtype>_<op>: dst[*][i] = the reduction of src[*][i], in the order of the sources,
// for every dtype and op of docs/ops.md. The bits are those of the host kernels in gocore/reduce,
// except for the payload of a NaN of 32 bits or more.
//
// A kernel reads every source once and writes every destination once: (n_src + n_dst) * count
// elements. That is the least possible, and runs are compared with it. If n ranks with S bytes each
// share one GPU, every rank does 1/n of the elements. All ranks together move 2nS bytes, which
// takes 2nS / memory bandwidth. On several GPUs, (n-1)/n of the bytes are on another GPU and cross
// NVLink or PCIe.
//
// If all arrays start at the same remainder modulo 16, as tensors of one allocator do, all elements
// but those at the ends go in packs of 16 bytes. Otherwise they go one by one. A thread has the
// packs of up to four sources in flight.
#include "arguments.h"

// The reduce ops, with the numbers of gocore/op.
enum { SUM = 1, PRODUCT, MIN, MAX, AVG, BAND, BOR, BXOR, PREMUL_SUM };

// A module has the kernels of one dtype, so that the first use of a dtype does not wait until the
// driver has compiled all of them. PMPI_ONLY is the number of the dtype in gocore/op. Without it
// all dtypes are compiled.
#ifdef PMPI_ONLY
#define WANTED(number) (PMPI_ONLY == (number))
#else
#define WANTED(number) 1
#endif

// Integers are combined in words: of 32 bits with several lanes, or of 64 bits with one. high has
// the highest bit of each lane. Without these bits, lanes are added without a carry into the next
// lane.
#define ADD_LANES(a, b, high) ((((a) & ~(high)) + ((b) & ~(high))) ^ (((a) ^ (b)) & (high)))

#define DEFINE_LANES(name, word, lane, unsigned_lane, high)                                        \
	INLINE word fold_##name(word a, word b, const int op) {                                        \
		if (op == SUM || op == AVG)                                                                \
			return sizeof(lane) < sizeof(word) ? ADD_LANES(a, b, (word)(high)) : a + b;            \
		if (op == BAND)                                                                            \
			return a & b;                                                                          \
		if (op == BOR)                                                                             \
			return a | b;                                                                          \
		if (op == BXOR)                                                                            \
			return a ^ b;                                                                          \
		word r = 0;                                                                                \
		UNROLL for (unsigned at = 0; at < 8 * sizeof(word); at += 8 * sizeof(lane)) {              \
			const lane x = (lane)(a >> at), y = (lane)(b >> at);                                   \
			word lane_of_r = 0;                                                                    \
			if (op == PRODUCT)                                                                     \
				lane_of_r = (unsigned_lane)((a >> at) * (b >> at));                                \
			else if (op == MIN)                                                                    \
				lane_of_r = (unsigned_lane)(x < y ? x : y);                                        \
			else                                                                                   \
				lane_of_r = (unsigned_lane)(x > y ? x : y);                                        \
			r |= lane_of_r << at;                                                                  \
		}                                                                                          \
		return r;                                                                                  \
	}                                                                                              \
	INLINE word divide_##name(word a, int32_t by) {                                                \
		word r = 0;                                                                                \
		UNROLL for (unsigned at = 0; at < 8 * sizeof(word); at += 8 * sizeof(lane)) r |=           \
			(word)(unsigned_lane)((lane)(a >> at) / by) << at;                                     \
		return r;                                                                                  \
	}

// A minimum or maximum is NaN if either operand is.
#define MIN2(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define MAX2(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

#define DEFINE_FLOAT(type)                                                                         \
	INLINE type fold_##type(type a, type b, const int op) {                                        \
		if (op == PRODUCT)                                                                         \
			return a * b;                                                                          \
		if (op == MIN)                                                                             \
			return MIN2(a, b);                                                                     \
		if (op == MAX)                                                                             \
			return MAX2(a, b);                                                                     \
		return a + b;                                                                              \
	}                                                                                              \
	typedef struct type##_pair {                                                                   \
		type x, y;                                                                                 \
	} type##_pair;                                                                                 \
	INLINE type##_pair scale_##type##_pair(type##_pair a, type factor) {                           \
		a.x *= factor;                                                                             \
		a.y *= factor;                                                                             \
		return a;                                                                                  \
	}                                                                                              \
	INLINE type##_pair divide_##type##_pair(type##_pair a, type by) {                              \
		a.x /= by;                                                                                 \
		a.y /= by;                                                                                 \
		return a;                                                                                  \
	}                                                                                              \
	INLINE type##_pair fold_##type##_pair(type##_pair a, type##_pair b, const int op) {            \
		a.x = fold_##type(a.x, b.x, op);                                                           \
		a.y = fold_##type(a.y, b.y, op);                                                           \
		return a;                                                                                  \
	}                                                                                              \
	/* The textbook product: no recovery of infinities. */                                         \
	INLINE type##_pair fold_##type##_complex(type##_pair a, type##_pair b, const int op) {         \
		if (op != PRODUCT)                                                                         \
			return fold_##type##_pair(a, b, op);                                                   \
		type##_pair r;                                                                             \
		r.x = a.x * b.x - a.y * b.y;                                                               \
		r.y = a.x * b.y + a.y * b.x;                                                               \
		return r;                                                                                  \
	}

DEFINE_FLOAT(float)
DEFINE_FLOAT(double)

// Two 16-bit floats are in a word. Every NaN becomes the positive quiet one.

INLINE float load_bfloat16(uint32_t h) {
	return AS_FLOAT(h << 16);
}

INLINE uint32_t store_bfloat16(float f) {
	const uint32_t u = AS_UINT(f);
	return f != f ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}

#ifdef __CUDACC__

INLINE float load_float16(uint32_t h) {
	float f;
	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)h));
	return f;
}

INLINE uint32_t store_float16(float f) {
	uint16_t h;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
	return f != f ? 0x7e00 : h;
}

#else

INLINE float load_float16(uint32_t h) {
	const uint32_t sign = (h & 0x8000) << 16, em = (h & 0x7fff) << 13;
	if (em >= 0x0f800000) // infinity or NaN
		return AS_FLOAT(sign | em | 0x7f800000);
	if (em >= 0x00800000)
		return AS_FLOAT(sign | (em + (112u << 23)));
	// A subnormal becomes the fraction of a normal number, from which its leading one is
	// subtracted.
	return AS_FLOAT(sign | AS_UINT(AS_FLOAT(em + (113u << 23)) - AS_FLOAT(113u << 23)));
}

INLINE uint32_t store_float16(float f) {
	const uint32_t u = AS_UINT(f) & 0x7fffffff, sign = (AS_UINT(f) >> 16) & 0x8000;
	if (u > 0x7f800000)
		return 0x7e00;
	if (u >= 0x47800000)
		return sign | 0x7c00;
	if (u >= 0x38800000)
		return sign | (u - (112u << 23) + 0xfff + ((u >> 13) & 1)) >> 13;
	// Adding 0.5 moves the last bit of a float16 subnormal to the last bit of the float32, so the
	// addition rounds to nearest even.
	return sign | (AS_UINT(AS_FLOAT(u) + 0.5f) - AS_UINT(0.5f));
}

#endif

#define DEFINE_16(name)                                                                            \
	INLINE float_pair decode_##name(uint32_t w) {                                                  \
		float_pair r;                                                                              \
		r.x = load_##name(w & 0xffff);                                                             \
		r.y = load_##name(w >> 16);                                                                \
		return r;                                                                                  \
	}                                                                                              \
	INLINE uint32_t encode_##name(float_pair a) {                                                  \
		return store_##name(a.x) | store_##name(a.y) << 16;                                        \
	}

// For each byte, 1 if it is not zero, else 0.
INLINE uint32_t truth(uint32_t w) {
	return ((((w & 0x7f7f7f7f) + 0x7f7f7f7f) | w) >> 7) & 0x01010101;
}

INLINE uint32_t fold_bool(uint32_t a, uint32_t b, const int op) {
	if (op == SUM || op == MAX || op == BOR)
		return a | b;
	if (op == BXOR)
		return a ^ b;
	return a & b;
}

#define SAME(x)          (x)
#define TIMES(a, factor) ((a) * (factor))
#define OVER(a, by)      ((a) / (by))

// The arithmetic of each dtype, and its kernels. reduce_type.h explains the macros.
#define KERNEL_OF(dtype, suffix, op)                                                               \
	KERNEL(pmpi_reduce_##dtype##_##suffix, pmpi_reduce_args) {                                     \
		reduce_##dtype(args, op);                                                                  \
	}

#define KERNELS_ALL(dtype)                                                                         \
	KERNEL_OF(dtype, sum, SUM)                                                                     \
	KERNEL_OF(dtype, product, PRODUCT)

#define KERNELS_ORDERED(dtype)                                                                     \
	KERNEL_OF(dtype, min, MIN)                                                                     \
	KERNEL_OF(dtype, max, MAX)

#define KERNELS_BITS(dtype)                                                                        \
	KERNEL_OF(dtype, band, BAND)                                                                   \
	KERNEL_OF(dtype, bor, BOR)                                                                     \
	KERNEL_OF(dtype, bxor, BXOR)

#define KERNELS_MEAN(dtype) KERNEL_OF(dtype, avg, AVG)

#define KERNELS_SCALED(dtype)                                                                      \
	KERNELS_MEAN(dtype)                                                                            \
	KERNEL_OF(dtype, premul_sum, PREMUL_SUM)

#if WANTED(1)
#define DTYPE  bool
#define T      uint8_t
#define W      uint32_t
#define A      uint32_t
#define DECODE truth
#define ENCODE SAME
#define FOLD   fold_bool
#include "reduce_type.h"
KERNELS_ALL(bool)
KERNELS_ORDERED(bool)
KERNELS_BITS(bool)
#endif

#if WANTED(2)
DEFINE_LANES(int8, uint32_t, int8_t, uint8_t, 0x80808080)
#define DTYPE  int8
#define T      uint8_t
#define W      uint32_t
#define A      uint32_t
#define DECODE SAME
#define ENCODE SAME
#define FOLD   fold_int8
#define FACTOR int32_t
#define DIVIDE divide_int8
#include "reduce_type.h"
KERNELS_ALL(int8)
KERNELS_ORDERED(int8)
KERNELS_BITS(int8)
KERNELS_MEAN(int8)
#endif

#if WANTED(3)
DEFINE_LANES(uint8, uint32_t, uint8_t, uint8_t, 0x80808080)
#define DTYPE  uint8
#define T      uint8_t
#define W      uint32_t
#define A      uint32_t
#define DECODE SAME
#define ENCODE SAME
#define FOLD   fold_uint8
#define FACTOR int32_t
#define DIVIDE divide_uint8
#include "reduce_type.h"
KERNELS_ALL(uint8)
KERNELS_ORDERED(uint8)
KERNELS_BITS(uint8)
KERNELS_MEAN(uint8)
#endif

#if WANTED(4)
DEFINE_LANES(int16, uint32_t, int16_t, uint16_t, 0x80008000)
#define DTYPE  int16
#define T      uint16_t
#define W      uint32_t
#define A      uint32_t
#define DECODE SAME
#define ENCODE SAME
#define FOLD   fold_int16
#define FACTOR int32_t
#define DIVIDE divide_int16
#include "reduce_type.h"
KERNELS_ALL(int16)
KERNELS_ORDERED(int16)
KERNELS_BITS(int16)
KERNELS_MEAN(int16)
#endif

#if WANTED(5)
DEFINE_LANES(uint16, uint32_t, uint16_t, uint16_t, 0x80008000)
#define DTYPE  uint16
#define T      uint16_t
#define W      uint32_t
#define A      uint32_t
#define DECODE SAME
#define ENCODE SAME
#define FOLD   fold_uint16
#define FACTOR int32_t
#define DIVIDE divide_uint16
#include "reduce_type.h"
KERNELS_ALL(uint16)
KERNELS_ORDERED(uint16)
KERNELS_BITS(uint16)
KERNELS_MEAN(uint16)
#endif

#if WANTED(6)
DEFINE_LANES(int32, uint32_t, int32_t, uint32_t, 0)
#define DTYPE  int32
#define T      uint32_t
#define W      uint32_t
#define A      uint32_t
#define DECODE SAME
#define ENCODE SAME
#define FOLD   fold_int32
#define FACTOR int32_t
#define DIVIDE divide_int32
#include "reduce_type.h"
KERNELS_ALL(int32)
KERNELS_ORDERED(int32)
KERNELS_BITS(int32)
KERNELS_MEAN(int32)
#endif

#if WANTED(7)
DEFINE_LANES(uint32, uint32_t, uint32_t, uint32_t, 0)
#define DTYPE  uint32
#define T      uint32_t
#define W      uint32_t
#define A      uint32_t
#define DECODE SAME
#define ENCODE SAME
#define FOLD   fold_uint32
#define FACTOR int32_t
#define DIVIDE divide_uint32
#include "reduce_type.h"
KERNELS_ALL(uint32)
KERNELS_ORDERED(uint32)
KERNELS_BITS(uint32)
KERNELS_MEAN(uint32)
#endif

#if WANTED(8)
DEFINE_LANES(int64, uint64_t, int64_t, uint64_t, 0)
#define DTYPE  int64
#define T      uint64_t
#define W      uint64_t
#define A      uint64_t
#define DECODE SAME
#define ENCODE SAME
#define FOLD   fold_int64
#define FACTOR int32_t
#define DIVIDE divide_int64
#include "reduce_type.h"
KERNELS_ALL(int64)
KERNELS_ORDERED(int64)
KERNELS_BITS(int64)
KERNELS_MEAN(int64)
#endif

#if WANTED(9)
DEFINE_LANES(uint64, uint64_t, uint64_t, uint64_t, 0)
#define DTYPE  uint64
#define T      uint64_t
#define W      uint64_t
#define A      uint64_t
#define DECODE SAME
#define ENCODE SAME
#define FOLD   fold_uint64
#define FACTOR int32_t
#define DIVIDE divide_uint64
#include "reduce_type.h"
KERNELS_ALL(uint64)
KERNELS_ORDERED(uint64)
KERNELS_BITS(uint64)
KERNELS_MEAN(uint64)
#endif

#if WANTED(10)
DEFINE_16(float16)
#define DTYPE  float16
#define T      uint16_t
#define W      uint32_t
#define A      float_pair
#define DECODE decode_float16
#define ENCODE encode_float16
#define FOLD   fold_float_pair
#define FACTOR float
#define SCALE  scale_float_pair
#define DIVIDE divide_float_pair
#include "reduce_type.h"
KERNELS_ALL(float16)
KERNELS_ORDERED(float16)
KERNELS_SCALED(float16)
#endif

#if WANTED(11)
DEFINE_16(bfloat16)
#define DTYPE  bfloat16
#define T      uint16_t
#define W      uint32_t
#define A      float_pair
#define DECODE decode_bfloat16
#define ENCODE encode_bfloat16
#define FOLD   fold_float_pair
#define FACTOR float
#define SCALE  scale_float_pair
#define DIVIDE divide_float_pair
#include "reduce_type.h"
KERNELS_ALL(bfloat16)
KERNELS_ORDERED(bfloat16)
KERNELS_SCALED(bfloat16)
#endif

#if WANTED(12)
#define DTYPE  float32
#define T      float
#define W      float
#define A      float
#define DECODE SAME
#define ENCODE SAME
#define FOLD   fold_float
#define FACTOR float
#define SCALE  TIMES
#define DIVIDE OVER
#include "reduce_type.h"
KERNELS_ALL(float32)
KERNELS_ORDERED(float32)
KERNELS_SCALED(float32)
#endif

#if WANTED(13)
#define DTYPE  float64
#define T      double
#define W      double
#define A      double
#define DECODE SAME
#define ENCODE SAME
#define FOLD   fold_double
#define FACTOR double
#define SCALE  TIMES
#define DIVIDE OVER
#include "reduce_type.h"
KERNELS_ALL(float64)
KERNELS_ORDERED(float64)
KERNELS_SCALED(float64)
#endif

#if WANTED(14)
#define DTYPE  complex64
#define T      float_pair
#define W      float_pair
#define A      float_pair
#define DECODE SAME
#define ENCODE SAME
#define FOLD   fold_float_complex
#define FACTOR float
#define SCALE  scale_float_pair
#define DIVIDE divide_float_pair
#include "reduce_type.h"
KERNELS_ALL(complex64)
KERNELS_SCALED(complex64)
#endif

#if WANTED(15)
#define DTYPE  complex128
#define T      double_pair
#define W      double_pair
#define A      double_pair
#define DECODE SAME
#define ENCODE SAME
#define FOLD   fold_double_complex
#define FACTOR double
#define SCALE  scale_double_pair
#define DIVIDE divide_double_pair
#include "reduce_type.h"
KERNELS_ALL(complex128)
KERNELS_SCALED(complex128)
#endif
