"""Our GEMV as torch custom ops, compiled for the GPU at hand: `kernels/gemv.cu`, `gemv_mma.cu`, `gemv_mma_few.cu`.

It reads the sidecar's plain layout, and up to eight vectors cost little more than one; a draft head's argmax is fused. More
vectors go to vLLM's kernel, which then keeps a copy of the weights in its own layout.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

import torch
from torch.nn import Module, Parameter

from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.gemv_plan import (
    CLUSTER,
    FEW_WARPS,
    FIXED_SHARED_BYTES,
    KERNELS,
    MAX_M,
    NEED_CLUSTERS,
    Card,
    Plan,
    make_plan,
)
from draftfast_vllm.kernels import Kernel
from draftfast_vllm.nvrtc import SOURCES, Function, Program, architecture, cached_cubin

RESULTS = ("layer", "argmax")


@functools.cache
def card(device: int) -> Card:
    """What a plan needs to know of a device."""
    found = torch.cuda.get_device_properties(device)
    few = functions(device).get("nvfp4_mma_few_layer")
    return Card(
        n_multiprocessors=found.multi_processor_count,
        block_bytes=block_bytes(device),
        gemv_blocks=2 if found.major >= 9 else 1,
        clusters=few.most_clusters(CLUSTER, FEW_WARPS * 32, block_bytes(device)) if few else 0,
    )


def block_bytes(device: int) -> int:
    """Dynamic shared memory that a block may have."""
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin - FIXED_SHARED_BYTES


def most_blocks(device: int) -> int:
    """No plan has a larger grid."""
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def functions(device: int) -> dict[str, Function]:
    """The kernels by name, loaded on a device: those that it can run."""
    found = {}
    with torch.cuda.device(device), ThreadPoolExecutor() as pool:
        has_clusters = torch.cuda.get_device_capability() >= (9, 0)
        sources = [source for source in KERNELS if has_clusters or source not in NEED_CLUSTERS]
        options = [f"--gpu-architecture={architecture()}"]
        paths = [SOURCES / source.replace(".cu", "_layer.cu") for source in sources]
        for source, cubin in zip(sources, pool.map(lambda path: cached_cubin(path, options), paths), strict=True):
            program = Program(cubin)
            for name in (f"{name}_{result}" for name in KERNELS[source] for result in RESULTS):
                found[name] = program.function(name)
                found[name].allow_shared(block_bytes(device))
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


def _run(
    result: str,
    weights: list[torch.Tensor],
    x: torch.Tensor,
    shared: list[torch.Tensor],
    outputs: list[torch.Tensor],
) -> None:
    """Launches for the rows of x, to which those of `outputs` belong; `shared` is the same for all."""
    x = x.contiguous()
    if x.data_ptr() % 16:
        x = x.clone()
    (n, _), (m, k) = weights[0].shape, x.shape
    chosen = plan(n, k, min(m, MAX_M), x.device.index)
    function = functions(x.device.index)[f"{chosen.kernel}_{result}"]
    for first in range(0, m, chosen.m):
        part = slice(first, min(first + chosen.m, m))
        # The last number: what stands before it in the stream is no such kernel.
        numbers = [n, k, part.stop - first, chosen.split, 0]
        arguments = [*weights, x[part], *numbers, *shared, *(output[part] for output in outputs)]
        function.launch(chosen.grid, chosen.warps * 32, chosen.shared_bytes, arguments)


# Layers by the address of their codes: an op takes tensors, and vLLM's kernel wants the layer.
_layers: WeakValueDictionary[int, Module] = WeakValueDictionary()


@torch.library.custom_op("draftfast::linear", mutates_args=(), device_types="cuda")
def linear(codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """BF16 [..., N] = x [..., K] BF16 times the weights, by our kernels or, where there are more vectors than they are
    good for, by vLLM's. The op is opaque to a compiler, so a captured graph has what suits its own number of vectors."""
    layer, rows = _layers[codes.data_ptr()], x.reshape(-1, x.shape[-1])
    kernel: GemvKernel = layer.draftfast_kernel
    if kernel.takes(len(rows)):
        y = torch.empty(len(rows), codes.shape[0], dtype=torch.bfloat16, device=x.device)
        if len(rows):
            _run("layer", [codes, scales, global_scale], rows, [], [y])
    else:
        y = kernel.wide.apply(layer, rows)
    return y.view(*x.shape[:-1], codes.shape[0])


@linear.register_fake
def _(codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], codes.shape[0])


@torch.library.custom_op("draftfast::argmax", mutates_args=("scratch",), device_types="cuda")
def argmax(
    codes: torch.Tensor,
    scales: torch.Tensor,
    global_scale: torch.Tensor,
    x: torch.Tensor,
    token_ids: torch.Tensor,
    scratch: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """F32 [M] largest logits and I32 [M] their ids, of I32 [N] `token_ids`. `scratch`: I64 zeros, one for each
    vector and block, zeros again afterwards."""
    values = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    ids = torch.empty(x.shape[0], dtype=torch.int32, device=x.device)
    _run("argmax", [codes, scales, global_scale], x, [token_ids, scratch], [ids, values])
    return values, ids


@argmax.register_fake
def _(
    codes: torch.Tensor,
    scales: torch.Tensor,
    global_scale: torch.Tensor,
    x: torch.Tensor,
    token_ids: torch.Tensor,
    scratch: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape[0], dtype=torch.float32), x.new_empty(x.shape[0], dtype=torch.int32)


class GemvKernel:
    """For up to `max_m` vectors; `wide` is for more. Without it more take several launches."""

    def __init__(self, n: int, k: int, device: torch.device, wide: Kernel | None) -> None:
        plan(n, k, 1, device.index)
        self.wide, self.max_m = wide, MAX_M

    @property
    def name(self) -> str:
        """For the log."""
        return "draftfast gemv" + (f" with {self.wide.name} (in both layouts)" if self.wide else "")

    def takes(self, m: int) -> bool:
        """Whether this many vectors are ours."""
        return self.wide is None or m <= self.max_m

    def prepare(self, layer: Module, codes: torch.Tensor, scales: torch.Tensor, global_scale: float) -> None:
        """Keeps the sidecar's bytes as they are."""
        if self.wide is not None:
            self.wide.prepare(layer, codes.clone(), scales.clone(), global_scale)
        for name, tensor in (("codes", codes.contiguous()), ("block_scales", scales.view(torch.uint8).contiguous())):
            layer.register_parameter(name, Parameter(tensor, requires_grad=False))
        scale = torch.tensor([global_scale], dtype=torch.float32, device=codes.device)
        layer.register_buffer("global_scale", scale, persistent=False)
        scratch = torch.zeros(MAX_M * most_blocks(codes.device.index), dtype=torch.int64, device=codes.device)
        layer.register_buffer("scratch", scratch, persistent=False)
        layer.draftfast_kernel = self
        _layers[layer.codes.data_ptr()] = layer

    def give_up(self, layer: Module) -> None:
        """Leaves the layer to `wide` alone."""
        del _layers[layer.codes.data_ptr()]
        for name in ("codes", "block_scales", "global_scale", "scratch", "draftfast_kernel"):
            delattr(layer, name)

    def apply(self, layer: Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[M, N] in the dtype of x."""
        y = torch.ops.draftfast.linear(layer.codes, layer.block_scales, layer.global_scale, x)
        return y if bias is None else y + bias

    def top(self, layer: Module, x: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Largest logit and its id, for each vector."""
        if not self.takes(len(x)):
            return self.wide.top(layer, x, token_ids)
        return argmax(layer.codes, layer.block_scales, layer.global_scale, x, token_ids, layer.scratch)
