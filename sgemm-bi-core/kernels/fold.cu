// Adds the chunks that blocks computed in parallel, in ascending order, and ends the product
// (contract sections 3 and 7). One output at a time for each thread.
#include "product.cuh"

extern "C" __global__ void __launch_bounds__(256) fold(const GRID_CONSTANT Product args) {
    using Out = typename Element<OUT>::Type;
    const long long matrix = args.rows * args.cols;
    const long long count = matrix * args.batch;
    const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
    long long index = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; index < count; index += stride) {
        long long entry = 0, row, col;
        if (matrix >> 32) {
            entry = index / matrix;
            const long long inside = index - entry * matrix;
            row = inside / args.cols;
            col = inside - row * args.cols;
        } else {
            // Short division where it is enough: it takes a third of the time.
            if (args.batch > 1) entry = index / matrix;
            const unsigned inside = static_cast<unsigned>(index - entry * matrix);
            row = inside / static_cast<unsigned>(args.cols);
            col = inside - static_cast<unsigned>(row) * static_cast<unsigned>(args.cols);
        }
        Out* out = static_cast<Out*>(args.out) + entry_of(args, entry).out + row * args.out_row +
                   col * args.out_col;
        float total = 0.0f;
        if constexpr (OUT == F32) {
            if (args.accumulate) total = __fadd_rn(*out, 0.0f);
        }
        const float* chunk = args.totals + index;
#pragma unroll 4
        for (int i = 0; i < args.chunks; ++i, chunk += count) total = __fadd_rn(total, *chunk);
        const float bias = bias_at<BIAS>(args, row, col);
        *out = Element<OUT>::narrow(__fadd_rn(total, bias));
    }
}
