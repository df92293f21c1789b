#!/usr/bin/env bash
# Runs every check there is, in the order of what fails fastest. A check that cannot run here says
# why in one line. Ends with a summary; exits non-zero if anything failed.
set -uo pipefail
cd "$(dirname "$0")/.."

export CARGO_TERM_COLOR=never RUST_BACKTRACE=1
failed=()
skipped=()
begin=$SECONDS

have() { command -v "$1" >/dev/null 2>&1; }

# check NAME COMMAND…: runs it, notes its outcome and its time.
check() {
    local name=$1 start=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    if "$@"; then
        printf -- '-- %s: passed in %d s\n' "$name" $((SECONDS - start))
    else
        printf -- '-- %s: FAILED after %d s\n' "$name" $((SECONDS - start))
        failed+=("$name")
    fi
}

skip() {
    printf '\n== %s: skipped: %s\n' "$1" "$2"
    skipped+=("$1 ($2)")
}

# with_stand_in COMMAND…: runs it where a stand-in takes the place of nvcc, which the build of Candle's
# `cuda` asks for. Nothing that comes out can be linked, so it has a target folder of its own.
with_stand_in() (
    export PATH="$PWD/scripts/stub-nvcc:$PATH" NVCC="$PWD/scripts/stub-nvcc/nvcc" CUDA_COMPUTE_CAP=90
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/stub-nvcc"
    "$@"
)

have cargo || { echo "cargo is not installed: see https://rustup.rs" >&2; exit 2; }
have cc || { echo "a C compiler (cc) is not installed" >&2; exit 2; }

# Published outputs of real tensor cores, for the block model; they are not part of the project.
if [ -z "${SGEMM_BI_TC_VECTORS:-}" ] && [ -d ../shared/tensor-core-vectors ]; then
    SGEMM_BI_TC_VECTORS=$(cd ../shared/tensor-core-vectors && pwd)
    export SGEMM_BI_TC_VECTORS
fi

if cargo fmt --version >/dev/null 2>&1; then
    check "format" cargo fmt --all --check
else
    skip "format" "rustfmt is not installed"
fi

if cargo clippy --version >/dev/null 2>&1; then
    check "lints" with_stand_in cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
else
    skip "lints" "clippy is not installed"
fi

# NVRTC, from PyPI, compiles every kernel for every architecture; a spill or a warning fails. Then the
# tests of the CUDA engine's host side have a real compiler too.
nvrtc=${CARGO_TARGET_DIR:-$PWD/target}/nvrtc-venv
if have python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; then
    check "CUDA kernels compile" python3 scripts/check-kernels.py "$nvrtc"
    for folder in "$nvrtc"/lib/python*/site-packages/nvidia/{cu13,cuda_nvrtc}/lib; do
        [ ! -d "$folder" ] || SGEMM_BI_TEST_NVRTC=${SGEMM_BI_TEST_NVRTC:+$SGEMM_BI_TEST_NVRTC:}$folder
    done
    export SGEMM_BI_TEST_NVRTC
else
    skip "CUDA kernels compile" "python3 with its venv module is not installed"
fi

# The CUDA engine needs nothing of CUDA to build; its GPU tests say where they are skipped.
cuda=(--features sgemm-bi-core/cuda,sgemm-bi-tests/cuda)

if cargo nextest --version >/dev/null 2>&1; then
    check "tests" cargo nextest run --locked --workspace "${cuda[@]}" --no-fail-fast
else
    echo "cargo-nextest is not installed: cargo test runs the tests instead"
    check "tests" cargo test --locked --workspace "${cuda[@]}" --no-fail-fast --bins --lib --tests
fi
grep -q 'libcuda\.so\.1' <<<"$(ldconfig -p 2>/dev/null)" ||
    skip "tests on a GPU" "no NVIDIA driver is installed; scripts/gpu-bundle.sh takes them to one"
echo "of the ignored tests, one_product and in_a_fresh_process are run by others, in child processes;"
echo "all_of_every_f32 is listed below"
check "doctests" cargo test --locked --workspace "${cuda[@]}" --doc

check "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace "${cuda[@]}" --no-deps

# Each crate must also build on its own, without what others switch on in their shared dependencies.
features() {
    local package
    for package in sgemm-bi-core candle-sgemm-bi sgemm-bi-examples sgemm-bi-tests; do
        cargo check --locked -p "$package" --no-default-features --quiet || return 1
        cargo check --locked -p "$package" --all-features --quiet || return 1
    done
}
check "feature combinations" with_stand_in features

if cargo deny --version >/dev/null 2>&1; then
    check "bans, licences and sources" cargo deny --offline check bans licenses sources
else
    skip "bans, licences and sources" "cargo-deny is not installed"
fi

check "goldens equal the reference" \
    cargo run --locked --release --quiet -p sgemm-bi-tests --bin make-goldens -- --check

# The README's promise: one hash, whatever the threads and the SIMD level.
readme_hash=$(grep -oE '\b[0-9a-f]{64}\b' README.md | head -n 1)
# train HASH [NAME=VALUE…] [-- OPTIONS…]: trains in that environment and expects the hash.
train() {
    local hash=$1 environment=() out
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        environment+=("$1")
        shift
    done
    [ $# -gt 0 ] && shift
    out=$(mktemp -d) || return 1
    env ${environment[@]+"${environment[@]}"} target/release/train-mlp \
        --out "$out/weights.safetensors" --expect "$hash" "$@" 2>"$out/progress" | tail -n 1
    local status=${PIPESTATUS[0]}
    [ "$status" -eq 0 ] || cat "$out/progress"
    rm -rf "$out"
    return "$status"
}
check "train-mlp builds" cargo build --locked --release --bin train-mlp
check "train-mlp, default" train "$readme_hash"
check "train-mlp, one thread" train "$readme_hash" RAYON_NUM_THREADS=1
check "train-mlp, two threads" train "$readme_hash" RAYON_NUM_THREADS=2
check "train-mlp, portable SIMD" train "$readme_hash" SGEMM_BI_SIMD=portable
for simd in avx2 avx512; do
    case $simd in
        avx2) flag=fma ;;
        avx512) flag=avx512dq ;;
    esac
    if grep -qw "$flag" /proc/cpuinfo 2>/dev/null; then
        check "train-mlp, $simd" train "$readme_hash" SGEMM_BI_SIMD=$simd
    else
        skip "train-mlp, $simd" "this processor does not have it"
    fi
done
# The table of the other hashes: | `options` | `hash` |
while IFS='`' read -r _ options _ hash _; do
    # shellcheck disable=SC2086 # The options are words.
    check "train-mlp $options" train "$hash" -- $options
done < <(grep -E '^\| `--.*` \| `[0-9a-f]{64}` \|' examples/README.md)

if [ -n "${SGEMM_BI_EXHAUSTIVE:-}" ]; then
    check "exp and ln at every f32" \
        cargo test --locked --release -p sgemm-bi-core --lib every_f32 -- --ignored
else
    skip "exp and ln at every f32" "it takes minutes; set SGEMM_BI_EXHAUSTIVE=1 to run it"
fi

printf '\n== summary after %d s\n' $((SECONDS - begin))
for name in ${skipped[@]+"${skipped[@]}"}; do printf 'skipped: %s\n' "$name"; done
for name in ${failed[@]+"${failed[@]}"}; do printf 'FAILED: %s\n' "$name"; done
[ ${#failed[@]} -eq 0 ] && echo "every check that ran passed"
[ ${#failed[@]} -eq 0 ]
