// Products of few rows: the right-hand operand, the weights, streams once from device memory.
// A block computes ROWS × COLS outputs; a lane has one column and a share of the rows.
#include "load.cuh"

constexpr int COL_GROUPS = COLS / 32;
constexpr int ROW_GROUPS = 4;  // warps that share a column group
constexpr int THREADS = 32 * COL_GROUPS * ROW_GROUPS;
constexpr int HELD = ROWS < ROW_GROUPS ? 1 : ROWS / ROW_GROUPS;  // rows of a thread
constexpr int WORKING = ROWS / HELD;  // row groups that compute; the others only copy

template <bool READ>
struct LhsOf {
    using Type = Loader<ELEMENT, 1, LHS_WIDTH, ROWS, BK, THREADS>;
};
template <>
struct LhsOf<false> {
    using Type = NoLoader;
};
using Lhs = typename LhsOf<!ONES>::Type;
using Rhs = Loader<ELEMENT, RHS_ORDER, RHS_WIDTH, COLS, BK, THREADS>;
using Stored = typename Element<ELEMENT>::Type;

// The dynamic shared memory of a launch, in bytes.
constexpr int SHARED_BYTES = STAGES * ((ONES ? 0 : ROWS) + COLS) * BK * sizeof(Stored);
static_assert(SHARED_BYTES == STAGES * (Lhs::BYTES + Rhs::BYTES), "the host has this formula");
static_assert(COLS % 32 == 0 && ROWS % HELD == 0, "columns for whole warps");
static_assert(CHUNK % BK == 0 && BK % 64 == 0, "tiles of the reduction do not cross chunks");
static_assert(!ONES || ROWS == 1, "a row of ones");

constexpr int STEP = 16 / sizeof(Stored);  // elements of a vector
constexpr int UNROLLED = HELD == 1 ? 16 : 8 / HELD;  // steps that the loop writes out

// STEP elements of line `line` from k on, a multiple of STEP, in a tile of ORDER 1.
template <int LINES>
__device__ __forceinline__ void along_line(float (&to)[STEP], unsigned tile, int line, int k) {
    union {
        uint4 vector;
        Stored element[STEP];
    } in;
    const unsigned start = TileLayout<Stored, 1, LINES, BK>::line_start(tile, line);
    read_shared(in.vector, start ^ k * static_cast<unsigned>(sizeof(Stored)));
#pragma unroll
    for (int e = 0; e < STEP; ++e) to[e] = Element<ELEMENT>::widen(in.element[e]);
}

__device__ __forceinline__ void multiply(float (&acc)[HELD][1], unsigned lhs, unsigned rhs,
                                         int row, int col, int k) {
    float b[STEP];
    if constexpr (RHS_ORDER == 1) {
        along_line<COLS>(b, rhs, col, k);
    } else {
#pragma unroll
        for (int e = 0; e < STEP; ++e) {
            Stored element;
            read_shared(element, rhs + ((k + e) * COLS + col) * sizeof(Stored));
            b[e] = Element<ELEMENT>::widen(element);
        }
    }
    if constexpr (ONES) {
        // fma(1, b, acc) is acc + b.
#pragma unroll
        for (int e = 0; e < STEP; ++e) acc[0][0] = __fadd_rn(acc[0][0], b[e]);
    } else {
        float a[HELD][STEP];
#pragma unroll
        for (int i = 0; i < HELD; ++i) along_line<ROWS>(a[i], lhs, row + i, k);
#pragma unroll
        for (int e = 0; e < STEP; ++e) {
#pragma unroll
            for (int i = 0; i < HELD; ++i) acc[i][0] = __fmaf_rn(a[i][e], b[e], acc[i][0]);
        }
    }
}

// One block is asked for explicitly, or ptxas spills to reach an occupancy that it guesses.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    few_rows(const GRID_CONSTANT Product args) {
    extern __shared__ __align__(1024) unsigned char slots[];
    const Place place = place_of(args, ROWS, COLS, 1, RHS_ORDER == 0 ? RHS_WIDTH : 1, SPLIT);
    const int warp = threadIdx.x / 32;
    const int group = warp / COL_GROUPS;
    const int first_row = group * HELD;
    const int col = warp % COL_GROUPS * 32 + threadIdx.x % 32;

    const Entry entry = entry_of(args, place.entry);
    const long long first_k = static_cast<long long>(place.chunk) * CHUNK;
    Rhs rhs(args.rhs, entry.rhs + place.col * args.rhs_col, args.rhs_col, args.rhs_red, place.cols,
            first_k);
    Lhs lhs(args.lhs, entry.lhs + place.row * args.lhs_row, args.lhs_row, args.lhs_red, place.rows,
            first_k);

    const int chunks = SPLIT ? 1 : args.chunks;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const long long done = SPLIT ? first_k : static_cast<long long>(chunk) * CHUNK;
        const int length = static_cast<int>(min(args.reduction - done, 1ll * CHUNK));
        float acc[HELD][1] = {};
        stream<STAGES, BK>(lhs, rhs, slots, length, [&](unsigned lhs_tile, unsigned rhs_tile) {
            if (group >= WORKING) return;
#pragma unroll UNROLLED
            for (int k = 0; k < BK; k += STEP) {
                multiply(acc, lhs_tile, rhs_tile, first_row, col, k);
            }
        });
        if (group >= WORKING) continue;
        const Ending<OUT, BIAS, SPLIT> end(args, place, chunk);
#pragma unroll
        for (int i = 0; i < HELD; ++i) end(acc[i], first_row + i, col);
    }
}
