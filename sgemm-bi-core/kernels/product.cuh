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

template <typename T>
struct alignas(4 * sizeof(T)) Four {
    T value[4];
};

// Elements of one output row: columns `col` … `col + N − 1` of the tile's row `row`.
struct Run {
    int row, col;
    int begin, end;  // the part of 0 … N that this block stores
};

template <int N, typename T>
__device__ __forceinline__ void load_run(const Target<T>& from, const Run& run, float (&to)[N]) {
    if (N == 4 && from.runs && run.begin == 0 && run.end == N) {
        const auto four = *reinterpret_cast<const Four<T>*>(from.at(run.row, run.col));
#pragma unroll
        for (int j = 0; j < N; ++j) to[j] = four.value[j];
        return;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
        if (j >= run.begin && j < run.end) to[j] = *from.at(run.row, run.col + j);
    }
}

template <int N, typename T>
__device__ __forceinline__ void store_run(const Target<T>& to, const Run& run,
                                          const T (&from)[N]) {
    if (N == 4 && to.runs && run.begin == 0 && run.end == N) {
        Four<T> four;
#pragma unroll
        for (int j = 0; j < N; ++j) four.value[j] = from[j];
        *reinterpret_cast<Four<T>*>(to.at(run.row, run.col)) = four;
        return;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
        if (j >= run.begin && j < run.end) *to.at(run.row, run.col + j) = from[j];
    }
}

// A bias value, or +0.0 if there is none: a total is never −0.0, so adding that changes no bit.
template <int BIAS_DTYPE>
__device__ __forceinline__ float bias_at(const Product& p, int along, long long index) {
    using Type = typename Element<BIAS_DTYPE>::Type;
    if (p.bias_along != along) return 0.0f;
    return Element<BIAS_DTYPE>::widen(static_cast<const Type*>(p.bias)[index]);
}

// Where a block's chunks go: added to the running total one after the other, the last one with
// the epilogue; or, split, each as it is to its own place in the totals. A running total lies in
// the output if that is f32, otherwise in the totals. A thread reads back only what it wrote.
template <int OUT_DTYPE, int BIAS_DTYPE, bool SPLIT_CHUNKS>
struct Ending {
    using Out = typename Element<OUT_DTYPE>::Type;
    const Product& p;
    const Place place;

    __device__ __forceinline__ Target<Out> output() const {
        Out* out = static_cast<Out*>(p.out) + entry_of(p, place.entry).out;
        return {out + place.row * p.out_row + place.col * p.out_col, p.out_row, p.out_col};
    }
    __device__ __forceinline__ Target<float> workspace() const {
        const long long matrix = place.chunk * p.batch + place.entry;
        return {p.totals + (matrix * p.rows + place.row) * p.cols + place.col, p.cols, 1};
    }
    __device__ __forceinline__ auto running() const {
        if constexpr (OUT_DTYPE == F32) {
            return output();
        } else {
            return workspace();
        }
    }
    // The part of a run of N columns that is this block's to store.
    template <int N>
    __device__ __forceinline__ Run run(int row, int col) const {
        const bool mine = row >= place.first_row && row < place.rows;
        return {row, col, mine ? max(0, place.first_col - col) : N,
                mine ? min(N, place.cols - col) : 0};
    }

    // Ends chunk `chunk` of a tile. A thread holds `acc[i][g * N + j]` for tile row `row(i)` and
    // tile column `col(g) + j`.
    template <int ROWS_HELD, int COLS_HELD, int N, typename Row, typename Col>
    __device__ __forceinline__ void operator()(const float (&acc)[ROWS_HELD][COLS_HELD], int chunk,
                                               Row row, Col col) const {
        if constexpr (SPLIT_CHUNKS) {
            const Target<float> to = workspace();
#pragma unroll
            for (int i = 0; i < ROWS_HELD; ++i) {
#pragma unroll
                for (int g = 0; g < COLS_HELD / N; ++g) {
                    float value[N];
#pragma unroll
                    for (int j = 0; j < N; ++j) value[j] = acc[i][g * N + j];
                    store_run<N>(to, run<N>(row(i), col(g)), value);
                }
            }
        } else {
            const bool last = chunk + 1 == p.chunks;
            const bool resumes = chunk > 0 || (OUT_DTYPE == F32 && p.accumulate);
            const auto total_at = running();
            const Target<Out> out_at = output();
            float bias[COLS_HELD];
#pragma unroll
            for (int c = 0; c < COLS_HELD; ++c) {
                const int at = min(col(c / N) + c % N, place.cols - 1);
                bias[c] = bias_at<BIAS_DTYPE>(p, 1, place.col + at);
            }
#pragma unroll
            for (int i = 0; i < ROWS_HELD; ++i) {
                const int inside = min(row(i), place.rows - 1);
                const float row_bias = bias_at<BIAS_DTYPE>(p, 2, place.row + inside);
#pragma unroll
                for (int g = 0; g < COLS_HELD / N; ++g) {
                    const Run cells = run<N>(row(i), col(g));
                    float total[N] = {};
                    if (resumes) load_run<N>(total_at, cells, total);
#pragma unroll
                    for (int j = 0; j < N; ++j) {
                        total[j] = __fadd_rn(__fadd_rn(total[j], 0.0f), acc[i][g * N + j]);
                    }
                    if (last) {
                        Out result[N];
#pragma unroll
                        for (int j = 0; j < N; ++j) {
                            const float b = p.bias_along == 2 ? row_bias : bias[g * N + j];
                            result[j] = Element<OUT_DTYPE>::narrow(__fadd_rn(total[j], b));
                        }
                        store_run<N>(out_at, cells, result);
                    } else {
                        store_run<N>(total_at, cells, total);
                    }
                }
            }
        }
    }
};
