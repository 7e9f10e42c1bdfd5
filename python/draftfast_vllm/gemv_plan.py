"""How `kernels/gemv.cu` is launched: which kernel, how warps share a tile, how much shared memory. No torch.

The same plan as the program's own (`src/gpu/gemv.rs`, `Plan::new`), figure for figure.
"""

from __future__ import annotations

from dataclasses import dataclass

# As in gemv.cu.
WARPS, TILE_ROWS, STEP_K, SLOT_BYTES, MAX_M, BLOCK = 12, 32, 256, 4608, 8, 16
# Fixed shared memory of the kernels, rounded up.
FIXED_SHARED_BYTES = 1024
SPLITS = (1, 2, 3, 4, 6, 12)
KERNELS = ("nvfp4_gemv2", "nvfp4_gemv8", "nvfp4_gemv2_shallow", "nvfp4_gemv8_shallow", "nvfp4_gemv_ragged")


@dataclass(frozen=True)
class Plan:
    """One launch. `m`: vectors that it takes; more take more launches."""

    kernel: str
    m: int
    split: int
    grid: int
    shared_bytes: int


def make_plan(n: int, k: int, m: int, n_multiprocessors: int, block_bytes: int) -> Plan | None:
    """For [n, k] weights and m vectors, where a block may have `block_bytes` of shared memory; None: it does not fit."""
    ragged = k % STEP_K != 0 or n < TILE_ROWS
    n_steps = -(-k // STEP_K)
    # Fewer launches first, then the deeper prefetch.
    choices = [(fewer, depth) for fewer in range(m, 0, -1) for depth in ((1,) if ragged else (2, 1))]
    fitting = [choice for choice in choices if _shared_bytes(n_steps, *choice, WARPS, ragged) <= block_bytes]
    if not fitting:
        return None
    m, depth = fitting[0]
    kernel = "nvfp4_gemv_ragged" if ragged else f"nvfp4_gemv{8 if m > 2 else 2}" + ("_shallow" if depth == 1 else "")
    n_tiles = -(-n // TILE_ROWS)
    grid = min(n_tiles, n_multiprocessors)
    tiles_per_block = -(-n_tiles // grid)

    def cost(split: int) -> int:
        """Twice the steps that the busiest warp takes, and what joining a team's sums costs, as fitted on an H200."""
        return -(-tiles_per_block // (WARPS // split)) * (2 * -(-n_steps // split) + split)

    split = min((split for split in SPLITS if split <= n_steps), key=cost)
    return Plan(kernel, m, split, grid, _shared_bytes(n_steps, m, depth, split, ragged))


def _shared_bytes(n_steps: int, m: int, depth: int, split: int, ragged: bool) -> int:
    """x, zeros, the weights in flight, and the sums of teams."""
    sums = 2 * WARPS * (8 if m > 2 or ragged else 2) * 128 if split > 1 else 0
    return n_steps * STEP_K * 2 * m + 512 + WARPS * depth * SLOT_BYTES + sums
