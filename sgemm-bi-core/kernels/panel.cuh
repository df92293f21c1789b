// Tiles of an operand on their way from global into shared memory, as `tile.cu` wants them: one row
// for each element of the reduction, widened to f32, whatever the operand's layout and dtype.
#pragma once

#include "vector.cuh"

// Copies tiles of LINES lines (rows of lhs, columns of rhs) by DEPTH elements of the reduction, one
// after the other, by all THREADS threads of a block. ORDER and WIDTH are the kernel's defines:
// WIDTH elements are read at a time along the direction that ORDER names. WIDTH 1 honours any
// strides.
//
// Where the copy changes nothing but the place, it is asynchronous (ASYNC) and a slot of shared
// memory is what is on its way. Vectors along the reduction are turned and 16-bit elements widened,
// so those pass through registers: `held` is what is on its way.
//
// Outside the matrix, and beyond the end of the reduction, tiles hold zeros, in both operands at
// the same k: such a product adds +0.0, which changes no total.
template <int DTYPE, int ORDER, int WIDTH, int LINES, int DEPTH, int THREADS>
struct Panel {
    using Type = typename Element<DTYPE>::Type;
    using Vector = typename Packed<WIDTH * sizeof(Type)>::Type;
    static constexpr bool TURNS = ORDER == 1 && WIDTH > 1;
#if __CUDA_ARCH__ >= 800
    static constexpr bool ASYNC = DTYPE == F32 && !TURNS;
#else
    static constexpr bool ASYNC = false;
#endif
    // Floats from one k to the next. The four of padding spread turned vectors over the banks.
    static constexpr int PITCH = LINES + (ORDER == 1 ? 4 : 0);
    static constexpr int BYTES = PITCH * DEPTH * 4;

    // More lanes than `least` where there would be more threads than lines.
    static constexpr int lanes_to_turn(int least) {
        int lanes = least;
        while (THREADS / lanes > LINES && lanes * 2 <= DEPTH / WIDTH) lanes *= 2;
        return lanes;
    }
    // LANES threads side by side along the operand's contiguous direction, GROUPS of them across
    // it. Turned: neighbours take different lines, whose words lie in different banks; of f32, two
    // share a line, for they read a whole sector of it.
    static constexpr int ALONG = (ORDER == 0 ? LINES : DEPTH) / WIDTH;
    static constexpr int ACROSS = ORDER == 0 ? DEPTH : LINES;
    static constexpr int LANES = ORDER == 0 ? lanes_along(ALONG, THREADS)
                                 : !TURNS   ? 8
                                            : lanes_to_turn(WIDTH == 4 ? 2 : 1);
    static constexpr int GROUPS = THREADS / LANES;
    static constexpr int STEPS_ALONG = ALONG / LANES;
    static constexpr int STEPS_ACROSS = (ACROSS + GROUPS - 1) / GROUPS;
    static constexpr int STEPS = STEPS_ALONG * STEPS_ACROSS;  // vectors of a thread
    static_assert(STEPS_ALONG * LANES * WIDTH == (ORDER == 0 ? LINES : DEPTH), "whole vectors");

    const Type* base;  // a readable address
    const Type* next;  // the thread's first element of the next tile
    long long line_stride, red_stride;
    int lines;  // that lie inside the matrix
    int left;   // elements of the reduction, from the next tile on; not kept by whole fetches
    Vector held[ASYNC ? 1 : STEPS];

    // `offset` leads to the tile's first line, `first_k` to the first element of the reduction.
    __device__ __forceinline__ Panel(const void* base, long long offset, long long line_stride,
                                     long long red_stride, int lines, long long first_k)
        : base(static_cast<const Type*>(base)), line_stride(line_stride), red_stride(red_stride),
          lines(lines) {
        next = this->base + offset + thread_line() * line_stride +
               (first_k + thread_k()) * red_stride;
    }

    static __device__ __forceinline__ int along() { return threadIdx.x % LANES * WIDTH; }
    static __device__ __forceinline__ int across() { return threadIdx.x / LANES; }
    static __device__ __forceinline__ int thread_line() { return ORDER == 0 ? along() : across(); }
    static __device__ __forceinline__ int thread_k() { return ORDER == 0 ? across() : along(); }

