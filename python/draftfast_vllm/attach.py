"""Puts a sidecar into a drafter that vLLM has just loaded: checks, linears, head, one line in the log.

Called by the hooks with the drafter, the target's language model and the engine's configuration. Either all of it
happens or an error stops the engine before its first request.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from draftfast_vllm import checks, linears
from draftfast_vllm.config import Settings
from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.head import DraftHead, DraftLogits, rank_major, rank_rows, replace_head
from draftfast_vllm.kernels import Kernel
from draftfast_vllm.sidecar import HEAD, Sidecar

logger = logging.getLogger("vllm.draftfast")
MIB = 1024 * 1024


def attach(drafter: Module, target: Module, vllm_config: Any, settings: Settings) -> None:
    """Replaces the drafter's head and linears by the sidecar's."""
    from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

    started = time.perf_counter()
    rank, tp_size = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    sidecar = Sidecar.open(settings.sidecar)
    _check_digest(sidecar, settings)
    sidecar.verify_drafter()
    sidecar.check_scales()
    head = checks.target_head(target)
    model_dir = local_dir(vllm_config.model_config)
    checks.check_config(sidecar, vllm_config.model_config.hf_text_config)
    checks.check_tokenizer(sidecar, model_dir)
    proof = checks.check_head(sidecar, head, model_dir, rank)
    rank_rows(sidecar.head.n, rank, tp_size)
    _check_head_dtype(vllm_config.model_config)

    groups = linears.group(drafter, linears.wanted(sidecar, settings.keep_bf16))
    before = n_parameter_bytes(drafter)
    names = [linears.load(drafter, group, sidecar, head.weight.device) for group in groups]
    kernel = attach_head(drafter, sidecar, head.weight, rank, tp_size, vllm_config, settings)
    after = n_parameter_bytes(drafter)
    logger.info(
        "draftfast: %s", _summary(sidecar, len(groups), kernel, names, before, after, proof, time.perf_counter() - started)
    )


def attach_head(
    drafter: Module, sidecar: Sidecar, like: torch.Tensor, rank: int, tp_size: int, vllm_config: Any, settings: Settings
) -> Kernel:
    """This rank's rows of the draft head, on the device and in the dtype of `like`."""
    from draftfast_vllm.backend import head_kernel

    rows = rank_rows(sidecar.head.n, rank, tp_size)
    codes = linears.tensor(sidecar, f"{HEAD}.weight")[rows].to(like.device)
    scales = linears.tensor(sidecar, f"{HEAD}.weight_scale")[rows].to(like.device).view(torch.float8_e4m3fn)
    kernel = head_kernel(settings.backend, codes, scales, sidecar.head.global_scale, vllm_config.scheduler_config.max_num_seqs)
    head = DraftHead(kernel, codes, scales, sidecar.head.global_scale, like.dtype)
    ids = rank_major(sidecar.token_ids, tp_size).to(like.device)
    logits = DraftLogits(ids, rank, tp_size, sidecar.target_rows, original_processor(drafter))
    replace_head(drafter, head, logits)
    return kernel


def original_processor(drafter: Module) -> Module:
    """The drafter's logits processor: its scale and soft cap go on."""
    for module in drafter.modules():
        if isinstance(getattr(module, "logits_processor", None), Module):
            return module.logits_processor
    raise DraftfastError(f"the drafter `{type(drafter).__name__}` has no logits processor", "serve it without the sidecar")


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
        raise DraftfastError(f"`head_dtype` is {head_dtype}, and a packed head computes in {model_config.dtype}", "leave the `head_dtype` override out")


def _summary(
    sidecar: Sidecar, n_groups: int, kernel: Kernel, names: list[str], before: int, after: int, proof: str, seconds: float
) -> str:
    ledger = sidecar.manifest.get("ledger", {})
    step = f"; a draft step reads {ledger['before_bytes'] / MIB:.1f} -> {ledger['after_bytes'] / MIB:.1f} MiB" if ledger else ""
    selection = sidecar.manifest.get("vocabulary", {}).get("selection") or {}
    coverage = f", coverage {selection['coverage']}" if isinstance(selection.get("coverage"), (int, float)) else ""
    return (
        f"sidecar {sidecar.sha256[:12]}: {sidecar.n_real_rows} of {sidecar.target_rows} ids in {sidecar.head.n} rows{coverage}, "
        f"head by {kernel.name}, {n_groups} MTP linears by {', '.join(sorted(set(names))) or 'none'}{step}; "
        f"drafter parameters on this rank {before / MIB:.1f} -> {after / MIB:.1f} MiB; {proof}; ready in {seconds:.2f} s"
    )
