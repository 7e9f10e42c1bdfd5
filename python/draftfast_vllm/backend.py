"""The kernel of the draft head: `auto` times both on this GPU at start-up and takes the faster."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable

import torch

from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.gemv import GemvKernel
from draftfast_vllm.gemv_plan import MAX_M
from draftfast_vllm.head import DraftHead
from draftfast_vllm.kernels import DecodedKernel, Kernel, VllmKernel

logger = logging.getLogger("vllm.draftfast")
N_CALLS, N_REPLAYS = 20, 7


def head_kernel(
    backend: str, codes: torch.Tensor, scales: torch.Tensor, global_scale: float, dtype: torch.dtype, max_num_seqs: int
) -> Kernel:
    """A kernel for these weights. Their device decides: a CPU has one way only."""
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
        gemv = GemvKernel(codes.shape[0], 2 * codes.shape[1], VllmKernel() if max_num_seqs > MAX_M else None)
        time_ours = time_us(DraftHead(gemv, codes, scales, global_scale, dtype), 1)
    except DraftfastError as error:
        if backend == "draftfast":
            raise
        logger.warning("draftfast: the draft head takes vLLM's kernel: %s", error)
        return VllmKernel()
    if backend == "draftfast":
        return gemv
    theirs = VllmKernel()
    time_theirs = time_us(DraftHead(theirs, codes.clone(), scales.clone(), global_scale, dtype), 1)
    logger.info("draftfast: draft head of %d x %d: %s %.1f us, %s %.1f us", codes.shape[0], 2 * codes.shape[1],
                gemv.name, time_ours, theirs.name, time_theirs)  # fmt: skip
    return gemv if time_ours <= time_theirs else VllmKernel()


def time_us(head: DraftHead, m: int) -> float:
    """Median time of one argmax."""
    x = torch.randn(m, head.input_size_per_partition, dtype=head.params_dtype, device="cuda")
    return graph_us(lambda: head.argmax(x))


def graph_us(call: Callable[[], object], n_calls: int = N_CALLS, n_replays: int = N_REPLAYS) -> float:
    """Median time of one call, from replays of a CUDA graph of `n_calls`: as it will be run, without the launches of Python."""
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
    return statistics.median(times)
