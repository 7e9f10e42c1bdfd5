"""How long reading, checking and placing a sidecar takes, step by step: `load_time.py MODEL SIDECAR` (of `synth --scale full`).

With a GPU: lm_head lies there, as in an engine, and the packed weights go there and into the layout of vLLM's kernel and of
ours. The sum leaves out what is done once a machine: compiling our kernel, which vLLM's cache keeps.
Processor seconds beside the clock's, because a shared machine shows other people's work too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import Module

from draftfast_vllm import checks, identity, kernels, linears
from draftfast_vllm.backend import fill_linear, head_kernel
from draftfast_vllm.sidecar import HEAD, Packed, Sidecar
from draftfast_vllm.tensor_file import TensorFile

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
total = 0.0


def timed(what: str, step: Callable[[], Any], counts: bool = True) -> Any:
    """Runs a step and prints what it took."""
    global total
    wall, processor = time.perf_counter(), time.process_time()
    result = step()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    total += wall if counts else 0.0
    print(f"{what:52} {wall:7.3f} s  ({processor:6.3f} s of processor)" + ("" if counts else ", not in the sum"))
    return result


def place(sidecar: Sidecar, linear: Packed) -> Module:
    """A linear's weights in the layouts of the kernels that are the fastest for it."""
    layer = Module()
    layer.params_dtype = torch.bfloat16
    layer.output_size_per_partition, layer.input_size_per_partition = linear.n, linear.k
    packed = (*linears._whole(sidecar, linear, torch.device(DEVICE)), linear.global_scale)
    kernel = fill_linear("auto", linear.name, layer, *packed)
    print(f"{linear.name} goes by {kernel.name}")
    return layer


def place_head(sidecar: Sidecar) -> None:
    """The head, after both kernels were timed."""
    from draftfast_vllm.head import DraftHead

    packed = (*linears._whole(sidecar, sidecar.head, torch.device(DEVICE)), sidecar.head.global_scale)
    kernel = head_kernel("auto", *packed, torch.bfloat16, 8)
    DraftHead(kernel, *packed, torch.bfloat16)
    print(f"the head goes by {kernel.name}")


def main(model: Path, path: Path) -> None:
    name = Sidecar.open(path).target["head_tensor"]
    file = TensorFile(identity.shard_of(model, name))
    weight = torch.frombuffer(file.bytes_of(name), dtype=torch.bfloat16).view(file.entries[name].shape).to(DEVICE)
    head = SimpleNamespace(weight=weight)
    if DEVICE == "cuda":
        from draftfast_vllm.gemv import functions

        timed("compiling our kernel, or reading it from the cache", lambda: functions(0), counts=False)
        small = Packed("", 64, 64, 1.0)
        layer = Module()
        layer.params_dtype, layer.output_size_per_partition, layer.input_size_per_partition = (
            torch.bfloat16,
            small.n,
            small.k,
        )
        packed = (
            torch.zeros(64, 32, dtype=torch.uint8, device=DEVICE),
            torch.zeros(64, 4, device=DEVICE).to(torch.float8_e4m3fn),
        )
        timed(
            "vLLM's kernel for the first time",
            lambda: kernels.VllmKernel().prepare(layer, *packed, 1.0),
            counts=False,
        )
    sidecar = timed("open: sums, manifest, header, ids", lambda: Sidecar.open(path))
    timed("sha256 of drafter.safetensors", sidecar.verify_drafter)
    timed("NaN block scales", sidecar.check_scales)
    timed("tokenizer", lambda: checks.check_tokenizer(sidecar, model))
    print(timed("lm_head against the draft head", lambda: identity.check_head(sidecar, head, model, 0)))
    layers = timed(
        "placing the linears, both kernels timed", lambda: [place(sidecar, linear) for linear in sidecar.linears]
    )
    timed("placing the head", lambda: place_head(sidecar))
    print(
        f"{sidecar.head.n} x {sidecar.head.k} head, {len(layers)} linears, {HEAD} of {sidecar.n_real_rows} ids on {DEVICE}: {total:.2f} s in all"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
