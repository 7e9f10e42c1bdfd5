"""Which kernel multiplies: `auto` times ours and vLLM's on this GPU at start-up, and takes the faster.

A draft step multiplies one vector a request; the first pass after a verification has all that were verified. So the draft
head is timed for one vector, and a linear for one to eight: up to how many it is ours.
"""

from __future__ import annotations

import functools
import logging
import statistics
from collections.abc import Callable

import torch
from torch.nn import Module

from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.gemv import GemvKernel
from draftfast_vllm.gemv_plan import MAX_M
from draftfast_vllm.head import DraftHead
from draftfast_vllm.kernels import DecodedKernel, Kernel, VllmKernel

logger = logging.getLogger("vllm.draftfast")
N_CALLS, N_REPLAYS = 20, 7
TIMED_M = (1, 2, 4, MAX_M)


def head_kernel(
    backend: str, codes: torch.Tensor, scales: torch.Tensor, global_scale: float, dtype: torch.dtype, max_num_seqs: int
) -> Kernel:
    """A kernel for the draft head; `DraftHead` prepares it."""
    n, k = codes.shape[0], 2 * codes.shape[1]
    ours = gemv_kernel(backend, "the draft head", codes, dtype, max_num_seqs > MAX_M)
    if not isinstance(ours, GemvKernel) or backend == "draftfast":
        return ours
    theirs = VllmKernel()
    heads = [DraftHead(kernel, codes.clone(), scales.clone(), global_scale, dtype) for kernel in (ours, theirs)]
    x, ids = torch.randn(1, k, dtype=dtype, device=codes.device), torch.arange(n, device=codes.device).int()
    time_ours, time_theirs = (graph_us(lambda head=head: head.top(x, ids), of=min) for head in heads)
    logger.info("draftfast: draft head of %d x %d: draftfast gemv %.1f us, %s %.1f us", n, k, time_ours, theirs.name, time_theirs)  # fmt: skip
    return ours if time_ours <= time_theirs else VllmKernel()


def fill_linear(
    backend: str, name: str, layer: Module, codes: torch.Tensor, scales: torch.Tensor, global_scale: float
) -> Kernel:
    """A kernel for a linear, with the weights in its layout on the layer; two layouts where ours takes part."""
    kernel = gemv_kernel(backend, f"`{name}`", codes, layer.params_dtype, True)
    kernel.prepare(layer, codes, scales, global_scale)
    if not isinstance(kernel, GemvKernel) or backend == "draftfast":
        return kernel
    x = torch.randn(MAX_M, 2 * codes.shape[1], dtype=layer.params_dtype, device=codes.device)
    times = linear_us(kernel, layer, x)
    kernel.max_m = most_vectors(times)
    row = ", ".join(f"{m}: {ours:.1f} / {theirs:.1f}" for m, (ours, theirs) in times.items())
    logger.info("draftfast: `%s` of %d x %d, vectors: us by draftfast gemv / %s, %s; ours up to %d", name, len(codes), x.shape[1], kernel.wide.name, row, kernel.max_m)  # fmt: skip
    if kernel.max_m == 0:
        kernel.give_up(layer)
        return kernel.wide
    return kernel


def gemv_kernel(backend: str, what: str, codes: torch.Tensor, dtype: torch.dtype, can_be_wide: bool) -> Kernel:
    """Ours, where the backend and the device allow it; the device decides about the rest."""
    if not codes.is_cuda:
        if backend == "draftfast":
            raise DraftfastError("backend `draftfast` needs a CUDA device", "leave `backend` at `auto`")
        return DecodedKernel()
    if backend == "vllm":
        return VllmKernel()
    try:
        if dtype != torch.bfloat16:
            raise DraftfastError(
                f"backend `draftfast` multiplies bfloat16, and the model is {dtype}", "leave `backend` at `auto`"
            )
        return GemvKernel(codes.shape[0], 2 * codes.shape[1], codes.device, VllmKernel() if can_be_wide else None)
    except DraftfastError as error:
        if backend == "draftfast":
            raise
        logger.warning("draftfast: %s takes vLLM's kernel: %s", what, error)
        return VllmKernel()


def most_vectors(times: dict[int, tuple[float, float]]) -> int:
    """Ours is taken up to the last number of vectors before the first for which theirs is faster."""
    most = 0
    for m, (ours, theirs) in times.items():
        if ours > theirs:
            break
        most = m
    return most


def linear_us(kernel: GemvKernel, layer: Module, x: torch.Tensor) -> dict[int, tuple[float, float]]:
    """Times of our product and of vLLM's by number of vectors, with weights that are not in the L2 cache: a draft step reads
    more than it holds."""
    n_bytes = 2 * torch.cuda.get_device_properties(x.device).L2_cache_size
    evicting = torch.empty(n_bytes // 4, dtype=torch.float32, device=x.device)

    def us(call: Callable[[], object]) -> float:
        return graph_us(lambda: (evicting.sum(), call()), 8, 5, of=min)

    nothing, both = us(lambda: None), (kernel, kernel.wide)
    return {m: tuple(us(functools.partial(k.apply, layer, x[:m])) - nothing for k in both) for m in TIMED_M}


def graph_us(
    call: Callable[[], object],
    n_calls: int = N_CALLS,
    n_replays: int = N_REPLAYS,
    of: Callable[[list[float]], float] = statistics.median,
) -> float:
    """Time of one call, from replays of a CUDA graph of `n_calls`: as it will be run, without the launches of Python.
    `of` them: the median; the smallest, where other processes use the GPU too."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(n_calls):
            call()
    times = []
    for _ in range(n_replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / n_calls)
    return of(times)
