// Every instruction that C++ has no name for, as a tiny function. Nothing else is written in PTX.
#pragma once

// The block's and the thread's index, x. Volatile: who needs one again after a long loop reads it
// again, in place of registers that would hold what is computed from it throughout.
__device__ __forceinline__ unsigned block_index() {
    unsigned index;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
    return index;
}
__device__ __forceinline__ int thread_index() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}

__device__ __forceinline__ float widen_f16(unsigned short x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ __forceinline__ unsigned short round_to_f16(float x) {
    unsigned short y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    unsigned address;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }"
        : "=r"(address)
        : "l"(pointer));
    return address;
}

// Starts a copy of BYTES (4 or 16) of which the first `valid` are read and the rest are zeros.
template <int BYTES>
__device__ __forceinline__ void copy_async(unsigned to, const void* from, int valid) {
#if __CUDA_ARCH__ >= 800
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                     "l"(from), "r"(valid)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to),
                     "l"(from), "n"(BYTES), "r"(valid)
                     : "memory");
    }
#endif
}

template <int BYTES>
__device__ __forceinline__ void copy_async(unsigned to, const void* from) {
#if __CUDA_ARCH__ >= 800
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
                     "l"(from)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to),
                     "l"(from), "n"(BYTES)
                     : "memory");
    }
#endif
}

__device__ __forceinline__ void close_copy_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PENDING>
__device__ __forceinline__ void wait_for_copy_groups() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Reads of shared memory. Addresses are plain numbers, on which an exclusive-or is one operation;
// volatile, so that the reads stay between the meetings of a block.
__device__ __forceinline__ void read_shared(float4& to, unsigned from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to.x), "=f"(to.y), "=f"(to.z), "=f"(to.w)
                 : "r"(from));
}
__device__ __forceinline__ void read_shared(uint4& to, unsigned from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
                 : "r"(from));
}
__device__ __forceinline__ void read_shared(float& to, unsigned from) {
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(to) : "r"(from));
}
__device__ __forceinline__ void read_shared(unsigned short& to, unsigned from) {
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(to) : "r"(from));
}
