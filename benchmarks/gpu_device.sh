#!/usr/bin/env bash
# Run the GPU suite on a machine that has Python 3.12 and torch for CUDA, but no network and no drfl.
#
# 1. Here, with a network, prepare the folder build/gpu: wheels of drfl's other dependencies (and pfl, if wanted), and
#    the test images of Kuzushiji-MNIST (data set kmnist-t10k). DIR is a folder of data sets, as for --data-dir.
#
#        benchmarks/gpu_device.sh prepare DIR
#
# 2. Copy the checkout with build/gpu (9 MB; build/ is ignored by git) to the machine, and run there, in its root,
#
#        benchmarks/gpu_device.sh run OUT [OPTIONS OF benchmarks/gpu.py]
#
#    It ends within 4.5 minutes with the results of all parts and a log in OUT, five small files. Fewer parts are chosen
#    with, for example, --parts correctness,speed, and less time with --seconds 200.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=build/gpu

prepare() {
    # Only packages that a machine for machine learning lacks; torch, NumPy, SciPy, pandas, scikit-learn, typer, rich, filelock,
    # jinja2, requests, tqdm and cloudpickle are installed there. pip matches the numbers of manylinux exactly, so all are listed.
    local pins
    pins=$(grep -oE '^(annotated-types|platformdirs|pooch|pydantic|pydantic-core|safetensors|tomli-w|typing-inspection|typing-extensions)==[^ ]+' constraints.txt)
    rm -rf "$BUILD"
    mkdir -p "$BUILD/wheels" "$BUILD/data/kmnist"
    # pfl 0.6.0 imports the last four; its other dependencies are those of drfl.
    # shellcheck disable=SC2086
    "${PYTHON:-python3}" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux1_x86_64 \
        --dest "$BUILD/wheels" $pins pfl==0.6.0 dp-accounting==0.4.4 multiprocess==0.70.17 dill==0.3.9 \
        prv-accountant==0.2.0
    # drfl itself runs from the checkout. The wheel provides its version.
    "${PYTHON:-python3}" -m pip wheel --quiet --no-deps --wheel-dir "$BUILD/wheels" .
    cp "$1"/kmnist/t10k-* "$BUILD/data/kmnist/"
    du -sh "$BUILD"
}

run() {
    local out=$1
    shift
    mkdir -p "$out"
    # A separate folder, so that the environment of torch does not change.
    python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target /tmp/gpu-site "$BUILD"/wheels/*.whl
    export PYTHONPATH="$PWD/src:$PWD:/tmp/gpu-site" PYTHONUNBUFFERED=1
    [ $# -gt 0 ] || set -- --all
    python3 benchmarks/gpu.py --out "$out" --data-dir "$BUILD/data" "$@" 2>&1 | tee "$out/gpu.log"
}

case "${1:-}" in
prepare | run) "$@" ;;
*) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" && exit 2 ;;
esac