    // Step s of a thread: how far it lies from the thread's first element, in lines and k.
    static constexpr __device__ int step_line(int s) {
        return ORDER == 0 ? s % STEPS_ALONG * LANES * WIDTH : s / STEPS_ALONG * GROUPS;
    }
    static constexpr __device__ int step_k(int s) {
        return ORDER == 0 ? s / STEPS_ALONG * GROUPS : s % STEPS_ALONG * LANES * WIDTH;
    }
    static __device__ __forceinline__ bool takes_part(int s) {
        return ACROSS % GROUPS == 0 || across() + s / STEPS_ALONG * GROUPS < ACROSS;
    }
    // Where step s goes in a tile.
    static __device__ __forceinline__ int place(int s) {
        return thread_k() * PITCH + thread_line() + (step_k(s) * PITCH + step_line(s));
    }

    // A vector's own direction has stride 1.
    __device__ __forceinline__ const Type* address(int s) const {
        const long long line = WIDTH > 1 && ORDER == 0 ? 1 : line_stride;
        const long long red = WIDTH > 1 && ORDER == 1 ? 1 : red_stride;
        return next + step_line(s) * line + step_k(s) * red;
    }
    // How many elements of step s exist: none where it is negative, all WIDTH where it is more.
    //
    // Never clamped before it is compared with WIDTH: ptxas 13.0 fuses max(0, min(n, WIDTH)) and a
    // comparison of the result into one VIMNMX.RELU whose predicate is wrong for sm_90.
    __device__ __forceinline__ int valid(int s) const {
        const int line = lines - thread_line() - step_line(s);
        const int k = left - thread_k() - step_k(s);
        return ORDER == 0 ? (k > 0 ? line : 0) : (line > 0 ? k : 0);
    }

    __device__ __forceinline__ void advance() {
        next += DEPTH * (WIDTH > 1 && ORDER == 1 ? 1 : red_stride);
    }

    // Starts step s of the next tile, into `slot` if ASYNC. WHOLE: the tile is.
    template <bool WHOLE>
    __device__ __forceinline__ void fetch_step(unsigned slot, int s) {
        if (!takes_part(s)) return;
        const Type* from = address(s);
        const int count = WHOLE ? WIDTH : valid(s);
        if constexpr (ASYNC) {
            const unsigned to = slot + place(s) * 4u;
            if constexpr (WHOLE) {
                copy_async<sizeof(Vector)>(to, from);
            } else {
                const int read = max(0, min(count, WIDTH)) * static_cast<int>(sizeof(Type));
                copy_async<sizeof(Vector)>(to, count > 0 ? from : base, read);
            }
        } else if (WHOLE || count >= WIDTH) {
            held[s] = *reinterpret_cast<const Vector*>(from);
        } else {
            held[s] = first_of<Vector, WIDTH>(from, count);
        }
    }

    // Starts fetching the next tile, which is a whole one.
    __device__ __forceinline__ void fetch_whole(unsigned slot) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) fetch_step<true>(slot, s);
        advance();
    }
    // Starts fetching the next tile, if there is one.
    __device__ __forceinline__ void fetch(unsigned slot) {
        if (left <= 0) return;
        if (lines == LINES && left >= DEPTH) {
            fetch_whole(slot);
        } else {
#pragma unroll
            for (int s = 0; s < STEPS; ++s) fetch_step<false>(slot, s);
            advance();
        }
        left -= DEPTH;
    }

    // Writes what is held to a slot.
    __device__ __forceinline__ void settle_step(float* slot, int s) const {
        if (!takes_part(s)) return;
        union {
            Vector vector;
            Type element[WIDTH];
        } in = {held[s]};
        float value[WIDTH];
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) value[e] = Element<DTYPE>::widen(in.element[e]);
        float* to = slot + place(s);
        if constexpr (ORDER == 0 && WIDTH > 1) {
#pragma unroll
            for (int e = 0; e < WIDTH; e += 4) {
                *reinterpret_cast<float4*>(to + e) =
                    make_float4(value[e], value[e + 1], value[e + 2], value[e + 3]);
            }
        } else {
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) to[e * PITCH] = value[e];
        }
    }
    __device__ __forceinline__ void settle(float* slot) const {
        if constexpr (!ASYNC) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s) settle_step(slot, s);
        }
    }

    // `settle` and then `fetch_whole`, a part of it at each k from 1 to DEPTH, so that it passes
    // between multiply-adds. Does nothing if ASYNC.
    __device__ __forceinline__ void pass(float* slot, int k) {
        if constexpr (!ASYNC) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const int at = 1 + s * (DEPTH - 2) / STEPS;
                if (k == at) settle_step(slot, s);
                if (k == at + 1) fetch_step<true>(0, s);
            }
            if (k == DEPTH) advance();
        }
    }
};
