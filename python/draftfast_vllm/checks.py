"""Can this sidecar serve this target? Sizes, tokenizer, and a head that a draft head can stand in for.

Whether the lm_head is the one that the sidecar was made from is `identity`'s question.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.identity import REBUILD, row_shift
from draftfast_vllm.sidecar import HEAD, Sidecar


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


def check_shift(sidecar: Sidecar, processor: Module) -> None:
    """A shift moves every logit of a state alike, which a soft cap would not carry through."""
    if bool(row_shift(sidecar).any()) and getattr(processor, "soft_cap", None) is not None:
        raise DraftfastError(
            "the draft head was built with `--row-shift`, and the drafter caps its logits", "build it without"
        )
