#!/bin/sh
# Measures the CPU engine against the gemm crate and OpenBLAS, and prints the tables of
# docs/performance.md: one thread and two, then the gemm crate with its AVX-512 kernels.
#
#   scripts/bench-cpu.sh [OPTIONS OF THE BENCHMARK]      e.g. --filter 1x4096x4096 --pairs 5
#
# Needs python3: numpy, whose wheel carries OpenBLAS, goes into target/bench-venv. Where that fails
# the benchmark says so and leaves OpenBLAS out. Nothing else should run on the machine meanwhile.
set -eu
cd "$(dirname "$0")/.."

venv=target/bench-venv
if [ ! -x "$venv/bin/python3" ]; then
    mkdir -p target
    python3 -m venv "$venv" || echo "python3 -m venv failed: no OpenBLAS in the table"
fi
if [ -x "$venv/bin/python3" ]; then
    "$venv/bin/python3" -c 'import numpy' 2>/dev/null ||
        "$venv/bin/python3" -m pip install --quiet numpy ||
        echo "pip install numpy failed: no OpenBLAS in the table"
    PATH="$PWD/$venv/bin:$PATH"
fi

bench() {
    features=$1
    shift
    cargo bench --quiet -p sgemm-bi-core --bench cpu $features -- "$@"
}

[ -r /proc/cpuinfo ] && sed -n 's/^model name[^:]*: /processor: /p' /proc/cpuinfo | head -n 1
for threads in 1 2; do
    bench "" --markdown --threads "$threads" "$@"
    echo
done
echo "The gemm crate with AVX-512:"
bench "--features bench-gemm-avx512" --markdown --threads 1 --f32-only "$@"
