// A product as the host passes it, and what every product kernel shares: element types, the place
// of a block in the problem, the sum of chunks and the epilogue (contract sections 3 and 7).
#pragma once

#include "ptx.cuh"

#if __CUDA_ARCH__ >= 700
#define GRID_CONSTANT __grid_constant__
#else
#define GRID_CONSTANT
#endif

// One batch dimension; strides in elements.
struct Dim {
    long long len, lhs, rhs, out;
};

// Mirrored by the host; all strides in elements. Outputs never overlap; inputs may broadcast.
struct Product {
    const void* lhs;
    const void* rhs;
    const void* bias;
    void* out;
    float* totals;  // [batch][rows][cols], or [chunk][batch][rows][cols] when chunks are parallel
    long long rows, cols, reduction;
    long long lhs_row, lhs_red, rhs_red, rhs_col, out_row, out_col;
    long long batch;  // number of entries: the product of the dims' lengths
    Dim dims[3];      // outermost first; unused ones have length 1
    int bias_along;   // 0: none, 1: a value for each column, 2: a value for each row
    int accumulate;   // the sum starts from what out holds, which is f32
    int flags;        // 0
    int chunks;       // ceil(reduction / CHUNK), at least 1
};
static_assert(sizeof(Dim) == 32 && sizeof(Product) == 232, "the host's mirror has this layout");

enum { F32 = 0, BF16 = 1, F16 = 2 };

// A dtype's storage, its exact widening, and the one rounding back with the canonical NaN.
template <int DTYPE>
struct Element;

template <>
struct Element<F32> {
    using Type = float;
    static __device__ __forceinline__ float widen(float x) { return x; }
    static __device__ __forceinline__ float narrow(float x) {
        return x != x ? __uint_as_float(NAN_F32) : x;
    }
};

template <>
struct Element<BF16> {
    using Type = unsigned short;
    static __device__ __forceinline__ float widen(unsigned short x) {
        return __uint_as_float(static_cast<unsigned>(x) << 16);
    }
    static __device__ __forceinline__ unsigned short narrow(float x) {
        const unsigned bits = __float_as_uint(x);
        const unsigned rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
        return static_cast<unsigned short>(x != x ? NAN_16 : rounded);
    }
};

template <>
struct Element<F16> {
    using Type = unsigned short;
    static __device__ __forceinline__ float widen(unsigned short x) {
        return widen_f16(x);
    }
    static __device__ __forceinline__ unsigned short narrow(float x) {
        return x != x ? static_cast<unsigned short>(NAN_16) : round_to_f16(x);
    }
};

// Offsets in elements of one batch entry.
struct Entry {
    long long lhs, rhs, out;
};

__device__ __forceinline__ Entry entry_of(const Product& p, long long index) {
    Entry entry = {0, 0, 0};
    if (p.batch > 1) {
#pragma unroll
        for (int d = 2; d >= 0; --d) {
            const long long len = p.dims[d].len;
            const long long i = d == 0 ? index : index % len;
            index /= len;
            entry.lhs += i * p.dims[d].lhs;
            entry.rhs += i * p.dims[d].rhs;
            entry.out += i * p.dims[d].out;
        }
    }
    return entry;
}

// What a block computes. `row` and `col` are where its tile begins. A tile that would cross the
// edge of a matrix at least as large as a tile begins earlier instead, so that it lies inside; the
// elements before `first_row` and `first_col` are then the neighbour's, computed but not stored.
struct Place {
    long long row, col, entry;
    int first_row, first_col;  // in the tile
    int rows, cols;            // of the tile that lie inside the matrix
    int chunk;                 // of a split reduction, otherwise 0
};

// Tiles are numbered in bands of this many tile rows, down each column of a band, so that the
// blocks that run at a time read few different rows and columns.
constexpr unsigned BAND = 16;

// Tiles that begin earlier do so at a multiple of `row_unit` and `col_unit`, for aligned vectors.
__device__ __forceinline__ Place place_of(const Product& p, int tile_rows, int tile_cols,
                                          int row_unit, int col_unit, bool split) {
    // The host keeps the number of blocks, and so these products, below 2^31.
    const unsigned down = static_cast<unsigned>((p.rows + tile_rows - 1) / tile_rows);
    const unsigned across = static_cast<unsigned>((p.cols + tile_cols - 1) / tile_cols);
    unsigned index = block_index();
    Place place;
    const unsigned tile = index % (down * across);
    index /= down * across;
    const unsigned chunks = split ? static_cast<unsigned>(p.chunks) : 1u;
    place.chunk = static_cast<int>(index % chunks);
    place.entry = index / chunks;

    const unsigned band = tile / (BAND * across);
    const unsigned height = min(BAND, down - band * BAND);
    const unsigned in_band = tile - band * BAND * across;
    const long long row = static_cast<long long>(band * BAND + in_band % height) * tile_rows;
    const long long col = static_cast<long long>(in_band / height) * tile_cols;
    place.row = max(0ll, min(row, (p.rows - tile_rows + row_unit - 1) / row_unit * row_unit));
    place.col = max(0ll, min(col, (p.cols - tile_cols + col_unit - 1) / col_unit * col_unit));
    place.first_row = static_cast<int>(row - place.row);
    place.first_col = static_cast<int>(col - place.col);
    place.rows = static_cast<int>(min(p.rows - place.row, static_cast<long long>(tile_rows)));
    place.cols = static_cast<int>(min(p.cols - place.col, static_cast<long long>(tile_cols)));
    return place;
}

template <int N, typename T>
struct alignas(N * sizeof(T)) Run {
    T value[N];
};

