"""Our GEMV for the draft head: `kernels/gemv.cu` as torch custom ops, compiled for the GPU at hand.

It reads the sidecar's plain layout; up to eight vectors cost little more than one, and the argmax is fused. More vectors
go to vLLM's kernel, which then keeps a copy in its own layout.
"""

from __future__ import annotations

import functools

import torch
from torch.nn import Module

from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.gemv_plan import DEPTH, MAX_M, STATIC_SHARED_BYTES, Launch, choose_warps, largest_m, launches
from draftfast_vllm.kernels import VllmKernel
from draftfast_vllm.nvrtc import KERNELS, Function, Program


def shared_limit(device: int) -> int:
    """Dynamic shared memory that a block can have."""
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin - STATIC_SHARED_BYTES


@functools.cache
def functions(device: int, warps: int) -> dict[str, Function]:
    """The kernels by name, loaded on a device."""
    with torch.cuda.device(device):
        program = Program(KERNELS / "gemv.cu", [f"-DWARPS={warps}", f"-DDEPTHS={DEPTH}"])
        names = [
            f"nvfp4_{way}_{result}" for way in ("gemv2", "gemv8", "gemv_ragged") for result in ("logits", "argmax")
        ]
        found = {name: program.function(name) for name in names}
        for function in found.values():
            function.allow_shared(shared_limit(device))
        return found


def _run(
    result: str,
    weights: list[torch.Tensor],
    x: torch.Tensor,
    warps: int,
    split: int,
    outputs: list[torch.Tensor | None],
) -> None:
    launch = Launch(weights[0].shape[0], x.shape[1], x.shape[0], warps, split)
    grid = launch.grid(torch.cuda.get_device_properties(x.device).multi_processor_count)
    function = functions(x.device.index, warps)[f"{launch.kernel}_{result}"]
    function.launch(grid, warps * 32, launch.shared_bytes, [*weights, x, launch.n, launch.k, launch.m, split, *outputs])


@torch.library.custom_op("draftfast::gemv_logits", mutates_args=(), device_types="cuda")
def gemv_logits(
    codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, x: torch.Tensor, warps: int, split: int
) -> torch.Tensor:
    """F32 [M, N] = x [M, K] BF16 times the weights, M <= 8."""
    y = torch.empty(x.shape[0], codes.shape[0], dtype=torch.float32, device=x.device)
    _run("logits", [codes, scales, global_scale], x, warps, split, [y])
    return y


@gemv_logits.register_fake
def _(
    codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, x: torch.Tensor, warps: int, split: int
) -> torch.Tensor:
    return x.new_empty(x.shape[0], codes.shape[0], dtype=torch.float32)


@torch.library.custom_op("draftfast::gemv_argmax", mutates_args=("scratch",), device_types="cuda")
def gemv_argmax(
    codes: torch.Tensor,
    scales: torch.Tensor,
    global_scale: torch.Tensor,
    x: torch.Tensor,
    scratch: torch.Tensor,
    warps: int,
    split: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """F32 [M] largest logits and I32 [M] their rows. `scratch`: nine I64 zeros, zeros again afterwards."""
    values = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    rows = torch.empty(x.shape[0], dtype=torch.int32, device=x.device)
    # No ids: the kernel gives rows, and which ids those are differs from rank to rank.
    _run("argmax", [codes, scales, global_scale], x, warps, split, [None, scratch, scratch[MAX_M:], rows, values])
    return values, rows


@gemv_argmax.register_fake
def _(
    codes: torch.Tensor,
    scales: torch.Tensor,
    global_scale: torch.Tensor,
    x: torch.Tensor,
    scratch: torch.Tensor,
    warps: int,
    split: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape[0], dtype=torch.float32), x.new_empty(x.shape[0], dtype=torch.int32)


class GemvKernel:
    """The draft head's kernel for [n, k] weights and, mostly, up to `m` vectors."""

    name = "draftfast gemv"

    def __init__(self, n: int, k: int, m: int, wide: VllmKernel | None) -> None:
        limit = shared_limit(torch.cuda.current_device())
        self.warps = choose_warps(n, k, m, limit)
        self.max_m = largest_m(n, k, self.warps, limit)
        if self.max_m == 0:
            raise DraftfastError(
                f"{k} columns do not fit into {limit} bytes of shared memory", 'serve with `"backend": "vllm"`'
            )
        self.candidates = {m: launches(n, k, m, self.warps, limit) for m in range(1, self.max_m + 1)}
        self.split = {m: found[0].split for m, found in self.candidates.items()}
        self._wide = wide

    def prepare(self, layer: Module, codes: torch.Tensor, scales: torch.Tensor, global_scale: float) -> None:
        """Keeps the sidecar's bytes as they are."""
        scale = torch.tensor([global_scale], dtype=torch.float32, device=codes.device)
        scratch = torch.zeros(MAX_M + 1, dtype=torch.int64, device=codes.device)
        for name, tensor in (("codes", codes.contiguous()), ("block_scales", scales.view(torch.uint8).contiguous()),
                             ("global_scale", scale), ("scratch", scratch)):  # fmt: skip
            layer.register_buffer(name, tensor, persistent=False)
        if self._wide is not None:
            self._wide.prepare(layer, codes.clone(), scales.clone(), global_scale)

    def apply(self, layer: Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[M, N] in the dtype of x."""
        if len(x) > self.max_m and self._wide is not None:
            return self._wide.apply(layer, x, bias)
        weights = (layer.codes, layer.block_scales, layer.global_scale)
        parts = [gemv_logits(*weights, part, self.warps, self.split[len(part)]) for part in self._parts(x)]
        return torch.cat(parts).to(x.dtype)

    def argmax(self, layer: Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Largest logit and its row, for each vector."""
        if len(x) > self.max_m and self._wide is not None:
            return self._wide.argmax(layer, x)
        weights = (layer.codes, layer.block_scales, layer.global_scale)
        found = [
            gemv_argmax(*weights, part, layer.scratch, self.warps, self.split[len(part)]) for part in self._parts(x)
        ]
        values, rows = (part[0] if len(part) == 1 else torch.cat(part) for part in zip(*found, strict=True))
        return values, rows.long()

    def _parts(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.contiguous().split(self.max_m)
