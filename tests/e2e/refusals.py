"""What must not serve: damaged or foreign sidecars and configurations that contradict one. Each has its own sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import reference_sidecar


def cases(world: Any) -> list[Any]:
    """The cases, their inputs written beside the good sidecars."""
    from run import Case, K, sidecar

    good = world.work / "all"
    damage(good, world.work / "bad_foreign", foreign_head)
    damage(good, world.work / "bad_missing", quantized_shared_expert)
    damage(good, world.work / "bad_nan", nan_scale)
    damage(good, world.work / "bad_byte", flipped_byte, sums=False)
    damage(good, world.work / "bad_truncated", truncated)
    damage(good, world.work / "bad_version", lambda out: edit_manifest(out, lambda m: m.update(format=2)))
    damage(
        good, world.work / "bad_rows", lambda out: edit_manifest(out, lambda m: m["target"].update(target_rows=4096))
    )
    damage(good, world.work / "bad_gptq", foreign_gptq)
    if not (world.work / "one").is_dir():
        reference_sidecar.build(world.model, world.work / "one", world.kept["all"][:1])
    table = [
        ("another model's sidecar", sidecar("bad_foreign"), r"was built for another lm_head: \d+ of \d+ codes differ"),
        ("another model's sidecar, rounded by GPTQ", sidecar("bad_gptq"), r"its error against this target's rows is|and the sidecar was built for 0000"),
        ("a linear without a module", sidecar("bad_missing"), r"`mtp.layers.0.mlp.shared_expert.down_proj.weight` of the sidecar has no linear"),
        ("a NaN scale", sidecar("bad_nan"), r"tensor `draft_head.weight_scale` holds NaN"),
        ("a changed byte", sidecar("bad_byte"), r"has sha256 [0-9a-f]{64}, and `sha256sums.txt` says"),
        ("a truncated sidecar", sidecar("bad_truncated"), r"ends at byte \d+, and the file has \d+: truncated"),
        ("a later format", sidecar("bad_version"), r"has format 2, and this plugin reads format 1"),
        ("another vocabulary size", sidecar("bad_rows"), r"target_rows 4096, and the loaded one has 2048"),
        ("LoRA on the head", {"lora": True, **sidecar("all")}, r"lm_head takes LoRA adapters"),
        ("logits and local argmax", {"probabilistic": True, "local_argmax": True, **sidecar("all")}, r"`probabilistic`, which needs logits"),
        ("a sidecar without speculation", {**sidecar("all"), "k": 0}, r"the engine does not speculate"),
        ("a folder that is none", sidecar("nowhere"), r"nowhere` is not a directory"),
        ("an unknown vLLM", {"vllm_version": "0.99.0", **sidecar("all")}, r"vLLM 0.99.0 is not known to this draftfast"),
        ("the sidecar as the draft model too", {"draft_model": "@WORK/all", **sidecar("all")}, r"`speculative_config.model` is the sidecar"),
        ("a mask that is none", {"k": K, "additional": {"draftfast": {"mask": "@WORK/all/drafter.safetensors"}}}, r"expected torch.bool \[2048\]"),
        ("fewer rows than ranks", {"tp": 2, **sidecar("one")}, r"has 1 rows, fewer than tensor parallel size 2"),
        ("collecting in a compiled engine", {"compile": True, "k": K, "additional": {"draftfast": {"collect": "@WORK/x"}}}, r"`collect` needs an eager engine"),
    ]  # fmt: skip
    return [Case(f"refuses {name}", options, refuses=sentence) for name, options, sentence in table]


def damage(good: Path, out: Path, how: Callable[[Path], None], sums: bool = True) -> None:
    """A copy of a good sidecar with one thing wrong and, unless `sums` is off, right checksums."""
    if out.is_dir():
        return
    shutil.copytree(good, out)
    how(out)
    if sums:
        reference_sidecar.write_sums(out)


def edit_tensors(out: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(out / "drafter.safetensors")
    change(tensors)
    save_file(tensors, out / "drafter.safetensors", metadata={"format": "pt"})


def edit_manifest(out: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = out / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def foreign_head(out: Path) -> None:
    """The head of a fine-tuned relative: every 200th weight one code away."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        codes = tensors["draft_head.weight"].view(-1)
        codes[::100] ^= 1

    edit_tensors(out, change)


def foreign_gptq(out: Path) -> None:
    """GPTQ's codes are not the nearest ones, so the manifest's figures are checked; without figures the checkpoint's tensor."""
    foreign_head(out)
    edit_manifest(out, lambda m: (m["recipe"].update(rounding="gptq"), m["target"].update(head_tree_sha256="0" * 64)))


def quantized_shared_expert(out: Path) -> None:
    """A linear that this drafter does not have."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for suffix in ("weight", "weight_scale", "weight_scale_2"):
            tensors[f"mtp.layers.0.mlp.shared_expert.down_proj.{suffix}"] = tensors[
                f"mtp.layers.0.mlp.down_proj.{suffix}"
            ].clone()

    edit_tensors(out, change)
    edit_manifest(out, lambda m: m["tensors"].update({"mtp.layers.0.mlp.shared_expert.down_proj": {"to": "NVFP4"}}))


def nan_scale(out: Path) -> None:
    edit_tensors(out, lambda tensors: tensors["draft_head.weight_scale"].view(torch.uint8)[3, :1].fill_(0x7F))


def flipped_byte(out: Path) -> None:
    path = out / "drafter.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def truncated(out: Path) -> None:
    path = out / "drafter.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
