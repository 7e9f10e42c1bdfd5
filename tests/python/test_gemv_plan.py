"""Launches of the GEMV: what the kernel asks for holds for every one that is offered."""

from __future__ import annotations

import pytest

from draftfast_vllm.gemv_plan import MAX_M, MAX_TEAMS, STEP_K, WARPS, Launch, choose_warps, largest_m, launches

H200, GB10 = 227 * 1024 - 3072, 99 * 1024 - 3072


@pytest.mark.parametrize("limit", [H200, GB10])
@pytest.mark.parametrize("k", [16, 112, 128, 2560, 5120, 5136, 17408])
@pytest.mark.parametrize("n", [1, 31, 32, 64_064, 248_320])
def test_what_is_offered_is_allowed(n, k, limit):
    for warps in WARPS:
        for m in range(1, MAX_M + 1):
            for launch in launches(n, k, m, warps, limit):
                assert warps % launch.split == 0 and launch.split <= -(-k // STEP_K)
                assert launch.split == 1 or warps // launch.split <= MAX_TEAMS
                assert launch.shared_bytes <= limit
                assert 1 <= launch.grid(132) <= 132
                assert (launch.kernel == "nvfp4_gemv_ragged") == (k % 128 != 0 or n < 32)


def test_draft_heads_fit_both_machines():
    for k in (2560, 5120):
        assert choose_warps(64_128, k, 8, H200) == 16
        assert largest_m(64_128, k, 16, H200) == 8
        assert choose_warps(64_128, k, 1, GB10) == 16
    assert (choose_warps(64_128, 2560, 8, GB10), choose_warps(64_128, 5120, 8, GB10)) == (8, 4)
    assert largest_m(64_128, 5120, 4, GB10) == 7


def test_every_tile_has_a_team():
    assert Launch(64_128, 2560, 1, 16, 1).grid(132) == 126  # 2,004 tiles in 16 teams a block
    assert Launch(64_128, 2560, 1, 16, 2).grid(132) == 132
    assert Launch(33, 2560, 1, 16, 16).grid(132) == 2
    assert Launch(33, 2560, 1, 16, 1).grid(132) == 1
