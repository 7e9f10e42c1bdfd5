"""Our GEMV for the draft head: `kernels/gemv.cu` and `gemv_mma.cu` as torch custom ops, compiled for the GPU at hand.

It reads the sidecar's plain layout; up to eight vectors cost little more than one, and the argmax is fused. More vectors
go to vLLM's kernel, which then keeps a copy in its own layout.
"""

from __future__ import annotations

import functools

import torch
from torch.nn import Module, Parameter

from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.gemv_plan import FIXED_SHARED_BYTES, KERNELS, MAX_M, Card, Plan, make_plan
from draftfast_vllm.kernels import VllmKernel
from draftfast_vllm.nvrtc import SOURCES, Function, Program


@functools.cache
def card(device: int) -> Card:
    """What a plan needs to know of a device."""
    found = torch.cuda.get_device_properties(device)
    return Card(
        n_multiprocessors=found.multi_processor_count,
        block_bytes=found.shared_memory_per_block_optin - FIXED_SHARED_BYTES,
        gemv_blocks=2 if found.major >= 9 else 1,
    )


@functools.cache
def functions(device: int) -> dict[str, Function]:
    """The kernels by name, loaded on a device."""
    found = {}
    with torch.cuda.device(device):
        for source, names in KERNELS.items():
            program = Program(SOURCES / source)
            for name in (f"{name}_{result}" for name in names for result in ("logits", "argmax")):
                found[name] = program.function(name)
                found[name].allow_shared(card(device).block_bytes)
    return found


@functools.cache
def plan(n: int, k: int, m: int, device: int) -> Plan:
    """The launch for this shape; an error if one vector does not fit the card's shared memory."""
    found = make_plan(n, k, m, card(device))
    if found is None:
        raise DraftfastError(
            f"one vector of {k} columns does not fit the shared memory of this GPU", 'serve with `"backend": "vllm"`'
        )
    return found


def _run(result: str, weights: list[torch.Tensor], x: torch.Tensor, outputs: list[torch.Tensor | None]) -> None:
    n, k, m = weights[0].shape[0], x.shape[1], x.shape[0]
    chosen = plan(n, k, m, x.device.index)
    function = functions(x.device.index)[f"{chosen.kernel}_{result}"]
    # The last number: what stands before it in the stream is no such kernel.
    arguments = [*weights, x, n, k, m, chosen.split, 0, *outputs]
    function.launch(chosen.grid, chosen.warps * 32, chosen.shared_bytes, arguments)


@torch.library.custom_op("draftfast::gemv_logits", mutates_args=(), device_types="cuda")
def gemv_logits(codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """F32 [M, N] = x [M, K] BF16 times the weights; M no more than one launch takes."""
    y = torch.empty(x.shape[0], codes.shape[0], dtype=torch.float32, device=x.device)
    _run("logits", [codes, scales, global_scale], x, [y])
    return y


@gemv_logits.register_fake
def _(codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], codes.shape[0], dtype=torch.float32)


@torch.library.custom_op("draftfast::gemv_argmax", mutates_args=("scratch",), device_types="cuda")
def gemv_argmax(
    codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, x: torch.Tensor, scratch: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """F32 [M] largest logits and I32 [M] their rows. `scratch`: I64 zeros, one for each
    vector and block, zeros again afterwards."""
    values = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    rows = torch.empty(x.shape[0], dtype=torch.int32, device=x.device)
    # No ids: the kernel gives rows, and which ids those are differs from rank to rank.
    _run("argmax", [codes, scales, global_scale], x, [None, scratch, rows, values])
    return values, rows


@gemv_argmax.register_fake
def _(
    codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, x: torch.Tensor, scratch: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape[0], dtype=torch.float32), x.new_empty(x.shape[0], dtype=torch.int32)


class GemvKernel:
    """The draft head's kernel for [n, k] weights. `wide` takes batches of more than eight vectors, where there can be any."""

    name = "draftfast gemv"

    def __init__(self, n: int, k: int, wide: VllmKernel | None) -> None:
        self.max_m = plan(n, k, MAX_M, torch.cuda.current_device()).m
        self._wide = wide

    def prepare(self, layer: Module, codes: torch.Tensor, scales: torch.Tensor, global_scale: float) -> None:
        """Keeps the sidecar's bytes as they are."""
        for name, tensor in (("codes", codes.contiguous()), ("block_scales", scales.view(torch.uint8).contiguous())):
            layer.register_parameter(name, Parameter(tensor, requires_grad=False))
        scale = torch.tensor([global_scale], dtype=torch.float32, device=codes.device)
        layer.register_buffer("global_scale", scale, persistent=False)
        most_blocks = 2 * card(codes.device.index).n_multiprocessors
        scratch = torch.zeros(MAX_M * most_blocks, dtype=torch.int64, device=codes.device)
        layer.register_buffer("scratch", scratch, persistent=False)
        if self._wide is not None:
            self._wide.prepare(layer, codes.clone(), scales.clone(), global_scale)

    def apply(self, layer: Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[M, N] in the dtype of x."""
        if len(x) > MAX_M and self._wide is not None:
            return self._wide.apply(layer, x, bias)
        weights = (layer.codes, layer.block_scales, layer.global_scale)
        return torch.cat([gemv_logits(*weights, part) for part in self._parts(x)]).to(x.dtype)

    def argmax(self, layer: Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Largest logit and its row, for each vector."""
        if len(x) > MAX_M and self._wide is not None:
            return self._wide.argmax(layer, x)
        weights = (layer.codes, layer.block_scales, layer.global_scale)
        found = [gemv_argmax(*weights, part, layer.scratch) for part in self._parts(x)]
        values, rows = (part[0] if len(part) == 1 else torch.cat(part) for part in zip(*found, strict=True))
        return values, rows.long()

    def _parts(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.contiguous().split(self.max_m)
