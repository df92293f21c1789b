#!/usr/bin/env bash
# Runs what scripts/gpu-bundle.sh has put beside this file, on a machine with an NVIDIA GPU, its
# driver and the libraries of CUDA 13 (a toolkit, or PyPI's wheels: PyTorch's are enough). Without a
# GPU everything fails. Prints a summary; exits non-zero if anything failed.
#
#   run.sh [CHECK…]    all checks, or those whose names begin with one of the words
#   run.sh bench       only the benchmark: products against cuBLAS, and the start of an engine
#
# CUDA_LIBRARIES is a folder to look for libraries in first. Kernels are compiled anew, into a
# folder that is removed in the end, unless SGEMM_BI_CACHE_DIR names another.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

for program in "$here"/programs/*.gz; do
    name=$(basename "$program" .gz)
    gunzip -c "$program" >"$work/$name" && chmod +x "$work/$name" || exit 2
done

# Where the libraries of CUDA may be, best first: the wheels of every Python there is, the toolkits,
# the driver's folder.
libraries() {
    [ -z "${CUDA_LIBRARIES:-}" ] || echo "$CUDA_LIBRARIES"
    local python folder
    for python in python3 python; do
        command -v $python >/dev/null 2>&1 || continue
        $python -c 'import site, sys
print(*dict.fromkeys(sys.path + site.getsitepackages() + [site.getusersitepackages()]), sep="\n")' \
            2>/dev/null
    done | while read -r folder; do
        ls -d "$folder"/nvidia/*/lib "$folder"/torch/lib 2>/dev/null
    done
    ls -d "${CUDA_HOME:-/nowhere}"/lib64 "${CUDA_PATH:-/nowhere}"/lib64 /usr/local/cuda/lib64 \
        /usr/local/cuda-13*/lib64 /usr/local/nvidia/lib64 /usr/local/nvidia/lib 2>/dev/null
}
found=$(libraries | awk '!seen[$0]++' | paste -sd :)
export LD_LIBRARY_PATH="$found${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

export SGEMM_BI_REQUIRE_GPU=1 SGEMM_BI_GOLDENS="$here/goldens"
export SGEMM_BI_CACHE_DIR="${SGEMM_BI_CACHE_DIR:-$work/cache}"

passed=() failed=()
begin=$SECONDS
only=("$@")

# check NAME COMMAND…: runs it, notes its outcome and its time.
check() {
    local name=$1 start=$SECONDS word wanted=${#only[@]}
    shift
    for word in ${only[@]+"${only[@]}"}; do [[ $name == "$word"* ]] && wanted=0; done
    [ "$wanted" -eq 0 ] || return 0
    printf '\n== %s\n' "$name"
    if "$@"; then
        printf -- '-- %s: passed in %d s\n' "$name" $((SECONDS - start))
        passed+=("$name")
    else
        printf -- '-- %s: FAILED after %d s\n' "$name" $((SECONDS - start))
        failed+=("$name")
    fi
}

# needs PROGRAM: every library that it is linked with is there.
needs() {
    local missing
    missing=$(ldd "$work/$1" | grep 'not found') || return 0
    echo "$1: libraries of CUDA 13 are missing in LD_LIBRARY_PATH=$LD_LIBRARY_PATH:"
    echo "$missing"
    return 1
}

# Training prints the hash that the CPU's documentation has.
train() {
    local hash=$1
    shift
    needs train-mlp &&
        "$work/train-mlp" --out "$work/weights.safetensors" --expect "$hash" "$@"
}

candle() { needs cuda && "$work/cuda"; }

nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null ||
    echo "nvidia-smi does not answer"

bench() {
    "$work/bench" --startup && "$work/bench" --startup && "$work/bench" --markdown
}
if [ "${only[*]-}" = bench ]; then
    bench
    exit
fi

check "core" "$work/sgemm_bi_core"
check "gpu" "$work/gpu"
check "candle" candle
# | `options` | `hash` |, and the hash without options.
default=$(grep -oE '\b[0-9a-f]{64}\b' "$here/hashes.md" | head -n 1)
check "train-mlp --device cpu" train "$default" --device cpu
check "train-mlp --device cuda" train "$default" --device cuda
while IFS='`' read -r _ options _ hash _; do
    # The CUDA engine has the scalar tier.
    [[ $options != *--tier* ]] || continue
    # shellcheck disable=SC2086 # The options are words.
    check "train-mlp --device cuda $options" train "$hash" --device cuda $options
done < <(grep -E '^\| `--.*` \| `[0-9a-f]{64}` \|' "$here/hashes.md")

printf '\n== summary after %d s: %d passed, %d failed\n' $((SECONDS - begin)) \
    ${#passed[@]} ${#failed[@]}
for name in ${failed[@]+"${failed[@]}"}; do printf 'FAILED: %s\n' "$name"; done
[ ${#failed[@]} -eq 0 ] && [ ${#passed[@]} -gt 0 ]
