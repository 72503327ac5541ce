// The sources of the kernels are valid in two languages: in CUDA C++ for NVRTC, which makes PTX of
// them, and in C11, so that a test or a fake driver can run them on the host. In C a call of a
// kernel is one thread of the device. The code that includes a kernel first defines threadIdx,
// blockIdx, blockDim and gridDim with a member x. For a launch in one call they are 0, 0, 1 and 1.
#ifndef PADDLEMPI_KERNELS_DIALECT_H
#define PADDLEMPI_KERNELS_DIALECT_H

// The threads of a block. Four blocks on each processor of the device keep enough loads in flight,
// and leave 64 registers to a thread, so that no kernel spills registers.
#define BLOCK_THREADS   256
#define BLOCKS_PER_PROC 4

#ifdef __CUDACC__

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define INLINE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")

// KERNEL(name, type) { ... } defines a kernel. In it, args points to its one argument, a struct
// that is passed by value. Every thread reads it from the constant bank.
#define KERNEL(name, type)                                                                         \
	static __device__ __forceinline__ void name##_body(const type *args);                          \
	extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS_PER_PROC)                   \
		name(const type by_value) {                                                                \
		name##_body(&by_value);                                                                    \
	}                                                                                              \
	static __device__ __forceinline__ void name##_body(const type *args)

// The compiler would make four stores of it.
INLINE void store16(void *to, uint4 v) {
	asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
				 :
				 : "l"(__cvta_generic_to_global(to)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
				 : "memory");
}

#define AS_FLOAT(u) __uint_as_float(u)
#define AS_UINT(f)  __float_as_uint(f)

#else

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline, unused))
#define UNROLL
#define ROLLED

typedef struct __attribute__((aligned(16), may_alias)) uint4 {
	uint32_t x, y, z, w;
} uint4;

INLINE void store16(void *to, uint4 v) {
	*(uint4 *)to = v;
}

#define KERNEL(name, type)                                                                         \
	static inline void name##_body(const type *args);                                              \
	void name(const void *args) {                                                                  \
		name##_body((const type *)args);                                                           \
	}                                                                                              \
	static inline void name##_body(const type *args)

INLINE float AS_FLOAT(uint32_t u) {
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

INLINE uint32_t AS_UINT(float f) {
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return u;
}

#endif

// The number of this thread in the launch, and the number of threads. A loop from THREAD in steps
// of THREADS covers all elements with any grid.
#define THREAD  ((int64_t)blockIdx.x * blockDim.x + threadIdx.x)
#define THREADS ((int64_t)gridDim.x * blockDim.x)

#endif
