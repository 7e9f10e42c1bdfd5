"""The plugin's kernels on one GPU, without an engine: `kernels.py OUT.json`.

First whether our GEMV is right: logits and argmax against a decoder in F64, in and out of a CUDA graph, ties and NaN; linears by
both kernels behind one op, with which one for how many vectors. Then times of draft heads and MTP linears by our GEMV, by vLLM's kernel and by a BF16 product, each over enough copies of its
weights that none is left in the L2 cache.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

if importlib.util.find_spec("vllm") is None:
    # All that our GEMV asks of vLLM is where to keep its cubin.
    sys.modules["vllm"] = types.ModuleType("vllm")
    sys.modules["vllm.envs"] = sys.modules["vllm"].envs = types.SimpleNamespace(VLLM_CACHE_ROOT=tempfile.mkdtemp())

from draftfast_vllm import nvfp4
from draftfast_vllm.backend import graph_us
from draftfast_vllm.gemv import GemvKernel
from draftfast_vllm.kernels import Kernel, VllmKernel

HEADS = {"head 2560": (64_128, 2560), "head 5120": (64_128, 5120)}
LINEARS = {
    "fc": (2560, 5120),
    "qkv": (10_240, 2560),
    "o": (2560, 4096),
    "gate_up": (19_456, 2560),
    "down": (2560, 9728),
}
L2_BYTES = 300 << 20


class Layer(Module):
    """What a kernel asks of the module that holds its weights."""

    def __init__(self, kernel: Kernel, n: int, k: int, packed: tuple[torch.Tensor, torch.Tensor, float]) -> None:
        super().__init__()
        self.params_dtype, self.output_size_per_partition, self.input_size_per_partition = torch.bfloat16, n, k
        self.kernel, self.ids = kernel, ids_of(n)
        kernel.prepare(self, packed[0].clone(), packed[1].clone(), packed[2])


def random_packed(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    return nvfp4.quantize(torch.randn(n, k, device="cuda", dtype=torch.bfloat16))


def exact(packed: tuple[torch.Tensor, torch.Tensor, float], x: torch.Tensor) -> torch.Tensor:
    """F64 [M, N]."""
    rows = [
        nvfp4.decode(c, s, packed[2]).double()
        for c, s in zip(packed[0].split(8192), packed[1].split(8192), strict=True)
    ]
    return torch.cat([x.double() @ part.T for part in rows], 1)


def gemv(n: int, k: int, wide: Kernel | None = None) -> GemvKernel:
    return GemvKernel(n, k, torch.device("cuda", torch.cuda.current_device()), wide)


def ids_of(n: int) -> torch.Tensor:
    """Some ascending ids."""
    return 3 * torch.arange(n, device="cuda", dtype=torch.int32) + 1


def check(n: int, k: int, m: int) -> dict[str, Any]:
    """Relative error of the logits, and whether argmax gives the id of their first largest row, before and after a replay."""
    packed, x = random_packed(n, k), torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    layer, ids = Layer(gemv(n, k), n, k, packed), ids_of(n)
    graph_x = x.clone()
    logits, replay = captured(lambda: (layer.kernel.apply(layer, graph_x), *layer.kernel.top(layer, graph_x, ids)))
    found: dict[str, Any] = {"n": n, "k": k, "m": m, "ok": True}
    for _ in range(3):
        x = torch.randn_like(x)
        graph_x.copy_(x)
        replay()
        expected, got = exact(packed, x), layer.kernel.apply(layer, x)
        values, tokens = layer.kernel.top(layer, x, ids)
        error = float((got.double() - expected).norm() / expected.norm())
        top = expected.topk(2, dim=-1)
        # Where the best two lie within rounding either may win.
        clear = (top.values[:, 0] - top.values[:, 1]) > 1e-3 * top.values[:, 0].abs()
        right = bool((tokens == ids[top.indices[:, 0]])[clear].all()) and bool(
            ((values - top.values[:, 0]).abs() < 1e-3 * values.abs()).all()
        )
        same = torch.equal(logits[0], got) and torch.equal(logits[1], values) and torch.equal(logits[2], tokens)
        found["ok"] = found["ok"] and error < 5e-3 and right and same
        found |= {"error": error, "argmax": right, "graph": same}
    return found


def check_linear(n: int, k: int) -> dict[str, Any]:
    """One op for 1 to 40 vectors: relative errors of ours, of vLLM's kernel and of the op, in and out of a CUDA graph."""
    packed = random_packed(n, k)
    layer, alone = Layer(gemv(n, k, VllmKernel()), n, k, packed), Layer(gemv(n, k), n, k, packed)
    found: dict[str, Any] = {"n": n, "k": k, "ok": True, "worst": 0.0, "worst_of_vllm": 0.0}
    for m in (1, 2, 3, 5, 8, 9, 40):
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        expected, theirs = exact(packed, x), layer.kernel.wide.apply(layer, x)
        (in_graph,), replay = captured(lambda x=x: (layer.kernel.apply(layer, x),))
        replay()
        y = layer.kernel.apply(layer, x)
        error, their_error = (float((got.double() - expected).norm() / expected.norm()) for got in (y, theirs))
        whose = torch.equal(y, theirs if m > 8 else alone.kernel.apply(alone, x))
        found["ok"] = found["ok"] and error < 5e-3 and whose and torch.equal(in_graph, y)
        found |= {"worst": max(found["worst"], error), "worst_of_vllm": max(found["worst_of_vllm"], their_error)}
    return found


