#!/usr/bin/env bash
# Builds the GPU tests, the GPU benchmark and train-mlp on a machine that may have no GPU, into the
# folder DIR of less than 60 MB, to be copied to a machine that has one. There, without Rust,
#
#   DIR/run.sh          runs every check, prints a summary and exits by the outcome
#   DIR/run.sh bench    prints the benchmark's tables
#
#   scripts/gpu-bundle.sh DIR
#
# Needs a CUDA 13 toolkit to link Candle: run `. FOLDER/env.sh` after scripts/cuda-toolkit.sh FOLDER.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: scripts/gpu-bundle.sh DIR" >&2; exit 2; }
command -v nvcc >/dev/null 2>&1 || {
    echo "gpu-bundle.sh: no CUDA toolkit: run scripts/cuda-toolkit.sh FOLDER, then . FOLDER/env.sh" >&2
    exit 2
}
if [ -e "$1" ] && [ ! -e "$1/run.sh" ] && [ -n "$(ls -A "$1")" ]; then
    echo "gpu-bundle.sh: $1 is not empty and not a bundle" >&2
    exit 2
fi
mkdir -p "$1"
dir=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
rm -rf "$dir/programs" "$dir/goldens"
mkdir "$dir/programs" "$dir/goldens"

# add NAME: the program whose path is read, small: without symbols, compressed.
add() {
    local path
    read -r path
    strip -o "$dir/programs/$1" "$path"
    gzip -9 -f "$dir/programs/$1"
}

# build NAMES COMMAND…: adds the programs of the targets with these names that cargo builds, under
# the same name, or for TARGET=NAME under that one.
build() {
    local names=$1 name messages
    shift
    messages=$(cargo "$@" --locked --release --message-format=json-render-diagnostics)
    for name in $names; do
        sed -nE "/\"name\":\"${name%=*}\"/s/.*\"executable\":\"([^\"]+)\".*/\1/p" <<<"$messages" |
            add "${name#*=}"
    done
}

# Together: Candle's kernels take many minutes, and a package with other features has its own.
build "cuda train-mlp" build -p candle-sgemm-bi -p sgemm-bi-examples --test cuda --bin train-mlp \
    --features candle-sgemm-bi/cuda,sgemm-bi-examples/cuda
# Without Candle in the graph, CUDA's libraries are not linked but opened.
build "sgemm_bi_core gpu" test --no-run -p sgemm-bi-core -p sgemm-bi-tests --lib --test gpu \
    --features sgemm-bi-core/cuda,sgemm-bi-tests/cuda

build "cuda=bench" build -p sgemm-bi-core --bench cuda --features cuda

cp tests/goldens/*.txt "$dir/goldens"
cp examples/README.md "$dir/hashes.md"
cp scripts/gpu-run.sh "$dir/run.sh"

size=$(du -sm "$dir" | cut -f 1)
[ "$size" -lt 60 ] || { echo "gpu-bundle.sh: $dir has $size MB: 60 are too many" >&2; exit 1; }
echo "$dir: $size MB; run.sh in it runs everything on a machine with a GPU"
