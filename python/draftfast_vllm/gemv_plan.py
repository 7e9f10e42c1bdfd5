"""How `kernels/gemv.cu`, `gemv_mma.cu` and `gemv_mma_few.cu` are launched: which kernel, how warps share rows, how much
shared memory.

The same plan as the program's own (`src/gpu/plan.rs`, `Plan::new`), figure for figure. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass

# As in gemv.cuh and nvfp4.cuh.
MAX_M, BLOCK = 8, 16
# As in gemv.cu: one vector.
ONE_WARPS, ONE_STEP_K = 16, 512
ONE_GROUPS = 2 * ONE_WARPS
# As in gemv_mma.cuh: several vectors, or rows that do not start at 16 bytes.
MOST_WARPS, TILE_ROWS, STEP_K, SLOT_BYTES = 16, 32, 256, 4608
# Warps of a thread block: as many as there is shared memory for.
WARPS = (MOST_WARPS, 12)
# Fixed shared memory of the kernels, rounded up.
FIXED_SHARED_BYTES = 1536
# As in gemv_mma_few.cu: blocks that share tiles; and the sums of a tile in one warp.
CLUSTER, SUMS_BYTES, FEW_WARPS = 8, 1024, 12
KERNELS = {
    "gemv.cu": ("nvfp4_gemv", "nvfp4_gemv_few"),
    "gemv_mma.cu": ("nvfp4_mma", "nvfp4_mma_shallow", "nvfp4_mma_ragged"),
    "gemv_mma_few.cu": ("nvfp4_mma_few",),
}
NEED_CLUSTERS = ("gemv_mma_few.cu",)


@dataclass(frozen=True)
class Card:
    """A GPU. `block_bytes`: dynamic shared memory that a block may have; `gemv_blocks`: blocks of gemv.cu that a
    multiprocessor holds, 2 from compute capability 9.0 on, else 1; `clusters`: clusters of gemv_mma_few.cu that run at a
    time, none before 9.0."""

    n_multiprocessors: int
    block_bytes: int
    gemv_blocks: int
    clusters: int


@dataclass(frozen=True)
class Plan:
    """One launch. `m`: vectors that it takes; more take more launches. `split`: groups or warps that share rows."""

    kernel: str
    m: int
    split: int
    grid: int
    warps: int
    shared_bytes: int


def make_plan(n: int, k: int, m: int, card: Card) -> Plan | None:
    """For [n, k] weights and m vectors; None: one vector does not fit the card's shared memory."""
    one = _one(n, k, card)
    one_fits = k % 32 == 0 and one.shared_bytes <= card.block_bytes
    several = None if m == 1 and one_fits else _several(n, k, m, card)
    # Vector after vector where more than one do not fit.
    return one if one_fits and (several is None or several.m == 1) else several


def _one(n: int, k: int, card: Card) -> Plan:
    """Rows are few when a group has hardly more than one; then, and where it leaves no step over, two groups share rows."""
    grid = min(n, card.n_multiprocessors * card.gemv_blocks)
    few = n * 4 <= grid * ONE_GROUPS * 5
    n_steps = -(-k // ONE_STEP_K)
    split = 2 if few or n_steps % 2 == 0 else 1
    # x, and the logits and token ids of a block's rows
    shared_bytes = -(-n_steps // split) * split * ONE_STEP_K * 2 + -(-n // grid) * 8
    return Plan("nvfp4_gemv_few" if few else "nvfp4_gemv", 1, split, grid, ONE_WARPS, shared_bytes)


def _several(n: int, k: int, m: int, card: Card) -> Plan | None:
    ragged = k % STEP_K != 0 or n < TILE_ROWS
    n_steps = -(-k // STEP_K)
    few = None if ragged else _few(n, n_steps, m, card)
    if few is not None:
        return few
    n_tiles = -(-n // TILE_ROWS)
    grid = min(n_tiles, card.n_multiprocessors)
    tiles_per_block = -(-n_tiles // grid)
    ways = [(warps, split) for warps in WARPS for split in _splits(warps) if split <= n_steps]
    step_cost = 20 if ragged else 4

    def cost(way: tuple[int, int]) -> int:
        """The steps that the busiest warp takes, and what joining a team's sums costs, as fitted on an H200."""
        warps, split = way
        return -(-tiles_per_block // (warps // split)) * (step_cost * -(-n_steps // split) + 5 * split)

    # Fewer launches first, then the deeper prefetch.
    for fewer, depth in [(fewer, depth) for fewer in range(m, 0, -1) for depth in ((1,) if ragged else (2, 1))]:
        fitting = [way for way in ways if _several_bytes(n_steps, fewer, depth, *way) <= card.block_bytes]
        if fitting:
            warps, split = min(fitting, key=cost)
            kernel = "nvfp4_mma_ragged" if ragged else "nvfp4_mma" if depth == 2 else "nvfp4_mma_shallow"
            return Plan(kernel, fewer, split, grid, warps, _several_bytes(n_steps, fewer, depth, warps, split))
    return None


def _splits(warps: int) -> list[int]:
    return [split for split in range(1, warps + 1) if warps % split == 0]


def _several_bytes(n_steps: int, m: int, depth: int, warps: int, split: int) -> int:
    """x, the weights in flight, and the sums of teams."""
    return _staged_bytes(n_steps, m, depth, warps) + (2 * warps * SUMS_BYTES if split > 1 else 0)


def _staged_bytes(n_steps: int, m: int, depth: int, warps: int) -> int:
    """x, and the weights in flight."""
    return n_steps * STEP_K * 2 * m + warps * depth * SLOT_BYTES


def _few(n: int, n_steps: int, m: int, card: Card) -> Plan | None:
    """Hardly a tile for every multiprocessor; None: more, or no clusters, or not all vectors fit."""
    n_tiles = -(-n // TILE_ROWS)
    clusters = min(n_tiles, card.clusters)
    splits = [split for split in _splits(FEW_WARPS) if CLUSTER * split <= n_steps]
    if clusters == 0 or m == 1 or n_tiles * 2 > card.n_multiprocessors * 3 or not splits:
        return None
    tiles_per_cluster = -(-n_tiles // clusters)

    def cost(split: int) -> int:
        """The steps that the busiest warp takes."""
        return -(-tiles_per_cluster // (FEW_WARPS // split)) * -(-n_steps // (CLUSTER * split))

    split = min(splits, key=cost)
    sums_bytes = -(-tiles_per_cluster // CLUSTER) * CLUSTER * split * SUMS_BYTES
    shared_bytes = _staged_bytes(-(-n_steps // CLUSTER), m, 2, FEW_WARPS) + sums_bytes
    if shared_bytes > card.block_bytes:
        return None
    return Plan("nvfp4_mma_few", m, split, clusters * CLUSTER, FEW_WARPS, shared_bytes)
