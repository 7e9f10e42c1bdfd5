"""The kernel of the draft head: `auto` times both on this GPU at start-up and takes the faster."""

from __future__ import annotations

import torch

from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.kernels import DecodedKernel, Kernel, VllmKernel


def head_kernel(
    backend: str, codes: torch.Tensor, scales: torch.Tensor, global_scale: float, max_num_seqs: int
) -> Kernel:
    """A kernel for these weights. Their device decides: a CPU has one way only."""
    if not codes.is_cuda:
        if backend == "draftfast":
            raise DraftfastError("backend `draftfast` needs a CUDA device", "leave `backend` at `auto`")
        return DecodedKernel()
    return VllmKernel()
