// The general product: a block computes a tile of BM × BN outputs, each thread TM × TN of them in
// registers, one fused multiply-add per element of the reduction in ascending order (contract
// section 4).
#include "load.cuh"

constexpr int GRID_ROWS = BM / TM;  // threads of a block, as they share out the tile
constexpr int GRID_COLS = BN / TN;
constexpr int THREADS = GRID_ROWS * GRID_COLS;
constexpr int STEP = 4;  // elements of the reduction whose right-hand values are held at a time

using Lhs = Loader<ELEMENT, LHS_ORDER, LHS_WIDTH, BM, BK, THREADS, ELEMENT == F32>;
using Rhs = Loader<ELEMENT, RHS_ORDER, RHS_WIDTH, BN, BK, THREADS, ELEMENT == F32>;

// The dynamic shared memory of a launch, in bytes.
constexpr int SHARED_BYTES = STAGES * (BM + BN) * BK * 4;
static_assert(SHARED_BYTES == STAGES * (Lhs::BYTES + Rhs::BYTES), "the host has this formula");
static_assert(CHUNK % BK == 0 && BK % 8 == 0, "tiles of the reduction do not cross chunks");
static_assert(GRID_ROWS % 8 == 0 && GRID_COLS % 8 == 0, "a thread's lines have one swizzle key");
static_assert(TM % 4 == 0 && TN % 4 == 0, "fragments are whole vectors");

__device__ __forceinline__ void load4(float (&to)[4], unsigned from) {
    float4 v;
    read_shared(v, from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

// A thread's lines of an operand, LINES in all, of which it takes HELD; `t` is its index among the
// PEERS threads that share them. ORDER 0: vectors of four adjacent lines, PEERS apart; ORDER 1:
// every PEERS-th line. So the threads of a warp read whole rows of banks.
template <int ORDER, int LINES, int HELD>
struct Fragment {
    static constexpr int PEERS = LINES / HELD;
    using Layout = TileLayout<float, ORDER, LINES, BK>;

    static __device__ __forceinline__ int line(int t, int i) {
        return ORDER == 0 ? (i / 4 * PEERS + t) * 4 + i % 4 : i * PEERS + t;
    }
    // Where thread t reads in the tile at `slot`.
    static __device__ __forceinline__ unsigned start(unsigned slot, int t) {
        if constexpr (ORDER == 0) return slot + t * 16;
        // The key of line(t, i) is that of t, for PEERS is a multiple of 8.
        if constexpr (ORDER == 1) return Layout::line_start(slot, t);
    }
    // ORDER 0: all lines at one k.
    static __device__ __forceinline__ void lines_at(float (&to)[HELD], unsigned start, int k) {
#pragma unroll
        for (int i = 0; i < HELD; i += 4) {
            float four[4];
            load4(four, start + (k * LINES + i * PEERS) * 4);
#pragma unroll
            for (int e = 0; e < 4; ++e) to[i + e] = four[e];
        }
    }
    // ORDER 1: STEP k of line i, from k, a multiple of STEP.
    static __device__ __forceinline__ void line_from(float (&to)[STEP], unsigned start, int i,
                                                     int k) {
        load4(to, (start ^ k * 4) + i * PEERS * BK * 4);
    }
};

using LhsFragment = Fragment<LHS_ORDER, BM, TM>;
using RhsFragment = Fragment<RHS_ORDER, BN, TN>;

// Right-hand values of STEP elements of the reduction.
__device__ __forceinline__ void load_rhs(float (&b)[STEP][TN], unsigned rhs, int k) {
    if constexpr (RHS_ORDER == 1) {
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            float along[STEP];
            RhsFragment::line_from(along, rhs, j, k);
#pragma unroll
            for (int e = 0; e < STEP; ++e) b[e][j] = along[e];
        }
    } else {
#pragma unroll
        for (int e = 0; e < STEP; ++e) RhsFragment::lines_at(b[e], rhs, k + e);
    }
}

// One row's products, forth and back in turn, so that one factor stays in the reuse cache and the
// other one changes last at the turn.
__device__ __forceinline__ void multiply_row(float (&acc)[TN], float a, const float (&b)[TN],
                                             bool back) {
#pragma unroll
    for (int c = 0; c < TN; ++c) {
        const int j = back ? TN - 1 - c : c;
        acc[j] = __fmaf_rn(a, b[j], acc[j]);
    }
}

// STEP elements of the reduction, from k; `lhs` and `rhs` are where the thread reads. Where the left-hand tile has the reduction contiguous, a
// vector is STEP elements of one row, and rows go outside; otherwise it is four rows, and the
// reduction goes outside. Either way every accumulator sees its terms in ascending order.
__device__ __forceinline__ void multiply(float (&acc)[TM][TN], unsigned lhs, unsigned rhs,
                                         int k) {
    float b[STEP][TN];
    if constexpr (LHS_ORDER == 1) {
        load_rhs(b, rhs, k);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            float a[STEP];
            LhsFragment::line_from(a, lhs, i, k);
#pragma unroll
            for (int e = 0; e < STEP; ++e) multiply_row(acc[i], a[e], b[e], (i + e) % 2);
        }
    } else {
        if constexpr (RHS_ORDER == 1) load_rhs(b, rhs, k);
#pragma unroll
        for (int e = 0; e < STEP; ++e) {
            float a[TM];
            LhsFragment::lines_at(a, lhs, k + e);
            if constexpr (RHS_ORDER == 0) RhsFragment::lines_at(b[e], rhs, k + e);
#pragma unroll
            for (int i = 0; i < TM; ++i) multiply_row(acc[i], a[i], b[e], i % 2);
        }
    }
}

