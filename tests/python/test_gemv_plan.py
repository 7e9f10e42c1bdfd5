"""Launches of the GEMV: the figures of the kernel's source, and the choices of the program's own plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from draftfast_vllm import gemv_plan
from draftfast_vllm.gemv_plan import KERNELS, MAX_M, WARPS, make_plan

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "kernels/gemv.cu").read_text() + (ROOT / "kernels/nvfp4.cuh").read_text()
H200, GB10 = 227 * 1024 - 1024, 99 * 1024 - 1024


@pytest.mark.parametrize("name", ["WARPS", "TILE_ROWS", "STEP_K", "SLOT_BYTES", "MAX_M", "BLOCK"])
def test_constants_are_those_of_the_kernel(name):
    (value,) = re.findall(rf"^#define {name} (\d+)", SOURCE, re.M)
    assert getattr(gemv_plan, name) == int(value)


def test_kernels_are_those_of_the_source():
    assert re.findall(r"^KERNELS\((\w+),", SOURCE, re.M) == list(KERNELS)


@pytest.mark.parametrize("limit", [H200, GB10])
@pytest.mark.parametrize("k", [16, 112, 256, 2560, 5120, 5136])
@pytest.mark.parametrize("n", [1, 31, 32, 64_064, 248_320])
def test_what_is_planned_is_allowed(n, k, limit):
    for m in range(1, MAX_M + 1):
        plan = make_plan(n, k, m, 132, limit)
        assert plan is not None and 1 <= plan.m <= m
        assert plan.shared_bytes <= limit and 1 <= plan.grid <= 132
        assert WARPS % plan.split == 0 and plan.split <= -(-k // 256)
        assert plan.split == 1 or WARPS // plan.split <= 15
        assert (plan.kernel == "nvfp4_gemv_ragged") == (k % 256 != 0 or n < 32)


def test_draft_heads_on_both_machines():
    assert [make_plan(64_128, 5120, m, 132, H200).kernel for m in (1, 2, 3, 8)] == ["nvfp4_gemv2"] * 2 + [
        "nvfp4_gemv8"
    ] * 2
    assert make_plan(64_128, 5120, 8, 132, H200).m == 8
    assert make_plan(64_128, 2560, 1, 48, GB10).kernel == "nvfp4_gemv2_shallow"
    assert make_plan(64_128, 200_000, 1, 132, H200) is None
