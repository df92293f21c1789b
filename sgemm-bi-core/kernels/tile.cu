// The general product: a block computes a tile of BM × BN outputs, each thread TM × TN of them in
// registers, one fused multiply-add per element of the reduction in ascending order (contract
// section 4).
#include "panel.cuh"

constexpr int GRID_ROWS = BM / TM;  // threads of a block, as they share out the tile
constexpr int GRID_COLS = BN / TN;
constexpr int THREADS = GRID_ROWS * GRID_COLS;

using Lhs = Panel<ELEMENT, LHS_ORDER, LHS_WIDTH, BM, BK, THREADS>;
using Rhs = Panel<ELEMENT, RHS_ORDER, RHS_WIDTH, BN, BK, THREADS>;
constexpr int SLOT = Lhs::BYTES + Rhs::BYTES;

// The sums of four rows of each thread, on their way out; padded against bank conflicts.
constexpr int OUT_ROWS = 4 * GRID_ROWS;
constexpr int OUT_PITCH = BN + 4;

// The dynamic shared memory of a launch, in bytes.
constexpr int SLOTS_BYTES = 4 * STAGES * BK * (BM + 4 * LHS_ORDER + BN + 4 * RHS_ORDER);
constexpr int SUMS_BYTES = 16 * (BM / TM) * (BN + 4);
static_assert(SLOTS_BYTES == STAGES * SLOT && SUMS_BYTES == OUT_ROWS * OUT_PITCH * 4,
              "the host has these formulas, and takes the larger");
static_assert(CHUNK % BK == 0 && BK % 8 == 0, "tiles of the reduction do not cross chunks");
static_assert(GRID_ROWS % 4 == 0 && GRID_COLS % 8 == 0, "warps are 4 × 8 threads of the grid");
static_assert(TM % 4 == 0 && TN % 4 == 0, "fragments are whole vectors");
static_assert(STAGES >= 2, "one tile is read while another is on its way");

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

// A thread's lines of a tile are vectors of four, as many apart as threads share the lines, so that
// the threads of a warp read whole rows of banks. `from` is the thread's first line, at k 0.
template <int LINES, int HELD, int PITCH>
__device__ __forceinline__ void read_lines(float (&to)[HELD], unsigned from, int k) {
#pragma unroll
    for (int i = 0; i < HELD; i += 4) {
        float4 four;
        read_shared(four, from + (k * PITCH + i * (LINES / HELD)) * 4);
        to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
}

// One element of the reduction. Row by row, forth and back in turn: so one factor of every product
// is that of the product before, which the operands' reuse cache keeps, and two registers are read,
// all that two banks give in a cycle.
__device__ __forceinline__ void multiply(float (&acc)[TM][TN], const float (&a)[TM],
                                         const float (&b)[TN]) {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int c = 0; c < TN; ++c) {
            const int j = i % 2 ? TN - 1 - c : c;
            acc[i][j] = __fmaf_rn(a[i], b[j], acc[i][j]);
        }
    }
}

// Chains of `length` elements, a chunk, from what is next of both operands.
//
// Why nothing races. Tile t lies in slot t mod STAGES. At the end of tile t, after its last element
// has been read and before it is multiplied, a thread waits for its own copies of tile t + 1, meets
// the others, and only then starts tile t + STAGES, in the slot of tile t, and reads tile t + 1.
// What passes through registers is written to the slot of tile t + 1 before that meeting, and after
// the one that ended the reads of the slot's tile before, t + 1 − STAGES. The first meeting keeps
// the first writes after what the slots were used for before.
struct Chains {
    Lhs& lhs;
    Rhs& rhs;
    unsigned char* const slots;
    const unsigned first;  // the slots' shared address
    const unsigned lhs_line, rhs_line;  // where the thread reads in slot 0
    int slot;                           // that is read
    unsigned lhs_at, rhs_at;            // where the thread reads
    float a[2][TM], b[2][TN];           // of this element and the next one

    __device__ __forceinline__ Chains(Lhs& lhs, Rhs& rhs, unsigned char* slots)
        : lhs(lhs), rhs(rhs), slots(slots), first(shared_address(slots)),
          lhs_line(first + Thread().y * 16), rhs_line(first + Lhs::BYTES + Thread().x * 16) {}

    __device__ __forceinline__ float* lhs_slot(int slot) const {
        return reinterpret_cast<float*>(slots + slot * SLOT);
    }
    __device__ __forceinline__ float* rhs_slot(int slot) const {
        return reinterpret_cast<float*>(slots + slot * SLOT + Lhs::BYTES);
    }
    __device__ __forceinline__ int after(int slot) const {
        return slot + 1 == STAGES ? 0 : slot + 1;
    }
    __device__ __forceinline__ void read_from(int now) {
        slot = now;
        lhs_at = lhs_line + slot * SLOT;
        rhs_at = rhs_line + slot * SLOT;
    }
    __device__ __forceinline__ void read(int buffer, int k) {
        read_lines<BM, TM, Lhs::PITCH>(a[buffer], lhs_at, k);
        read_lines<BN, TN, Rhs::PITCH>(b[buffer], rhs_at, k);
    }
    template <bool WHOLE, typename Operand>
    __device__ __forceinline__ void fetch(Operand& operand, unsigned slot) {
        if constexpr (WHOLE) {
            operand.fetch_whole(slot);
        } else {
            operand.fetch(slot);
        }
    }
    template <bool WHOLE>
    __device__ __forceinline__ void fetch_async(int slot) {
        if constexpr (Lhs::ASYNC) fetch<WHOLE>(lhs, first + slot * SLOT);
        if constexpr (Rhs::ASYNC) fetch<WHOLE>(rhs, first + slot * SLOT + Lhs::BYTES);
        close_copy_group();
    }
    __device__ __forceinline__ void fetch_held() {
        if constexpr (!Lhs::ASYNC) lhs.fetch(0);
        if constexpr (!Rhs::ASYNC) rhs.fetch(0);
    }
    __device__ __forceinline__ void settle(int slot) {
        lhs.settle(lhs_slot(slot));
        rhs.settle(rhs_slot(slot));
    }

