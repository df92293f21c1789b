// Operand tiles as they are, from global into shared memory, several in flight, and the loop that
// consumes them: what `few_rows.cu` streams its operands with.
#pragma once

#include "vector.cuh"

// Where element (line, k) of a tile lies in shared memory, in elements of T.
//
// ORDER 0: [k][line]. ORDER 1: [line][k], where the 16-byte vectors of a line are permuted by an
// exclusive-or with bits of the line, so that eight adjacent lines have the same vector in
// different banks. `k` and `k + 1` are adjacent inside a vector only.
template <typename T, int ORDER, int LINES, int DEPTH>
struct TileLayout {
    static constexpr int PER_VECTOR = 16 / sizeof(T);
    static constexpr int VECTORS = DEPTH / PER_VECTOR;  // of a line
    static constexpr int BYTES = LINES * DEPTH * sizeof(T);
    static_assert(BYTES % 128 == 0 || LINES < 16, "tiles stay aligned");
    static_assert(ORDER == 0 || (VECTORS & (VECTORS - 1)) == 0, "lines of 2^n vectors");

    static __device__ __forceinline__ int key(int line) {
        return VECTORS >= 8 ? line & 7 : line / (8 / VECTORS) & (VECTORS - 1);
    }
    static __device__ __forceinline__ int index(int line, int k) {
        if constexpr (ORDER == 0) return k * LINES + line;
        return line * DEPTH + (k / PER_VECTOR ^ key(line)) * PER_VECTOR + k % PER_VECTOR;
    }
    // ORDER 1: the byte at which line `line` would have vector 0 if `slot` began with line 0; its
    // vector v is at that address with the bits of 16 · v exchanged, as slots are aligned.
    static __device__ __forceinline__ unsigned line_start(unsigned slot, int line) {
        return slot + static_cast<unsigned>(line * DEPTH * sizeof(T)) + key(line) * 16u;
    }
};

// Copies tiles of LINES lines by DEPTH elements of the reduction, one after the other, by all
// THREADS threads of a block. ORDER and WIDTH are the defines of the kernel: WIDTH elements are
// read at a time along the direction that ORDER names. WIDTH 1 honours any strides.
//
// Outside the matrix, and beyond the end of the reduction, tiles hold zeros, in both operands at
// the same k: such a product adds +0.0, which changes no total.
template <int DTYPE, int ORDER, int WIDTH, int LINES, int DEPTH, int THREADS>
struct Loader {
    using Type = typename Element<DTYPE>::Type;
    using Vector = typename Packed<WIDTH * sizeof(Type)>::Type;
    using Stored = Type;
    using Layout = TileLayout<Stored, ORDER, LINES, DEPTH>;
#if __CUDA_ARCH__ >= 800
    static constexpr bool ASYNC = WIDTH * sizeof(Type) >= 4;
#else
    static constexpr bool ASYNC = false;
#endif
    static constexpr int BYTES = (Layout::BYTES + 127) / 128 * 128;

    // Threads go first along the contiguous direction, then across it.
    static constexpr int ALONG = (ORDER == 0 ? LINES : DEPTH) / WIDTH;
    static constexpr int ACROSS = ORDER == 0 ? DEPTH : LINES;
    static constexpr int LANES = lanes_along(ALONG, THREADS);
    static constexpr int GROUPS = THREADS / LANES;
    static constexpr int STEPS_ALONG = ALONG / LANES;
    static constexpr int STEPS_ACROSS = (ACROSS + GROUPS - 1) / GROUPS;
    static constexpr int STEPS = STEPS_ALONG * STEPS_ACROSS;
    static_assert(THREADS % LANES == 0 && ALONG * WIDTH == (ORDER == 0 ? LINES : DEPTH), "");

    const Type* base;  // a readable address
    const Type* next;  // the thread's first element of the next tile
    long long line_stride, red_stride;
    int lines;  // that lie inside the matrix
    Vector held[ASYNC ? 1 : STEPS];

