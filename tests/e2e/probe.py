"""Looks into a live engine (model runner V1, in-process): are the drafter's weights exactly the sidecar's?"""

from __future__ import annotations

from collections import Counter
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


def collected(directory: str, model: str, tokens: list[list[int]]) -> dict[str, Any]:
    """What `collect` wrote, against itself and against what the model's construction says."""
    from draftfast_vllm import collect

    collect.collectors[-1].write()
    files = {
        stem: load_file(Path(directory) / f"{stem}.safetensors") for stem in ("importance", "second_moments", "states")
    }
    importance, moments, states = files.values()
    counts = dict(map(int, line.split("\t")) for line in (Path(directory) / "counts.tsv").read_text().splitlines())
    checkpoint = load_file(Path(model) / "model.safetensors")
    linears = [name for parts in MODULES.values() for name in parts]
    return {
        "names": sorted(importance) == sorted([f"{name}.weight" for name in linears] + ["lm_head.weight"]),
        "columns": all(importance[name].shape[0] == checkpoint[name].shape[1] for name in importance),
        "diagonals": all(torch.allclose(moments[name].diagonal(), importance[name], rtol=1e-4) for name in importance),
        "states": all(
            torch.allclose(states[name].float().square().mean(0), importance[name], rtol=1e-4) for name in importance
        ),
        "fused_alike": torch.equal(
            importance["mtp.layers.0.self_attn.q_proj.weight"], importance["mtp.layers.0.self_attn.v_proj.weight"]
        ),
        "combiner_sees_embeddings": sees_embeddings(
            states["mtp.fc.weight"].float(), checkpoint["model.embed_tokens.weight"].float()
        ),
        "counts": counts == dict(Counter(token for text in tokens for token in text)),
    }


def sees_embeddings(states: torch.Tensor, embedding: torch.Tensor) -> bool:
    """The first half of each input of `mtp.fc` is the normalized embedding of some token."""
    normed = embedding / embedding.square().mean(-1, keepdim=True).sqrt()
    found = states[:, : embedding.shape[1]]
    return bool(((found.unsqueeze(1) - normed).abs().amax(-1).amin(-1) < 0.05).all())


def decode(tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """BF16 [n, k]: the format's definition, one block of 16 columns at a time."""
    codes, scales = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"].float()
    nibbles = torch.empty(codes.shape[0], 2 * codes.shape[1], dtype=torch.long)
    nibbles[:, 0::2], nibbles[:, 1::2] = codes & 0xF, codes >> 4
    return (VALUES[nibbles] * scales.repeat_interleave(16, dim=1) * tensors[f"{name}.weight_scale_2"]).to(
        torch.bfloat16
    )
