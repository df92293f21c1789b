// Softmax and cross-entropy, row by row (contract section 9).
//
// The sum of a row has a fixed order, so it is one chain of additions for each chunk of 4096. A
// group of LANES threads has a chain: each thread computes some of the next terms (exponentials,
// which is where the time goes), the terms change hands through shared memory, and every thread of
// the group adds all of them, so that all have the sum. Chunks of a row run on WARPS warps.
#include "exp_ln.cuh"
#include "product.cuh"

// OPERATION, and what it computes.
enum {
    LOG_SOFTMAX = 0,             // out = ln softmax(x)
    LOG_SOFTMAX_BACKWARD = 1,    // out = dx, from x = y and dy
    CROSS_ENTROPY = 2,           // out = the loss of each row, in f32, from x = logits and targets
    CROSS_ENTROPY_BACKWARD = 3,  // out = dlogits, from the same and grad, one element
    MEAN = 4,                    // out = the mean of x, one row
    CHECK_TARGETS = 5,           // out = the least of itself and the rows with a wrong target
    ROUND = 6,                   // out = x
};

// Mirrored by the host; strides in elements.
struct Rows {
    const void* x;
    const void* dy;
    const void* grad;
    const void* targets;
    void* out;
    long long rows, cols;
    long long input_stride, output_stride;
};
static_assert(sizeof(Rows) == 72, "the host's mirror has this layout");

constexpr int GROUP = LANES * WARPS;  // threads of a row
constexpr int THREADS = GROUP < 256 ? 256 : GROUP;
constexpr int HELD = LANES == 32 ? 4 : 2;  // terms that a thread computes at a time
constexpr int TILE = LANES * HELD;
static_assert(WARPS == 1 || (LANES == 32 && GROUP == THREADS), "several warps are the block");
static_assert(CHUNK % TILE == 0, "tiles do not cross chunks");

constexpr unsigned ALL_LANES = 0xFFFFFFFFu;

using In = Element<ELEMENT>;
using Out = Element<OUT>;
using Scalar = Element<SCALAR>;

struct alignas(16) Terms {
    float value[4];
};

// A target; what is no column's index becomes −1.
__device__ __forceinline__ long long target_of(const Rows& p, long long row) {
    long long target;
    if constexpr (TARGET == 0) target = static_cast<const unsigned char*>(p.targets)[row];
    if constexpr (TARGET == 1) target = static_cast<const unsigned*>(p.targets)[row];
    if constexpr (TARGET == 2) target = static_cast<const long long*>(p.targets)[row];
    return target < 0 || target >= p.cols ? -1 : target;
}

// What the threads of a row have to themselves.
struct Team {
    int lane;        // in the group of a chain
    int warp;        // of the row's warps
    int thread;      // of the row's threads
    float* tile;     // TILE terms in shared memory
    float* handoff;  // a value for each warp of the block
};

// The larger one; a NaN wins.
__device__ __forceinline__ float larger(float a, float b) { return a != a || a >= b ? a : b; }

__device__ __forceinline__ float maximum(const Team& team, const typename In::Type* x,
                                         long long cols) {
    float max = __uint_as_float(0xFF800000u);
#pragma unroll 4
    for (long long j = team.thread; j < cols; j += GROUP) max = larger(max, In::widen(x[j]));
#pragma unroll
    for (int other = LANES / 2; other > 0; other /= 2) {
        max = larger(max, __shfl_xor_sync(ALL_LANES, max, other));
    }
    if constexpr (WARPS > 1) {
        if (team.lane == 0) team.handoff[team.warp] = max;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < WARPS; ++w) max = larger(max, team.handoff[w]);
        __syncthreads();
    }
    return max;
}

// A chunk's sum of term(x[j]) over j from begin to end. What is missing from a tile is +0.0: a sum
// that began with +0.0 is never −0.0, so adding that changes no bit.
template <typename Term>
__device__ __forceinline__ float chunk_sum(const Team& team, const typename In::Type* x,
                                           long long begin, long long end, Term term) {
    float sum = 0.0f;
#pragma unroll 1
    for (; begin < end; begin += TILE) {
        float value[HELD];
#pragma unroll
        for (int h = 0; h < HELD; ++h) {
            const long long j = begin + h * LANES + team.lane;
            value[h] = j < end ? In::widen(x[j]) : 0.0f;
        }
#pragma unroll
        for (int h = 0; h < HELD; ++h) {
            const long long j = begin + h * LANES + team.lane;
            const float result = term(value[h]);
            value[h] = j < end ? result : 0.0f;
        }
        __syncwarp();
#pragma unroll
        for (int h = 0; h < HELD; ++h) team.tile[h * LANES + team.lane] = value[h];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < TILE; i += 4) {
            const Terms four = *reinterpret_cast<const Terms*>(team.tile + i);
#pragma unroll
            for (int e = 0; e < 4; ++e) sum = __fadd_rn(sum, four.value[e]);
        }
    }
    return sum;
}