def check_ties_and_nan() -> dict[str, Any]:
    """All rows alike: the first wins. A NaN scale in one row: that row wins, as torch.argmax has it."""
    codes, scales, scale = random_packed(1, 512)
    packed = (codes.repeat(1000, 1), scales.repeat(1000, 1), scale)
    x = torch.randn(2, 512, device="cuda", dtype=torch.bfloat16)
    layer, ids = Layer(gemv(1000, 512), 1000, 512, packed), ids_of(1000)
    ties = layer.kernel.top(layer, x, ids)[1].tolist()
    layer.block_scales[700, 3] = 0x7F
    nan = layer.kernel.top(layer, x, ids)[1].tolist()
    return {"ties": ties, "nan": nan, "ok": ties == [1, 1] and nan == [2101, 2101]}


def captured(call: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """Results of a call in a CUDA graph, and its replay."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = call()
    return result, graph.replay


def time_us(calls: list[Callable[[], Any]], n_replays: int = 15) -> float:
    """Median time of one of these calls, from replays of a graph of all, twice over."""
    return graph_us(lambda: [call() for call in calls], 2, n_replays) / len(calls)


def times(n: int, k: int, head: bool) -> dict[str, Any]:
    """By kernel and number of vectors, microseconds."""
    packed = random_packed(n, k)
    n_copies = min(-(-L2_BYTES // (n * k // 2)), 40)
    layers = {"draftfast": [Layer(gemv(n, k), n, k, packed) for _ in range(n_copies)]}
    try:
        layers["vllm"] = [Layer(VllmKernel(), n, k, packed) for _ in range(n_copies)]
    except Exception as error:
        print(f"no vLLM kernel: {error!r}"[:300])
    dense = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(max(2, n_copies // 4))]
    found: dict[str, Any] = {"n": n, "k": k}
    for m in (1, 2, 4, 8):
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        row = {}
        for name, all_layers in layers.items():
            row[name] = time_us([lambda layer=layer, x=x: call(layer, x, head) for layer in all_layers])
        row["bf16"] = time_us([lambda w=w, x=x: dense_call(w, x, head) for w in dense])
        row["bytes_at_4_3_tb_s"] = n * k * 0.5625 / 4.3e6
        found[f"m{m}"] = {name: round(value, 2) for name, value in row.items()}
    return found


def call(layer: Layer, x: torch.Tensor, head: bool) -> Any:
    return layer.kernel.top(layer, x, layer.ids) if head else layer.kernel.apply(layer, x)


def dense_call(weight: torch.Tensor, x: torch.Tensor, head: bool) -> torch.Tensor:
    y = torch.nn.functional.linear(x, weight)
    return y.argmax(-1) if head else y


@torch.inference_mode()
def main(out: Path) -> None:
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}

    def step(name: str, work: Callable[[], Any]) -> None:
        try:
            found[name] = work()
        except Exception as error:
            found[name] = {"error": repr(error)[:500]}
        print(name, found[name], flush=True)
        out.write_text(json.dumps(found, indent=1))

    step("ties and NaN", check_ties_and_nan)
    for n, k in ((64_128, 2560), (4096, 5120), (1000, 2576), (33, 256), (17, 64)):
        for m in (1, 2, 3, 8):
            step(f"right {n} x {k}, {m}", lambda n=n, k=k, m=m: check(n, k, m))
    for name, (n, k) in LINEARS.items():
        step(f"right {name}", lambda n=n, k=k: check_linear(n, k))
    for name, (n, k) in (HEADS | LINEARS).items():
        step(f"times {name}", lambda name=name, n=n, k=k: times(n, k, name in HEADS))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
