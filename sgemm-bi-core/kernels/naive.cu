// The contract line by line, one thread for each output: what tests compare the other kernels with.
// Nothing is shared with them but the struct and the element conversions.
#include "product.cuh"

extern "C" __global__ void naive(const GRID_CONSTANT Product p) {
    using In = typename Element<ELEMENT>::Type;
    using Out = typename Element<OUT>::Type;
    using Bias = typename Element<BIAS>::Type;
    const long long index = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= p.rows * p.cols * p.batch) return;
    const long long col = index % p.cols, row = index / p.cols % p.rows;
    long long entry = index / p.cols / p.rows;
    const In* lhs = static_cast<const In*>(p.lhs) + row * p.lhs_row;
    const In* rhs = static_cast<const In*>(p.rhs) + col * p.rhs_col;
    Out* out = static_cast<Out*>(p.out) + row * p.out_row + col * p.out_col;
#pragma unroll
    for (int d = 2; d >= 0; --d) {
        const long long i = entry % p.dims[d].len;
        entry /= p.dims[d].len;
        lhs += i * p.dims[d].lhs;
        rhs += i * p.dims[d].rhs;
        out += i * p.dims[d].out;
    }
    float start = 0.0f;
    if constexpr (OUT == F32) {
        if (p.accumulate) start = *out;
    }
    float total = __fadd_rn(start, 0.0f);
#pragma unroll 1
    for (long long first = 0; first < p.reduction; first += CHUNK) {
        float acc = 0.0f;
#pragma unroll 1
        for (long long r = first; r < first + CHUNK && r < p.reduction; ++r) {
            // A product's factors: a bias gradient's left-hand operand is all ones.
            const float a = ONES ? 1.0f : Element<ELEMENT>::widen(lhs[r * p.lhs_red]);
            acc = __fmaf_rn(a, Element<ELEMENT>::widen(rhs[r * p.rhs_red]), acc);
        }
        total = __fadd_rn(total, acc);
    }
    if (p.bias_along != 0) {
        const long long at = p.bias_along == 1 ? col : row;
        total = __fadd_rn(total, Element<BIAS>::widen(static_cast<const Bias*>(p.bias)[at]));
    }
    *out = Element<OUT>::narrow(total);
}
