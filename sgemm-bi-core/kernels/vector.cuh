// Vectors of elements, as threads read them.
#pragma once

#include "product.cuh"

template <int BYTES>
struct Packed;
template <>
struct Packed<16> {
    using Type = uint4;
};
template <>
struct Packed<4> {
    using Type = unsigned;
};
template <>
struct Packed<2> {
    using Type = unsigned short;
};

// The largest power of two of threads, at most `threads`, that share `vectors` evenly.
constexpr int lanes_along(int vectors, int threads) {
    int lanes = 1;
    while (lanes * 2 <= threads && vectors % (lanes * 2) == 0) lanes *= 2;
    return lanes;
}

// The first `count` elements from an address, less than WIDTH, and zeros.
template <typename Vector, int WIDTH, typename T>
__device__ __forceinline__ Vector first_of(const T* from, int count) {
    union {
        Vector vector;
        T element[WIDTH];
    } out = {};
#pragma unroll
    for (int e = 0; e + 1 < WIDTH; ++e) {
        if (e < count) out.element[e] = from[e];
    }
    return out.vector;
}
