"""Our products on a CPU: the ops, the choice between two layouts and what a compiler sees of it are the plugin's own, and the
reference decoder stands for the kernels.
"""

from __future__ import annotations

import torch

from draftfast_vllm import backend, gemv, nvfp4
from draftfast_vllm.gemv import GemvKernel
from draftfast_vllm.kernels import DecodedKernel, Kernel

launches: list[tuple[str, int]] = []
"""What was multiplied, and by how many vectors."""


def enable() -> None:
    """For this process: `"backend": "draftfast"` works without a GPU."""
    gemv._run, gemv.plan, gemv.most_blocks = run, lambda *_: None, lambda _: 1
    backend.gemv_kernel = gemv_kernel
    for op in (gemv.linear, gemv.argmax):
        op.register_kernel("cpu")(op._init_fn)


def gemv_kernel(name: str, what: str, codes: torch.Tensor, dtype: torch.dtype, can_be_wide: bool) -> Kernel:
    """As `backend.gemv_kernel` on a GPU, but that the head has both layouts too, for `probe.py` to compare."""
    return GemvKernel(codes.shape[0], 2 * codes.shape[1], codes.device, DecodedKernel())


def run(
    result: str,
    weights: list[torch.Tensor],
    x: torch.Tensor,
    shared: list[torch.Tensor],
    outputs: list[torch.Tensor],
) -> None:
    """As `gemv._run`: F32 sums of the decoded weights."""
    codes, scales, global_scale = weights
    launches.append((result, len(x)))
    y = x.float() @ nvfp4.decode(codes, scales.view(torch.float8_e4m3fn), global_scale).T
    if result == "layer":
        outputs[0].copy_(y)
        return
    best = y.max(-1)
    outputs[0].copy_(shared[0][best.indices])
    outputs[1].copy_(best.values)