// Contract section 3's sum of term(x[j]) over a row.
template <typename Term>
__device__ __forceinline__ float row_sum(const Team& team, const typename In::Type* x,
                                         long long cols, Term term) {
    float total = 0.0f;
#pragma unroll 1
    for (long long first = 0; first < cols; first += static_cast<long long>(CHUNK) * WARPS) {
        const long long begin = first + static_cast<long long>(CHUNK) * team.warp;
        const float sum = chunk_sum(team, x, begin, min(cols, begin + CHUNK), term);
        if constexpr (WARPS == 1) {
            total = __fadd_rn(total, sum);
        } else {
            if (team.lane == 0) team.handoff[team.warp] = sum;
            __syncthreads();
            // Warps past the row's end add the +0.0 of no term.
#pragma unroll
            for (int w = 0; w < WARPS; ++w) total = __fadd_rn(total, team.handoff[w]);
            __syncthreads();
        }
    }
    return total;
}

__device__ __forceinline__ float exponential(float x, double max) {
    return __double2float_rn(exp64(__dsub_rn(x, max)));
}

__device__ __forceinline__ float log_probability(float x, double max, double ln_sum) {
    return __double2float_rn(__dsub_rn(__dsub_rn(x, max), ln_sum));
}

// Computes row `row`; with `mine` false, it is another group's row, and nothing is stored.
__device__ __forceinline__ void compute(const Rows& p, const Team& team, long long row, bool mine) {
    const auto* x = static_cast<const typename In::Type*>(p.x) + row * p.input_stride;
    auto* out = static_cast<typename Out::Type*>(p.out) + row * p.output_stride;
    const auto same = [](float term) { return term; };
    const auto store_each = [&](auto value) {
        if (!mine) return;
#pragma unroll 2
        for (long long j = team.thread; j < p.cols; j += GROUP) out[j] = Out::narrow(value(j));
    };

    if constexpr (OPERATION == ROUND) {
        store_each([&](long long j) { return In::widen(x[j]); });
    } else if constexpr (OPERATION == MEAN) {
        const float sum = row_sum(team, x, p.cols, same);
        const float mean = __fdiv_rn(sum, __ll2float_rn(p.cols));
        if (team.thread == 0) *out = Out::narrow(mean);
    } else if constexpr (OPERATION == LOG_SOFTMAX_BACKWARD) {
        const auto* dy = static_cast<const typename In::Type*>(p.dy) + row * p.input_stride;
        const float sum = row_sum(team, dy, p.cols, same);
        store_each([&](long long j) {
            const float probability = exponential(In::widen(x[j]), 0.0);
            return __fsub_rn(In::widen(dy[j]), __fmul_rn(probability, sum));
        });
    } else {
        const double max = maximum(team, x, p.cols);
        float sum = row_sum(team, x, p.cols, [&](float term) { return exponential(term, max); });
        if constexpr (OPERATION == LOG_SOFTMAX) {
            const double ln_sum = ln64(sum);
            store_each([&](long long j) { return log_probability(In::widen(x[j]), max, ln_sum); });
        }
        if constexpr (OPERATION == CROSS_ENTROPY) {
            // Nothing outside the row is read for a target that is no column: its loss is NaN.
            const long long target = target_of(p, row);
            float loss = __uint_as_float(NAN_F32);
            if (target >= 0) loss = -log_probability(In::widen(x[target]), max, ln64(sum));
            if (mine && team.thread == 0) *out = loss;
        }
        if constexpr (OPERATION == CROSS_ENTROPY_BACKWARD) {
            const long long target = target_of(p, row);
            if (target < 0) sum = __uint_as_float(NAN_F32);
            const float grad = Scalar::widen(*static_cast<const typename Scalar::Type*>(p.grad));
            const float scale = __fdiv_rn(grad, __ll2float_rn(p.rows));
            store_each([&](long long j) {
                const float probability = __fdiv_rn(exponential(In::widen(x[j]), max), sum);
                return __fmul_rn(__fsub_rn(probability, j == target ? 1.0f : 0.0f), scale);
            });
        }
    }
}

// Finds the first wrong target: a minimum, so the order of the threads has no part in it.
__device__ __forceinline__ void check_targets(const Rows& p) {
    const long long step = static_cast<long long>(gridDim.x) * THREADS;
    for (long long row = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; row < p.rows;
         row += step) {
        if (target_of(p, row) >= 0) continue;
        atomicMin(static_cast<unsigned long long*>(p.out), static_cast<unsigned long long>(row));
        return;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) rows(const GRID_CONSTANT Rows args) {
    if constexpr (OPERATION == CHECK_TARGETS) {
        check_targets(args);
        return;
    }
    constexpr int CHAINS = THREADS / LANES;
    constexpr int BLOCK_ROWS = THREADS / GROUP;
    __shared__ Terms tiles[CHAINS][TILE / 4];
    __shared__ float handoff[THREADS / 32];
    Team team;
    team.lane = threadIdx.x % LANES;
    team.warp = threadIdx.x % GROUP / 32 % WARPS;
    team.thread = threadIdx.x % GROUP;
    team.tile = tiles[threadIdx.x / LANES][0].value;
    team.handoff = handoff;

    // Every thread goes round equally often, since all of a warp meet in the sums.
    const long long step = static_cast<long long>(gridDim.x) * BLOCK_ROWS;
#pragma unroll 1
    for (long long first = static_cast<long long>(blockIdx.x) * BLOCK_ROWS; first < args.rows;
         first += step) {
        const long long row = first + threadIdx.x / GROUP;
        compute(args, team, min(row, args.rows - 1), row < args.rows);
    }
}
