"""How long reading and checking a sidecar takes, step by step: `load_time.py MODEL SIDECAR` (for example of `synth --scale full`).

What an engine adds is vLLM's own repacking of 9 matrices on the GPU, and compiling our kernel once (kept in vLLM's cache).
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

from draftfast_vllm import checks, linears
from draftfast_vllm.sidecar import HEAD, Sidecar
from draftfast_vllm.tensor_file import TensorFile


def timed(what: str, step: Callable[[], Any]) -> Any:
    """Runs a step and prints what it took."""
    wall, processor = time.perf_counter(), time.process_time()
    result = step()
    print(f"{what:50} {time.perf_counter() - wall:7.3f} s  ({time.process_time() - processor:6.3f} s of processor)")
    return result


def main(model: Path, path: Path) -> None:
    sidecar = timed("open: sums, manifest, header, ids", lambda: Sidecar.open(path))
    name = sidecar.target["head_tensor"]
    file = TensorFile(checks._shard_of(model, name))
    weight = torch.frombuffer(file.bytes_of(name), dtype=torch.bfloat16).view(file.entries[name].shape)
    head = SimpleNamespace(weight=weight)
    timed("sha256 of drafter.safetensors", sidecar.verify_drafter)
    timed("NaN block scales", sidecar.check_scales)
    timed("tokenizer", lambda: checks.check_tokenizer(sidecar, model))
    print(timed("lm_head against the draft head", lambda: checks.check_head(sidecar, head, model, 0)))
    timed("copying every packed tensor", lambda: [linears.tensor(sidecar, f"{linear.name}.{part}").clone()
                                                  for linear in (sidecar.head, *sidecar.linears) for part in ("weight", "weight_scale")])  # fmt: skip
    timed("sha256 of lm_head in the checkpoint (GPTQ only)", lambda: checks._check_head_sha256(sidecar, model))
    print(
        f"{sidecar.head.n} x {sidecar.head.k} head, {len(sidecar.linears)} linears, {HEAD} of {sidecar.n_real_rows} ids"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
