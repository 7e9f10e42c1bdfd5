"""Does this sidecar belong to this target? Asked before the first request, answered in well under a second.

Draft-head rows are lm_head rows rounded to nearest, so under the sidecar's own scales the target's rows must give the
sidecar's codes, every one: a head that differs by one per cent already changes one code in twenty. Where codes were
not rounded to nearest (`--rounding gptq`), or the engine has converted the head from BF16, the tensor in the target's
checkpoint is hashed instead.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from draftfast_vllm import nvfp4
from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.linears import tensor
from draftfast_vllm.sidecar import HEAD, Sidecar
from draftfast_vllm.tensor_file import TensorFile

REBUILD = "build the sidecar from this target: `draftfast build TARGET --corpus TEXT -o DIR`"
# A CPU compares this many rows, evenly spaced; a GPU compares all of them.
N_CPU_ROWS = 512
SLAB_ROWS = 8192


def target_head(target: Module) -> Module:
    """The target's lm_head, unquantized and without LoRA; an error says which of these it is not."""
    head = getattr(target, "lm_head", None)
    if head is None:
        raise DraftfastError(f"the target `{type(target).__name__}` has no `lm_head`")
    for module in (head, getattr(target, "logits_processor", None)):
        if type(module).__name__.endswith("WithLoRA"):
            raise DraftfastError(
                "the target's lm_head takes LoRA adapters, and the draft head is made of its base weights",
                "serve adapters that leave `lm_head` alone, with `lm_head` out of the LoRA target modules",
            )
    weight = getattr(head, "weight", None)
    if weight is None or weight.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        found = "missing" if weight is None else str(weight.dtype).removeprefix("torch.")
        raise DraftfastError(
            f"the target's lm_head is already quantized (its weight is {found}), expected bfloat16",
            "serve a target whose lm_head is not quantized, or go without the sidecar",
        )
    return head


def check_config(sidecar: Sidecar, hf_text_config: Any) -> None:
    """Hidden size and vocabulary of the loaded target against the manifest's."""
    found = {"hidden_size": hf_text_config.hidden_size, "target_rows": hf_text_config.vocab_size}
    for key, value in found.items():
        if value != sidecar.target[key]:
            raise DraftfastError(
                f"`{sidecar.path}` serves a target with {key} {sidecar.target[key]}, and the loaded one has {value}",
                REBUILD,
            )
    if sidecar.head.k != hf_text_config.hidden_size:
        raise DraftfastError(
            f"tensor `{HEAD}.weight` of the sidecar has {sidecar.head.k} columns, expected {hf_text_config.hidden_size}",
            REBUILD,
        )


def check_tokenizer(sidecar: Sidecar, model_dir: Path | None) -> None:
    """The target's tokenizer.json against the manifest's digest, where both are there."""
    recorded = sidecar.target.get("files", {}).get("tokenizer.json", {})
    path = model_dir / "tokenizer.json" if model_dir else None
    if recorded.get("covers") != "file" or path is None or not path.is_file():
        return
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != recorded["sha256"]:
        raise DraftfastError(
            f"`{path}` has sha256 {found}, and the sidecar was built for {recorded['sha256']}", REBUILD
        )


def check_head(sidecar: Sidecar, head: Module, model_dir: Path | None, tp_rank: int) -> str:
    """Compares lm_head and draft head; returns, for the log, how."""
    n_differing, n_rows = _differing_codes(sidecar, head)
    if n_differing == 0:
        return f"{n_rows} rows of lm_head give the sidecar's codes"
    rounded_to_nearest = sidecar.manifest.get("recipe", {}).get("rounding") != "gptq"
    if rounded_to_nearest and head.weight.dtype == torch.bfloat16:
        raise DraftfastError(
            f"`{sidecar.path}` was built for another lm_head: {n_differing} of {n_rows * sidecar.head.k} codes differ from this target's",
            REBUILD,
        )
    if tp_rank == 0:
        _check_head_sha256(sidecar, model_dir)
    return "the sha256 of lm_head in the checkpoint is the sidecar's"


