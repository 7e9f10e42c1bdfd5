#!/usr/bin/env bash
# What one call to the device machine carries: pack.sh OUT.tar.xz PROGRAM
# vLLM 0.31.0 without what an sm_90 GPU or this comparison does not need, 41 small wheels, and the `draftfast` program: 55 MB.
# WHEELS=DIR keeps the downloads.
set -euo pipefail
out=$(realpath -m "$1"); program=$(realpath "$2"); here=$(realpath "$(dirname "$0")"); work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
wheels=${WHEELS:-$work/wheels}; mkdir -p "$wheels/small" "$work/site"
tags=(--platform any --platform manylinux2014_x86_64); for minor in 17 24 27 28 31 34 35 39; do tags+=(--platform "manylinux_2_${minor}_x86_64"); done
download() { pip download -q --no-deps --only-binary :all: "${tags[@]}" --python-version 3.12 -d "$@"; }
ls "$wheels"/vllm-0.31.0-*.whl >&2 || download "$wheels" vllm==0.31.0
ls "$wheels"/small/*.whl >/dev/null 2>&1 || download "$wheels/small" -r "$here/wheels.txt"
cd "$work/site"
unzip -q "$wheels"/vllm-0.31.0-*.whl
rm -rf vllm/vllm-rs vllm/third_party/{deep_gemm,fmha_sm100}
find . -name '*.so' ! -name '_C_stable_libtorch*' ! -name '_moe_C_stable*' -delete
# The package refuses to import without one FlashAttention; nothing here calls it.
touch vllm/vllm_flash_attn/_vllm_fa2_C.py
python3 "$here/keep_sm90.py" vllm/_C_stable_libtorch.abi3.so
# Of the mixture-of-experts kernels only those that come compiled: no model here has experts.
python3 "$here/keep_sm90.py" --no-ptx vllm/_moe_C_stable_libtorch.abi3.so
for wheel in "$wheels"/small/*.whl; do unzip -qo "$wheel"; done
mkdir bin && cp "$program" bin/draftfast && strip bin/draftfast
find . -name '__pycache__' -prune -exec rm -rf {} +
mkdir -p "$(dirname "$out")" && XZ_OPT='-6 -T2' tar -cJf "$out" .
ls -l "$out"