    // The end of a tile: from here on, the one in slot `ahead` is read.
    template <bool WHOLE>
    __device__ __forceinline__ void turn(int ahead) {
        wait_for_copy_groups<STAGES - 2>();
        __syncthreads();
        fetch_async<WHOLE>(slot);
        read_from(ahead);
    }

    __device__ __forceinline__ void begin() {
        __syncthreads();
        fetch_held();
#pragma unroll 1
        for (int s = 0; s < STAGES; ++s) fetch_async<false>(s);
        settle(0);
        fetch_held();
        wait_for_copy_groups<STAGES - 1>();
        __syncthreads();
        read_from(0);
        read(0, 0);
    }

    // A tile all of whose fetches are whole ones. Written out, without a branch: it must stay in
    // the instruction cache.
    __device__ __forceinline__ void whole_tile(float (&acc)[TM][TN]) {
        const int ahead = after(slot);
#pragma unroll
        for (int k = 1; k <= BK; ++k) {
            lhs.pass(lhs_slot(ahead), k);
            rhs.pass(rhs_slot(ahead), k);
            if (k == BK) turn<true>(ahead);
            read(k % 2, k % BK);
            // Keeps the reads here, a whole element ahead of their use: ptxas would put them off.
            if (FENCE >> (k % 2 == 0) & 1) __syncwarp();
            multiply(acc, a[(k - 1) % 2], b[(k - 1) % 2]);
        }
    }

    __device__ __forceinline__ void any_tile(float (&acc)[TM][TN]) {
#pragma unroll 1
        for (int k = 2; k <= BK; k += 2) {
            read(1, 1);
            multiply(acc, a[0], b[0]);
            lhs_at += 2 * Lhs::PITCH * 4;
            rhs_at += 2 * Rhs::PITCH * 4;
            if (k == BK) {
                const int ahead = after(slot);
                settle(ahead);
                turn<false>(ahead);
                fetch_held();
            }
            read(0, 0);
            multiply(acc, a[1], b[1]);
        }
    }

    __device__ __forceinline__ void operator()(float (&acc)[TM][TN], int length) {
        lhs.left = rhs.left = length;
        begin();
        const bool inside = lhs.lines == BM && rhs.lines == BN;
        // Tile t fetches tile t + STAGES.
        const int whole = inside ? max(length / BK - STAGES, 0) : 0;
        lhs.left -= whole * BK;
        rhs.left -= whole * BK;
#pragma unroll 1
        for (int t = whole; t > 0; --t) whole_tile(acc);
#pragma unroll 1
        for (int left = length - whole * BK; left > 0; left -= BK) any_tile(acc);
    }
};

__device__ __forceinline__ Place tile_place(const Product& p) {
    return place_of(p, BM, BN, LHS_ORDER == 0 ? LHS_WIDTH : 1, RHS_ORDER == 0 ? RHS_WIDTH : 1,
                    SPLIT);
}

// Ends a chunk, by way of shared memory, which is free by now: whole rows are written, and little
// code does it. A vector holds neighbours exchanged, 1 0 3 2: so the registers of a sum and of its
// right-hand factor are an odd and an even one, in different banks, all along the chain.
__device__ __forceinline__ void finish(const float (&acc)[TM][TN], unsigned char* slots,
                                       const Ending<OUT, BIAS, SPLIT>& end) {
    float* const sums = reinterpret_cast<float*>(slots);
    const Thread thread;
#pragma unroll
    for (int first = 0; first < TM; first += 4) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                const float(&row)[TN] = acc[first + i];
                float* to = sums + (thread.y * 4 + i) * OUT_PITCH + j * GRID_COLS + thread.x * 4;
                *reinterpret_cast<float4*>(to) =
                    make_float4(row[j + 1], row[j], row[j + 3], row[j + 2]);
            }
        }
        __syncthreads();
#pragma unroll 1
        for (int v = threadIdx.x; v < OUT_ROWS * (BN / 4); v += THREADS) {
            const int row = v / (BN / 4), col = v % (BN / 4) * 4;
            const float4 four = *reinterpret_cast<const float4*>(sums + row * OUT_PITCH + col);
            const float values[4] = {four.y, four.x, four.w, four.z};
            end(values, first * GRID_ROWS + row, col);
        }
    }
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

    Chains chains(lhs, rhs, slots);
    const int chunks = SPLIT ? 1 : args.chunks;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const long long done = SPLIT ? first_k : static_cast<long long>(chunk) * CHUNK;
        const int length = static_cast<int>(min(args.reduction - done, 1ll * CHUNK));
        float acc[TM][TN] = {};
        chains(acc, length);
        finish(acc, slots, Ending<OUT, BIAS, SPLIT>(args, tile_place(args), chunk));
    }
}