    // `offset` leads to the tile's first line, `first_k` to the first element of the reduction.
    __device__ __forceinline__ Loader(const void* base, long long offset, long long line_stride,
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

    // Where step s goes in a tile. Written as the thread's own place and a constant wherever that
    // is the same, for the compiler cannot see through the permutation of vectors.
    static __device__ __forceinline__ int place(int s) {
        constexpr bool APART = ORDER == 0 || (STEPS_ALONG == 1 && GROUPS % 8 == 0);
        if constexpr (APART) {
            return Layout::index(thread_line(), thread_k()) +
                   (ORDER == 0 ? step_k(s) * LINES + step_line(s) : step_line(s) * DEPTH);
        } else {
            return Layout::index(thread_line() + step_line(s), thread_k() + step_k(s));
        }
    }

    // The address of step s. A vector's own direction has stride 1.
    __device__ __forceinline__ const Type* address(int s) const {
        const long long line = WIDTH > 1 && ORDER == 0 ? 1 : line_stride;
        const long long red = WIDTH > 1 && ORDER == 1 ? 1 : red_stride;
        return next + step_line(s) * line + step_k(s) * red;
    }

    // How many elements of step s exist when `left` elements of the reduction remain: none where it
    // is negative, all WIDTH where it is more.
    //
    // Never clamped before it is compared with WIDTH: ptxas 13.0 fuses max(0, min(n, WIDTH)) and a
    // comparison of the result into one VIMNMX.RELU whose predicate is wrong for sm_90.
    __device__ __forceinline__ int valid(int s, int left) const {
        const int line = lines - thread_line() - step_line(s);
        const int k = left - thread_k() - step_k(s);
        return ORDER == 0 ? (k > 0 ? line : 0) : (line > 0 ? k : 0);
    }

    // Starts fetching the next tile, of which `left` elements of the reduction exist, into `slot`.
    __device__ __forceinline__ void fetch(unsigned slot, int left) {
        if (lines == LINES && left >= DEPTH) {
            fetch_steps<true>(slot, left);
        } else {
            fetch_steps<false>(slot, left);
        }
        next += DEPTH * (WIDTH > 1 && ORDER == 1 ? 1 : red_stride);
    }

    template <bool WHOLE>
    __device__ __forceinline__ void fetch_steps(unsigned slot, int left) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            if (!takes_part(s)) continue;
            const Type* from = address(s);
            const int count = WHOLE ? WIDTH : valid(s, left);
            if constexpr (ASYNC) {
                const unsigned to = slot + place(s) * static_cast<unsigned>(sizeof(Stored));
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
    }

    // Writes what `fetch` holds in registers, if it does, to its slot.
    __device__ __forceinline__ void settle(Stored* slot) const {
        if constexpr (!ASYNC) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                if (!takes_part(s)) continue;
                *reinterpret_cast<Vector*>(slot + place(s)) = held[s];
            }
        }
    }
};

// An operand that is not read.
struct NoLoader {
    using Stored = float;
    static constexpr int BYTES = 0;
    __device__ __forceinline__ NoLoader(const void*, long long, long long, long long, int,
                                        long long) {}
    __device__ __forceinline__ void fetch(unsigned, int) {}
    __device__ __forceinline__ void settle(float*) const {}
};

// Walks `length` elements of the reduction in tiles of DEPTH, of which SLOTS − 1 are on their way:
// `compute(lhs_tile, rhs_tile)`, with their shared addresses, for each in order.
//
// Why nothing races. In turn t a thread (1) writes the registers that it filled in turn t − 1 to
// slot (t − 2) mod SLOTS, (2) waits for its own copies of tile t, (3) meets the others, (4) starts
// tile t + SLOTS − 1, in slot (t − 1) mod SLOTS, (5) reads tile t. A slot is written in (1) or (4)
// only after a meeting, (3) of turn t − 1 or t, that follows every thread's reads of it in turn
// t − 2 or t − 1. What (1), (2) of all threads completed is visible after (3) to all readers of
// tile t. The first meeting of a call keeps its first writes after the reads of the call before.
template <int SLOTS, int DEPTH, typename Lhs, typename Rhs, typename Compute>
__device__ __forceinline__ void stream(Lhs& lhs, Rhs& rhs, unsigned char* storage, int length,
                                       Compute compute) {
    static_assert(SLOTS >= 2, "one tile is read while another is on its way");
    constexpr int SLOT = Lhs::BYTES + Rhs::BYTES;
    const unsigned first = shared_address(storage);
    const auto fetch = [&](int slot, int left) {
        lhs.fetch(first + slot * SLOT, left);
        rhs.fetch(first + slot * SLOT + Lhs::BYTES, left);
    };
    const auto settle = [&](int slot) {
        unsigned char* to = storage + slot * SLOT;
        lhs.settle(reinterpret_cast<typename Lhs::Stored*>(to));
        rhs.settle(reinterpret_cast<typename Rhs::Stored*>(to + Lhs::BYTES));
    };
    __syncthreads();
#pragma unroll 1
    for (int s = 0; s < SLOTS - 1; ++s) {
        if (s * DEPTH < length) {
            fetch(s, length - s * DEPTH);
            if (s < SLOTS - 2) settle(s);
        }
        close_copy_group();
    }
    int slot = 0;         // of the tile that is read
    int left = length;    // from that tile on
#pragma unroll 1
    while (left > 0) {
        const int settled = slot >= 2 ? slot - 2 : slot + SLOTS - 2;
        const int fetched = slot >= 1 ? slot - 1 : SLOTS - 1;
        if (left > (SLOTS - 2) * DEPTH) settle(settled);
        wait_for_copy_groups<SLOTS - 2>();
        __syncthreads();
        if (left > (SLOTS - 1) * DEPTH) fetch(fetched, left - (SLOTS - 1) * DEPTH);
        close_copy_group();
        compute(first + slot * SLOT, first + slot * SLOT + Lhs::BYTES);
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        left -= DEPTH;
    }
}
