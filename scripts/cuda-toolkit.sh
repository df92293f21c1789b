#!/usr/bin/env bash
# Makes a CUDA 13.0 toolkit in DIR from PyPI's wheels: enough to build and link Candle's `cuda`
# feature, on x86-64 Linux (not tried on ARM), without root, a driver or a GPU. About 2 GB.
#
#   scripts/cuda-toolkit.sh DIR
#   . DIR/env.sh
#   cargo build --release --features cuda -p …
#
# A complete DIR is left as it is. Needs cargo, python3 with pip, and cc; nvcc also needs a C++
# compiler. CUDA_COMPUTE_CAP, where it is set, is the GPU that Candle's kernels are built for;
# else env.sh says 90, a Hopper.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: scripts/cuda-toolkit.sh DIR" >&2; exit 2; }
for tool in cargo python3 cc; do
    command -v $tool >/dev/null 2>&1 || { echo "cuda-toolkit.sh: $tool is not installed" >&2; exit 2; }
done
mkdir -p "$1"
dir=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
home=$dir/nvidia/cu13

if [ ! -e "$dir/complete" ]; then
    # --target installs nothing outside DIR; --upgrade replaces what an interrupted run left.
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target "$dir" \
        "nvidia-cuda-nvcc==13.0.*" "nvidia-cuda-crt==13.0.*" "nvidia-nvvm==13.0.*" \
        "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-cccl==13.0.*" "nvidia-cuda-nvrtc==13.0.*" \
        "nvidia-cublas==13.0.*" "nvidia-curand==10.4.0.*"

    # nvcc and cudarc look in lib64, and the linker for names without a version.
    ln -sfn lib "$home/lib64"
    for name in cublas cublasLt cudart curand nvrtc; do
        versions=("$home/lib/lib$name.so."*)
        [ -e "${versions[0]}" ] || { echo "cuda-toolkit.sh: the wheels have no lib$name" >&2; exit 1; }
        ln -sfn "$(basename "${versions[0]}")" "$home/lib/lib$name.so"
    done

    # The driver library belongs to the driver, which this machine may not have. To link, a library
    # that has its name and its functions is enough: all that cudarc declares. Called, each answers
    # CUDA_ERROR_STUB_LIBRARY, as those of NVIDIA's own stub do.
    mkdir -p "$home/lib/stubs"
    cudarc=$(cargo metadata --format-version 1 --locked --all-features | python3 -c '
import json, os, sys
packages = json.load(sys.stdin)["packages"]
found = [p["manifest_path"] for p in packages if p["name"] == "cudarc"]
print(os.path.dirname(found[0]) if found else "")')
    [ -n "$cudarc" ] || { echo "cuda-toolkit.sh: cudarc is not in the dependency graph" >&2; exit 1; }
    sed -nE 's/^ *(pub )?fn (cu[A-Z][A-Za-z0-9_]*)\(.*;$/int \2(void) { return 34; }/p' \
        "$cudarc/src/driver/sys/mod.rs" | sort -u >"$dir/libcuda.c"
    [ -s "$dir/libcuda.c" ] || { echo "cuda-toolkit.sh: no driver function in $cudarc" >&2; exit 1; }
    cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$home/lib/stubs/libcuda.so" "$dir/libcuda.c"

    cat >"$dir/env.sh" <<EOF
# Sourced by a shell that builds with this toolkit; made by scripts/cuda-toolkit.sh.
export CUDA_HOME='$home'
export CUDA_PATH="\$CUDA_HOME"
export NVCC="\$CUDA_HOME/bin/nvcc"
export CUDA_COMPUTE_CAP="\${CUDA_COMPUTE_CAP:-90}"
case ":\$PATH:" in
    *":\$CUDA_HOME/bin:"*) ;;
    *) export PATH="\$CUDA_HOME/bin:\$PATH" ;;
esac
EOF
    "$home/bin/nvcc" --version >/dev/null
    touch "$dir/complete"
fi
echo ". $dir/env.sh"
