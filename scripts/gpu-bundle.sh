#!/usr/bin/env bash
# Builds the GPU tests and train-mlp on a machine that may have no GPU, into the folder DIR of less
# than 60 MB, to be copied to a machine that has one. There, without Rust,
#
#   DIR/run.sh
#
# runs everything, prints a summary and exits by the outcome.
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

# tests NAME ARGUMENTS…: the one test program of `cargo test ARGUMENTS…`.
tests() {
    local name=$1
    shift
    cargo test --locked --release --no-run --message-format=json-render-diagnostics "$@" |
        sed -nE '/"profile":\{[^}]*"test":true/s/.*"executable":"([^"]+)".*/\1/p' | add "$name"
}

tests core -p sgemm-bi-core --features cuda --lib
tests gpu -p sgemm-bi-tests --features cuda --test gpu
tests candle -p candle-sgemm-bi --features cuda --test cuda
cargo build --locked --release -p sgemm-bi-examples --features cuda --bin train-mlp \
    --message-format=json-render-diagnostics |
    sed -nE '/"name":"train-mlp"/s/.*"executable":"([^"]+)".*/\1/p' | add train-mlp

cp tests/goldens/*.txt "$dir/goldens"
cp examples/README.md "$dir/hashes.md"
cp scripts/gpu-run.sh "$dir/run.sh"

size=$(du -sm "$dir" | cut -f 1)
[ "$size" -lt 60 ] || { echo "gpu-bundle.sh: $dir has $size MB: 60 are too many" >&2; exit 1; }
echo "$dir: $size MB; run.sh in it runs everything on a machine with a GPU"
