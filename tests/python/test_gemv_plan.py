"""Launches of the GEMV: the figures of the kernel's source, and the choices of the program's own plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from draftfast_vllm import gemv_plan
from draftfast_vllm.gemv_plan import KERNELS, MAX_M, Card, make_plan

KERNELS_DIR = Path(__file__).parents[2] / "kernels"
H200, GB10 = Card(132, 230_912, 2, 15), Card(48, 99 * 1024 - 1024, 2, 0)


@pytest.mark.parametrize(
    ("file", "name", "ours"),
    [
        ("gemv.cuh", "MAX_M", "MAX_M"),
        ("nvfp4.cuh", "BLOCK", "BLOCK"),
        ("gemv.cu", "WARPS", "ONE_WARPS"),
        ("gemv.cu", "STEP_K", "ONE_STEP_K"),
        *(("gemv_mma.cuh", name, name) for name in ("MOST_WARPS", "TILE_ROWS", "STEP_K", "SLOT_BYTES")),
        ("gemv_mma_few.cu", "CLUSTER", "CLUSTER"),
    ],
)
def test_constants_are_those_of_the_kernels(file, name, ours):
    (value,) = re.findall(rf"^#define {name} (\d+)", (KERNELS_DIR / file).read_text(), re.M)
    assert getattr(gemv_plan, ours) == int(value)


def test_kernels_are_those_of_the_sources():
    for file, names in KERNELS.items():
        assert re.findall(r"^KERNELS\((\w+),", (KERNELS_DIR / file).read_text(), re.M) == list(names)


def test_layers_have_kernels_with_the_parameters_of_the_others():
    for file in KERNELS:
        template = r"^(?:KERNELS|LAYER)(\(.*\))"
        layers = (KERNELS_DIR / file.replace(".cu", "_layer.cu")).read_text()
        assert f'#include "{file}"' in layers
        assert re.findall(template, layers, re.M) == re.findall(template, (KERNELS_DIR / file).read_text(), re.M)


@pytest.mark.parametrize("card", [H200, GB10])
@pytest.mark.parametrize("k", [16, 112, 256, 2560, 5120, 5136, 17_408])
@pytest.mark.parametrize("n", [1, 31, 32, 2560, 64_064, 248_320])
def test_what_is_planned_is_allowed(n, k, card):
    for m in range(1, MAX_M + 1):
        plan = make_plan(n, k, m, card)
        assert plan is not None and 1 <= plan.m <= m
        assert plan.shared_bytes <= card.block_bytes and 1 <= plan.grid <= n
        assert plan.warps % plan.split == 0 and plan.grid <= card.n_multiprocessors * card.gemv_blocks
        if plan.m == 1 and k % 32 == 0:
            assert plan.kernel in KERNELS["gemv.cu"] and plan.split <= 2
        elif plan.kernel == "nvfp4_mma_few":
            assert m > 1 and plan.grid % 8 == 0 and 8 * plan.split <= k // 256 and k % 256 == 0 and n >= 32
        else:
            assert plan.kernel in KERNELS["gemv_mma.cu"] and plan.split <= -(-k // 256)
            assert plan.split == 1 or plan.warps // plan.split <= 15
            assert (plan.kernel == "nvfp4_mma_ragged") == (k % 256 != 0 or n < 32)


def test_draft_heads_and_linears():
    assert [make_plan(64_128, 5120, m, H200).kernel for m in (1, 2, 8)] == ["nvfp4_gemv", "nvfp4_mma", "nvfp4_mma"]
    assert [make_plan(64_128, k, 1, H200).split for k in (2560, 5120)] == [1, 2]
    assert make_plan(64_128, 5120, 8, H200).m == 8
    plans = [make_plan(n, k, 8, H200) for n, k in ((64_128, 2560), (64_128, 5120), (10_240, 2560), (2560, 640))]
    assert [(plan.warps, plan.split) for plan in plans] == [(16, 1), (16, 1), (16, 2), (12, 3)]
    assert make_plan(2560, 4096, 1, H200).kernel == "nvfp4_gemv_few"
    assert [make_plan(5120, 17_408, m, H200).kernel for m in (1, 2, 8)] == ["nvfp4_gemv_few"] + 2 * ["nvfp4_mma_few"]
    assert make_plan(64_128, 2560, 2, GB10).kernel == "nvfp4_mma_shallow"
    assert (make_plan(5120, 17_408, 8, GB10).m, make_plan(5120, 17_408, 8, GB10).kernel) == (1, "nvfp4_gemv")
    assert make_plan(64_128, 200_000, 1, H200) is None
    assert make_plan(2560, 9728, 8, H200).kernel == "nvfp4_mma_few"


def test_the_package_has_each_kernel_file_and_all_that_it_includes():
    package = Path(gemv_plan.__file__).parent / "cuda"
    for file in package.iterdir():
        included = re.findall(r'^#include "(.+)"', file.read_text(), re.M)
        assert [name for name in included if not (package / name).is_file()] == []