// The thread's place in the grid of THREADS: a warp is 4 × 8 of them; among any 16 lanes,
// neighbours share one operand.
struct Thread {
    int y, x;
    __device__ __forceinline__ Thread() {
        const int index = thread_index();
        const int lane = index % 32, warp = index / 32;
        y = warp / (GRID_COLS / 8) * 4 + lane / 16 * 2 + lane % 2;
        x = warp % (GRID_COLS / 8) * 8 + lane / 2 % 8;
    }
};

__device__ __forceinline__ Place tile_place(const Product& p) {
    return place_of(p, BM, BN, LHS_ORDER == 0 ? LHS_WIDTH : 1, RHS_ORDER == 0 ? RHS_WIDTH : 1,
                    SPLIT);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    tile(const GRID_CONSTANT Product args) {
    extern __shared__ __align__(1024) unsigned char slots[];
    const Place place = tile_place(args);
    const Entry entry = entry_of(args, place.entry);
    const long long first_k = static_cast<long long>(place.chunk) * CHUNK;
    Lhs lhs(args.lhs, entry.lhs + place.row * args.lhs_row, args.lhs_row, args.lhs_red, place.rows,
            first_k);
    Rhs rhs(args.rhs, entry.rhs + place.col * args.rhs_col, args.rhs_col, args.rhs_red, place.cols,
            first_k);
    const Thread thread;

    const int chunks = SPLIT ? 1 : args.chunks;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const long long done = SPLIT ? first_k : static_cast<long long>(chunk) * CHUNK;
        const int length = static_cast<int>(min(args.reduction - done, 1ll * CHUNK));
        float acc[TM][TN] = {};
        stream<STAGES, BK>(lhs, rhs, slots, length, [&](unsigned lhs_tile, unsigned rhs_tile) {
            const unsigned a = LhsFragment::start(lhs_tile, thread.y);
            const unsigned b = RhsFragment::start(rhs_tile, thread.x);
#pragma unroll UNROLL
            for (int k = 0; k < BK; k += STEP) multiply(acc, a, b, k);
        });
        constexpr int RUN = RHS_ORDER == 0 ? 4 : 1;
        const Thread again;
        const Ending<OUT, BIAS, SPLIT> end = {args, tile_place(args)};
        end.template operator()<TM, TN, RUN>(
            acc, chunk, [&](int i) { return LhsFragment::line(again.y, i); },
            [&](int g) { return RhsFragment::line(again.x, g * RUN); });
    }
}
