"""How `kernels/gemv.cu` is launched: warps of a block, the warps that share a tile, shared memory. No torch.

The figures are the kernel's; `Launch` is what a call needs, and is chosen by timing among those that fit.
"""

from __future__ import annotations

from dataclasses import dataclass

DEPTH, TILE_ROWS, STEP_K, MAX_M, SLOT_BYTES, MAX_TEAMS = 2, 32, 128, 8, 2560, 15
# Given to the compiler: fewer warps where shared memory is small (99 KiB on a GB10, 227 KiB on an H200).
WARPS = (16, 8, 4)
# Static shared memory of the kernels, rounded up.
STATIC_SHARED_BYTES = 3072


@dataclass(frozen=True)
class Launch:
    """One way to multiply m vectors by [n, k] weights."""

    n: int
    k: int
    m: int
    warps: int
    split: int

    @property
    def kernel(self) -> str:
        """The name without its result."""
        if self.k % STEP_K or self.n < TILE_ROWS:
            return "nvfp4_gemv_ragged"
        return "nvfp4_gemv8" if self.m > 2 else "nvfp4_gemv2"

    @property
    def shared_bytes(self) -> int:
        """x, zeros, the weights in flight, and the sums of teams."""
        depth = 1 if self.kernel == "nvfp4_gemv_ragged" else DEPTH
        sums = 2 * self.warps * (2 if self.kernel == "nvfp4_gemv2" else 8) * 128 if self.split > 1 else 0
        return -(-self.k // STEP_K) * 2 * STEP_K * self.m + 512 + self.warps * depth * SLOT_BYTES + sums

    def grid(self, n_processors: int) -> int:
        """Persistent blocks, no more than there are tiles for."""
        n_tiles, n_teams = -(-self.n // TILE_ROWS), self.warps // self.split
        return min(n_processors, -(-n_tiles // n_teams))


def launches(n: int, k: int, m: int, warps: int, shared_limit: int) -> list[Launch]:
    """Every split that the kernel allows and that fits into `shared_limit` bytes."""
    found = []
    for split in range(1, warps + 1):
        launch = Launch(n, k, m, warps, split)
        teams_fit = split == 1 or warps // split <= MAX_TEAMS
        if warps % split == 0 and split <= -(-k // STEP_K) and teams_fit and launch.shared_bytes <= shared_limit:
            found.append(launch)
    return found


def largest_m(n: int, k: int, warps: int, shared_limit: int) -> int:
    """Vectors that one launch can take; 0: not even one fits."""
    return max((m for m in range(1, MAX_M + 1) if launches(n, k, m, warps, shared_limit)), default=0)


def choose_warps(n: int, k: int, m: int, shared_limit: int) -> int:
    """The most warps with room for m vectors, else those with room for most."""
    roomy = [warps for warps in WARPS if largest_m(n, k, warps, shared_limit) >= m]
    return roomy[0] if roomy else max(WARPS, key=lambda warps: largest_m(n, k, warps, shared_limit))
