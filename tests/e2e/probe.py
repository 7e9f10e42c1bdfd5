"""Looks into a live engine (model runner V1, in-process): are the drafter's weights exactly the sidecar's?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
MODULES = {
    "model.fc": ["mtp.fc"],
    "model.layers.0.self_attn.qkv_proj": [f"mtp.layers.0.self_attn.{part}_proj" for part in "qkv"],
    "model.layers.0.self_attn.o_proj": ["mtp.layers.0.self_attn.o_proj"],
    "model.layers.0.mlp.gate_up_proj": ["mtp.layers.0.mlp.gate_proj", "mtp.layers.0.mlp.up_proj"],
    "model.layers.0.mlp.down_proj": ["mtp.layers.0.mlp.down_proj"],
}


def compare(llm: Any, sidecar: str) -> dict[str, Any]:
    """Names of modules whose weight differs from the sidecar's decoded one; and what stands where in the drafter."""
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    drafter, target = runner.drafter.model, runner.model
    found: dict[str, Any] = {
        "lm_head_is_the_targets": drafter.lm_head is target.lm_head,
        "logits_processor": type(drafter.logits_processor).__name__,
        "fc_method": type(drafter.model.fc.quant_method).__name__,
        "target_head_is_bf16": target.lm_head.weight.dtype == torch.bfloat16,
        "local_argmax": runner.drafter.use_local_argmax_reduction,
    }
    if sidecar != "off":
        tensors = load_file(Path(sidecar) / "drafter.safetensors")
        weights = {name: torch.cat([decode(tensors, part) for part in parts]) for name, parts in MODULES.items()}
        weights["lm_head"] = decode(tensors, "draft_head")
        modules = dict(drafter.named_modules())
        found["differing"] = [name for name, weight in weights.items() if not torch.equal(modules[name].weight, weight)]
    return found


def decode(tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """BF16 [n, k]: the format's definition, one block of 16 columns at a time."""
    codes, scales = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"].float()
    nibbles = torch.empty(codes.shape[0], 2 * codes.shape[1], dtype=torch.long)
    nibbles[:, 0::2], nibbles[:, 1::2] = codes & 0xF, codes >> 4
    return (VALUES[nibbles] * scales.repeat_interleave(16, dim=1) * tensors[f"{name}.weight_scale_2"]).to(
        torch.bfloat16
    )
