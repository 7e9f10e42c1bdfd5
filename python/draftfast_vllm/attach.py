"""Puts a sidecar into a drafter that vLLM has just loaded: checks, linears, head, one line in the log.

Called by the hooks with the drafter, the target's language model and the engine's configuration. Either all of it
happens or an error stops the engine before its first request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from draftfast_vllm import checks, identity, linears
from draftfast_vllm.backend import head_kernel
from draftfast_vllm.config import Settings
from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.head import DraftHead, DraftLogits, rank_major, rank_rows, replace_head
from draftfast_vllm.kernels import Kernel
from draftfast_vllm.sidecar import HEAD, Sidecar

logger = logging.getLogger("vllm.draftfast")
MIB = 1024 * 1024


def attach(drafter: Module, target: Module, vllm_config: Any, settings: Settings) -> None:
    """Replaces the drafter's head and linears: by a sidecar's, or by what a mask of kept ids makes of the target's own."""
    from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

    started = time.perf_counter()
    ranks = Ranks(get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size())
    head = checks.target_head(target)
    _check_head_dtype(vllm_config.model_config)
    before = n_parameter_bytes(drafter)
    if settings.sidecar is not None:
        summary = attach_sidecar(drafter, head, vllm_config, settings, ranks)
    else:
        from draftfast_vllm.seed import attach_mask

        summary = attach_mask(drafter, head, vllm_config, settings, ranks)
    if ranks.rank == 0:
        after, seconds = n_parameter_bytes(drafter), time.perf_counter() - started
        size = f"drafter parameters on this rank {before / MIB:.1f} -> {after / MIB:.1f} MiB"
        logger.info("draftfast: %s; %s; ready in %.2f s", summary, size, seconds)


@dataclass(frozen=True)
class Ranks:
    """This process among those that share the model's tensors."""

    rank: int
    size: int


def attach_sidecar(drafter: Module, head: Module, vllm_config: Any, settings: Settings, ranks: Ranks) -> str:
    """All checks first, then the replacement; returns what the log says."""
    sidecar = Sidecar.open(settings.sidecar or "")
    _check_digest(sidecar, settings)
    sidecar.verify_drafter()
    sidecar.check_scales()
    model_dir = local_dir(vllm_config.model_config)
    checks.check_config(sidecar, vllm_config.model_config.hf_text_config)
    checks.check_tokenizer(sidecar, model_dir)
    proof = identity.check_head(sidecar, head, model_dir, ranks.rank, ranks.size)
    checks.check_shift(sidecar, original_processor(drafter))
    rows = rank_rows(sidecar.head.n, ranks.rank, ranks.size)
    groups = linears.group(drafter, linears.wanted(sidecar, settings.keep_bf16))

    names = [linears.load(drafter, group, sidecar, head.weight.device, settings.backend) for group in groups]
    codes = linears.tensor(sidecar, f"{HEAD}.weight")[rows].to(head.weight.device)
    scales = linears.tensor(sidecar, f"{HEAD}.weight_scale")[rows].to(head.weight.device).view(torch.float8_e4m3fn)
    packed = PackedHead(codes, scales, sidecar.head.global_scale, sidecar.token_ids, sidecar.target_rows)
    kernel = attach_head(drafter, packed, head.weight.dtype, vllm_config, settings, ranks)
    return _summary(sidecar, kernel, names, proof)


@dataclass(frozen=True)
class PackedHead:
    """This rank's rows of a draft head, on their device, and the ids of all rows."""

    codes: torch.Tensor
    scales: torch.Tensor
    global_scale: float
    token_ids: Sequence[int]
    target_rows: int


def attach_head(
    drafter: Module, packed: PackedHead, dtype: torch.dtype, vllm_config: Any, settings: Settings, ranks: Ranks
) -> Kernel:
    """Puts the head and its logits processor in the drafter; returns the kernel that it multiplies with."""
    max_num_seqs = vllm_config.scheduler_config.max_num_seqs
    kernel = head_kernel(settings.backend, packed.codes, packed.scales, packed.global_scale, dtype, max_num_seqs)
    head = DraftHead(kernel, packed.codes, packed.scales, packed.global_scale, dtype)
    ids = rank_major(packed.token_ids, ranks.size).to(packed.codes.device)
    logits = DraftLogits(ids, ranks.rank, ranks.size, packed.target_rows, original_processor(drafter))
    replace_head(drafter, head, logits)
    return kernel


def original_processor(drafter: Module) -> Module:
    """The drafter's logits processor: its scale and soft cap go on."""
    for module in drafter.modules():
        if isinstance(getattr(module, "logits_processor", None), Module):
            return module.logits_processor
    raise DraftfastError(
        f"the drafter `{type(drafter).__name__}` has no logits processor", "serve it without the sidecar"
    )


def local_dir(model_config: Any) -> Path | None:
    """The target's folder, or its snapshot in the hub cache."""
    path = Path(model_config.model)
    if path.is_dir():
        return path
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model_config.model, "config.json", revision=model_config.revision)
    return Path(found).parent if isinstance(found, str) else None


def n_parameter_bytes(drafter: Module) -> int:
    """Bytes of the drafter's own parameters, its head included, embeddings not: what a draft step can read."""
    seen: dict[int, int] = {}
    for name, parameter in drafter.named_parameters(remove_duplicate=False):
        if "embed_tokens" not in name:
            seen[parameter.data_ptr()] = parameter.numel() * parameter.element_size()
    return sum(seen.values())


def _check_digest(sidecar: Sidecar, settings: Settings) -> None:
    if settings.sidecar_sha256 not in (None, sidecar.sha256):
        raise DraftfastError(
            f"`{sidecar.path}` has digest {sidecar.sha256}, and the configuration expects {settings.sidecar_sha256}",
            "the sidecar changed; leave `sidecar_sha256` out to take the one that is there",
        )


def _check_head_dtype(model_config: Any) -> None:
    head_dtype = getattr(model_config, "head_dtype", None)
    if head_dtype is not None and head_dtype != model_config.dtype:
        raise DraftfastError(
            f"`head_dtype` is {head_dtype}, and a packed head computes in {model_config.dtype}",
            "leave the `head_dtype` override out",
        )


def _summary(sidecar: Sidecar, kernel: Kernel, names: list[str], proof: str) -> str:
    ledger = sidecar.manifest.get("ledger", {})
    parts = [
        f"sidecar {sidecar.sha256[:12]}: {sidecar.n_real_rows} of {sidecar.target_rows} ids in {sidecar.head.n} rows",
        sidecar.coverage(),
        f"head by {kernel.name}",
        f"{len(names)} MTP linears by {', '.join(sorted(set(names)))}" if names else "MTP linears as they were",
        f"a draft step reads {ledger['before_bytes']} -> {ledger['after_bytes']} bytes" if ledger else "",
    ]
    return ", ".join(part for part in parts if part) + f"; {proof}"
