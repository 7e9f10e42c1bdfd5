#!/usr/bin/env bash
# The two pieces of vLLM 0.31.0 that one call each can carry: pack.sh OUT
set -euo pipefail
out=$(realpath -m "$1"); here=$(realpath "$(dirname "$0")"); work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/vllm" "$work/small"
tags=(); for minor in 17 24 27 28 31 34 35 39; do tags+=(--platform "manylinux_2_${minor}_x86_64"); done
pip download -q --no-deps --only-binary :all: "${tags[@]}" --platform manylinux2014_x86_64 --platform any --python-version 3.12 -d "$work" vllm==0.31.0
pip download -q --no-deps --only-binary :all: "${tags[@]}" --platform manylinux2014_x86_64 --platform any --python-version 3.12 -d "$work/small" -r "$here/wheels.txt"
(cd "$work/vllm" && unzip -q ../vllm-*.whl)
cd "$work/vllm"
find . \( -name '*.so' -o -name 'vllm-rs*' -o -name 'deep_gemm' -o -name '__pycache__' \) ! -name '_C_stable_libtorch*' ! -name '_moe_C_stable*' -prune -exec rm -rf {} +
# The package refuses to import without one FlashAttention; nothing here calls it.
touch vllm/vllm_flash_attn/_vllm_fa2_C.py
mkdir ../second && mv vllm/_moe_C_stable* ../second/
XZ_OPT='-9 -T2' tar -cJf "$out/piece1.tar.xz" vllm vllm-*.dist-info
mkdir -p ../second/vllm && mv ../second/_moe_C_stable* ../second/vllm/
for wheel in ../small/*.whl; do unzip -qo "$wheel" -d ../second; done
XZ_OPT='-9 -T2' tar -cJf "$out/piece2.tar.xz" -C ../second .
ls -l "$out"
