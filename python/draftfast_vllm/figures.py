"""The error figures of a sidecar's draft head, computed again from the target that is loaded.

The manifest records, over all rows, the sums of squared errors and of squared weights and the largest error. With the same
arithmetic (F32 over the same columns of sixteen blocks, F64 from there on, as `src/nvfp4/error_rows.rs`) the target that the sidecar was
made from gives the same numbers, whatever rule chose the codes; one weight that differs changes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from draftfast_vllm import nvfp4

# The order of F64 additions is all that may differ.
TOLERANCE = 1e-11
BLOCKS_PER_RUN = 16


@dataclass(frozen=True)
class Figures:
    """Over some rows; figures of disjoint rows add up."""

    sum_sq_error: float
    sum_sq_weight: float
    max_abs_error: float

    def tensor(self) -> tuple[torch.Tensor, torch.Tensor]:
        """F64: what ranks add, and what they take the largest of."""
        sums = torch.tensor([self.sum_sq_error, self.sum_sq_weight], dtype=torch.float64)
        return sums, torch.tensor([self.max_abs_error], dtype=torch.float64)

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.sum_sq_error + other.sum_sq_error,
            self.sum_sq_weight + other.sum_sq_weight,
            max(self.max_abs_error, other.max_abs_error),
        )

    def agrees(self, other: Figures) -> bool:
        """Equal but for the order of additions."""
        pairs = (
            (self.sum_sq_error, other.sum_sq_error),
            (self.sum_sq_weight, other.sum_sq_weight),
            (self.max_abs_error, other.max_abs_error),
        )
        return all(math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=0.0) for a, b in pairs)


NONE = Figures(0.0, 0.0, 0.0)


def figures(weights: torch.Tensor, codes: torch.Tensor, block_scales: torch.Tensor, global_scale: float) -> Figures:
    """Of F32 rows [n, k] against codes U8 [n, k/2] and E4M3 scales [n, k/16]."""
    if len(weights) == 0:
        return NONE
    # Squares of tiny weights would underflow: everything is scaled by a power of two near 1 / global_scale, which is exact.
    power = 2.0 ** (1 - min(max(math.frexp(global_scale)[1], -124), 127))
    x = weights * power
    difference = nvfp4.decode(codes, block_scales, global_scale * power).view_as(x) - x
    sum_error, sum_weight = sum_sq_by_column(difference), sum_sq_by_column(x)
    unscale = 1.0 / (power * power)
    return Figures(
        float(sum_error.double().sum()) * unscale,
        float(sum_weight.double().sum()) * unscale,
        float(difference.abs().max()) / power,
    )


def sum_sq_by_column(values: torch.Tensor) -> torch.Tensor:
    """Squares of F32 [n, k] summed in F32 over up to sixteen blocks that follow each other: [n, runs, 16]."""
    run = BLOCKS_PER_RUN * nvfp4.BLOCK
    padded = torch.nn.functional.pad(values, (0, -values.shape[1] % run))
    blocks = padded.view(len(values), -1, BLOCKS_PER_RUN, nvfp4.BLOCK)
    sums = torch.zeros_like(blocks[:, :, 0])
    for block in range(BLOCKS_PER_RUN):
        sums += blocks[:, :, block].square()
    return sums