def _differing_codes(sidecar: Sidecar, head: Module) -> tuple[int, int]:
    """Codes that differ, and rows compared, among the rows that this rank's share of lm_head holds."""
    weight = head.weight
    indices = getattr(head, "shard_indices", None)
    begin = indices.org_vocab_start_index if indices else 0
    end = indices.org_vocab_end_index if indices else weight.shape[0]
    ids = torch.frombuffer(sidecar.token_ids, dtype=torch.int64)
    rows = torch.nonzero((ids >= begin) & (ids < end)).squeeze(1)
    if not weight.is_cuda and len(rows) > N_CPU_ROWS:
        rows = rows[torch.linspace(0, len(rows) - 1, N_CPU_ROWS).long()]
    codes, scales = tensor(sidecar, f"{HEAD}.weight"), tensor(sidecar, f"{HEAD}.weight_scale")
    shift = row_shift(sidecar).to(weight.device)
    n_differing = torch.zeros((), dtype=torch.int64, device=weight.device)
    for slab in rows.split(SLAB_ROWS):
        expected = codes[slab].to(weight.device)
        block_scales = scales[slab].to(weight.device).view(torch.float8_e4m3fn)
        own_rows = weight[(ids[slab] - begin).to(weight.device)].float() - shift
        found = nvfp4.nearest_codes(own_rows, block_scales, sidecar.head.global_scale)
        n_differing += _count_differing(found, expected)
    return int(n_differing), len(rows)


def row_shift(sidecar: Sidecar) -> torch.Tensor:
    """F32 [H]: what `--row-shift` took off every row of the draft head before it was quantized; zeros if nothing."""
    if not sidecar.manifest.get("recipe", {}).get("row_shift"):
        return torch.zeros(sidecar.head.k)
    name = f"{HEAD}.row_shift"
    entry = sidecar.file.entries.get(name)
    if entry is None or entry.dtype != "F32" or entry.shape != (sidecar.head.k,):
        raise DraftfastError(f"`{sidecar.file.path}` has no tensor `{name}` of F32 [{sidecar.head.k}]", REBUILD)
    return torch.frombuffer(bytearray(sidecar.file.bytes_of(name)), dtype=torch.float32)


def check_shift(sidecar: Sidecar, processor: Module) -> None:
    """A shift moves every logit of a state alike, which a soft cap would not carry through."""
    if bool(row_shift(sidecar).any()) and getattr(processor, "soft_cap", None) is not None:
        raise DraftfastError(
            "the draft head was built with `--row-shift`, and the drafter caps its logits", "build it without"
        )


def _count_differing(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    different = found ^ expected
    # Zero has two codes, 0x0 and 0x8, and both decode to zero.
    low, high = different & 0xF, different >> 4
    low = (low != 0) & ~(((found & 0x7) == 0) & ((expected & 0x7) == 0))
    high = (high != 0) & ~(((found & 0x70) == 0) & ((expected & 0x70) == 0))
    return low.sum() + high.sum()


def _check_head_sha256(sidecar: Sidecar, model_dir: Path | None) -> None:
    name = sidecar.target["head_tensor"]
    if model_dir is None:
        raise DraftfastError(
            f"`{sidecar.path}` is checked against `{name}` of the checkpoint, and the target is not a local folder",
            "give vLLM the target as a path",
        )
    file = TensorFile(_shard_of(model_dir, name))
    if name not in file.entries:
        raise DraftfastError(f"`{file.path}` has no tensor `{name}`", REBUILD)
    found = hashlib.sha256(file.bytes_of(name)).hexdigest()
    if found != sidecar.target["head_sha256"]:
        raise DraftfastError(
            f"tensor `{name}` of `{file.path}` has sha256 {found}, and the sidecar was built for {sidecar.target['head_sha256']}",
            REBUILD,
        )


def _shard_of(model_dir: Path, name: str) -> Path:
    index = model_dir / "model.safetensors.index.json"
    if not index.is_file():
        return model_dir / "model.safetensors"
    try:
        return model_dir / json.loads(index.read_bytes())["weight_map"][name]
    except (ValueError, KeyError, TypeError) as error:
        raise DraftfastError(f"`{index}` does not say which shard holds `{name}`") from error
