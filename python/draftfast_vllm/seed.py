"""The seed's way: a `bool[V]` mask of kept ids and nothing else. Everything is quantized while the engine loads.

Kept for recipes that have only a mask. A sidecar starts faster, is checked against its target, and can be weighted by
what the linears see; here every block takes the max rule.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from draftfast_vllm import nvfp4
from draftfast_vllm.attach import PackedHead, Ranks, attach_head
from draftfast_vllm.backend import fill_linear
from draftfast_vllm.config import Settings
from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.head import rank_rows
from draftfast_vllm.linears import Nvfp4Method, free_original, partition_shape

# The seed pads its rows to this with copies of the first.
PAD_TO = 64
LEAVES = ("fc", "fc_embedding", "fc_hidden", "qkv_proj", "o_proj", "gate_up_proj", "down_proj")
SLAB_ROWS = 8192


def attach_mask(drafter: Module, head: Module, vllm_config: Any, settings: Settings, ranks: Ranks) -> str:
    """Quantizes the kept rows of the target's head and the drafter's linears; returns what the log says."""
    target_rows = vllm_config.model_config.hf_text_config.vocab_size
    ids, n_kept = padded_ids(read_mask(Path(settings.mask or ""), target_rows))
    weights = rows_of_rank(head, ids, ranks)
    codes, scales, global_scale = nvfp4.quantize(weights)
    del weights
    kernel = attach_head(
        drafter,
        PackedHead(codes, scales, global_scale, ids.tolist(), target_rows),
        head.weight.dtype,
        vllm_config,
        settings,
        ranks,
    )
    names = quantize_linears(drafter, settings.keep_bf16, settings.backend)
    return f"mask `{settings.mask}`: {n_kept} of {target_rows} ids in {len(ids)} rows, head by {kernel.name}, {len(names)} MTP linears quantized at load"


def read_mask(path: Path, target_rows: int) -> torch.Tensor:
    """Ids of a `bool[V]` `.pt` file; refuses what is not one: ids or offsets would silently keep other tokens."""
    try:
        mask = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DraftfastError(f"`{path}` cannot be read as a `.pt` tensor: {error}") from error
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.shape != (target_rows,):
        found = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise DraftfastError(
            f"`{path}` holds {found}, expected torch.bool [{target_rows}]",
            "`draftfast convert` writes a mask from every other form",
        )
    ids = torch.nonzero(mask).squeeze(1)
    if len(ids) == 0:
        raise DraftfastError(f"`{path}` keeps no id")
    return ids


def padded_ids(ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Ids of the draft head's rows, and how many are real."""
    return torch.cat((ids, ids[:1].repeat(-len(ids) % PAD_TO))), len(ids)


def rows_of_rank(head: Module, ids: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """[rows of this rank, H] of the target's head, wherever among the ranks they lie."""
    own_ids = [ids[rank_rows(len(ids), rank, ranks.size)] for rank in range(ranks.size)]
    if ranks.size == 1:
        return head.weight[own_ids[0].to(head.weight.device)]
    from vllm.distributed import tensor_model_parallel_all_reduce

    begin, end = head.shard_indices.org_vocab_start_index, head.shard_indices.org_vocab_end_index
    gathered = []
    # Every rank sends its rows of every slab: a sum in which all terms but one are zero.
    slabs = [(rank, slab) for rank, rank_ids in enumerate(own_ids) for slab in rank_ids.split(SLAB_ROWS)]
    for rank, slab in slabs:
        rows = torch.zeros(len(slab), head.weight.shape[1], dtype=head.weight.dtype, device=head.weight.device)
        here = (slab >= begin) & (slab < end)
        rows[here.to(rows.device)] = head.weight[(slab[here] - begin).to(rows.device)]
        rows = tensor_model_parallel_all_reduce(rows)
        if rank == ranks.rank:
            gathered.append(rows)
    return torch.cat(gathered)


def quantize_linears(drafter: Module, keep_bf16: tuple[str, ...], backend: str) -> list[str]:
    """Quantizes this rank's share of each linear in place; returns their names. Globs match vLLM's module names."""
    done = []
    for name, layer in list(drafter.named_modules()):
        if name.rpartition(".")[2] not in LEAVES or not hasattr(layer, "quant_method"):
            continue
        if any(fnmatch.fnmatchcase(name, glob) for glob in keep_bf16):
            continue
        weight = getattr(layer, "weight", None)
        if weight is None or weight.dtype not in (torch.bfloat16, torch.float16) or weight.dim() != 2:
            raise DraftfastError(
                f"module `{name}` of the drafter holds no plain weight to quantize",
                'build a sidecar, or leave it as it is with `"keep_bf16": ["GLOB"]`',
            )
        n, k = partition_shape(layer)
        if k % nvfp4.BLOCK:
            raise DraftfastError(f"module `{name}` has {k} columns on this rank, expected a multiple of {nvfp4.BLOCK}")
        codes, scales, global_scale = nvfp4.quantize(weight.data[:n, :k])
        free_original(layer)
        layer.quant_method = Nvfp4Method(fill_linear(backend, name, layer, codes, scales, global_scale))
        done.append(name)
    return done