// A tile of the output or of the totals; strides in elements.
template <typename T>
struct Target {
    T* origin;
    long long row, col;
    bool runs;  // four adjacent columns, from a multiple of four, are one aligned vector

    __device__ __forceinline__ Target(T* origin, long long row, long long col)
        : origin(origin), row(row), col(col) {
        const auto address = reinterpret_cast<unsigned long long>(origin);
        runs = col == 1 && row % 4 == 0 && address % (4 * sizeof(T)) == 0;
    }
    __device__ __forceinline__ T* at(int i, int j) const { return origin + i * row + j * col; }
};

// The N columns from `col` on of a tile's row, as one vector, or those with a bit in `mask`.
template <bool VECTOR, int N, typename T>
__device__ __forceinline__ void load_run(float (&to)[N], const Target<T>& from, int row, int col,
                                         unsigned mask) {
    const T* at = from.at(row, col);
    if constexpr (VECTOR) {
        const auto run = *reinterpret_cast<const Run<N, T>*>(at);
#pragma unroll
        for (int j = 0; j < N; ++j) to[j] = run.value[j];
    } else {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (mask >> j & 1) to[j] = at[j * from.col];
        }
    }
}

template <bool VECTOR, int N, typename T>
__device__ __forceinline__ void store_run(const Target<T>& to, int row, int col, unsigned mask,
                                          const T (&from)[N]) {
    T* at = to.at(row, col);
    if constexpr (VECTOR) {
        Run<N, T> run;
#pragma unroll
        for (int j = 0; j < N; ++j) run.value[j] = from[j];
        *reinterpret_cast<Run<N, T>*>(at) = run;
    } else {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (mask >> j & 1) at[j * to.col] = from[j];
        }
    }
}

// An output's bias, or +0.0 if there is none: a total is never −0.0, so adding that changes no bit.
template <int BIAS_DTYPE>
__device__ __forceinline__ float bias_at(const Product& p, long long row, long long col) {
    using Type = typename Element<BIAS_DTYPE>::Type;
    if (p.bias_along == 0) return 0.0f;
    return Element<BIAS_DTYPE>::widen(
        static_cast<const Type*>(p.bias)[p.bias_along == 1 ? col : row]);
}

// Where a block's chunks go: added to the running total one after the other, the last one with
// the epilogue; or, split, each as it is to its own place in the totals. A running total lies in
// the output if that is f32, otherwise in the totals. A thread reads back only what it wrote.
template <int OUT_DTYPE, int BIAS_DTYPE, bool SPLIT_CHUNKS>
struct Ending {
    using Out = typename Element<OUT_DTYPE>::Type;
    const Product& p;
    const Place place;
    const Target<Out> out;
    const Target<float> totals;
    const bool last, resumes;

    __device__ __forceinline__ Ending(const Product& p, const Place& place, int chunk)
        : p(p), place(place),
          out(static_cast<Out*>(p.out) + entry_of(p, place.entry).out + place.row * p.out_row +
                  place.col * p.out_col,
              p.out_row, p.out_col),
          totals(p.totals + ((place.chunk * p.batch + place.entry) * p.rows + place.row) * p.cols +
                     place.col,
                 p.cols, 1),
          last(chunk + 1 == p.chunks), resumes(chunk > 0 || (OUT_DTYPE == F32 && p.accumulate)) {}

    // Ends the N columns from `col` on of the tile's row `row`, whose chunk is `acc`. What is not
    // this block's to store is left out.
    template <int N>
    __device__ __forceinline__ void operator()(const float (&acc)[N], int row, int col) const {
        if (row < place.first_row || row >= place.rows) return;
        const bool all = col >= place.first_col && col + N <= place.cols;
        const bool runs = SPLIT_CHUNKS ? totals.runs
                          : OUT_DTYPE == F32 ? out.runs
                                             : out.runs && totals.runs;
        if (N == 4 && all && runs) {
            end<(N == 4), N>(acc, row, col, ~0u);
        } else {
            unsigned mask = 0;
#pragma unroll
            for (int j = 0; j < N; ++j) {
                mask |= (col + j >= place.first_col && col + j < place.cols) << j;
            }
            end<false, N>(acc, row, col, mask);
        }
    }

    template <bool VECTOR, int N>
    __device__ __forceinline__ void end(const float (&acc)[N], int row, int col,
                                        unsigned mask) const {
        if constexpr (SPLIT_CHUNKS) {
            store_run<VECTOR, N>(totals, row, col, mask, acc);
        } else {
            float total[N] = {};
            if (resumes) {
                if constexpr (OUT_DTYPE == F32) {
                    load_run<VECTOR, N>(total, out, row, col, mask);
                } else {
                    load_run<VECTOR, N>(total, totals, row, col, mask);
                }
            }
#pragma unroll
            for (int j = 0; j < N; ++j) {
                total[j] = __fadd_rn(__fadd_rn(total[j], 0.0f), acc[j]);
            }
            if (last) {
                Out result[N];
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    const float b = mask >> j & 1 ? bias_at<BIAS_DTYPE>(p, place.row + row, place.col + col + j) : 0.0f;
                    result[j] = Element<OUT_DTYPE>::narrow(__fadd_rn(total[j], b));
                }
                store_run<VECTOR, N>(out, row, col, mask, result);
            } else if constexpr (OUT_DTYPE == F32) {
                store_run<VECTOR, N>(out, row, col, mask, total);
            } else {
                store_run<VECTOR, N>(totals, row, col, mask, total);
            }
        }
    }
};
