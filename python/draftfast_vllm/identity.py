"""Was this sidecar made from this lm_head? Answered in well under a second, from the weights that the engine has loaded.

Codes rounded to nearest: under the sidecar's own scales the target's rows must give the sidecar's codes, every one; a head
that differs by one per cent changes one code in twenty. Codes by error feedback (`--rounding gptq`) are not the nearest
ones: there the error figures that the manifest records are computed again, over all rows (`figures`). Both want BF16 in the
checkpoint and in the engine; where either converts, the tensor in the checkpoint is hashed, which takes seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import Module

from draftfast_vllm import nvfp4
from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.figures import NONE, Figures, figures
from draftfast_vllm.linears import tensor
from draftfast_vllm.sidecar import HEAD, Sidecar
from draftfast_vllm.tensor_file import TensorFile

REBUILD = "build the sidecar from this target: `draftfast build TARGET --corpus TEXT -o DIR`"
# Of nearest codes a CPU compares this many rows, evenly spaced, and it computes figures of no more weights than these; a
# GPU takes all rows for either.
N_CPU_ROWS, N_CPU_WEIGHTS = 512, 1 << 24
SLAB_ROWS = 8192


@dataclass(frozen=True)
class Rows:
    """Some rows of the draft head, and the same of lm_head as they were quantized: F32, less the row shift."""

    codes: torch.Tensor
    block_scales: torch.Tensor
    weights: torch.Tensor


def check_head(sidecar: Sidecar, head: Module, model_dir: Path | None, tp_rank: int, tp_size: int = 1) -> str:
    """Compares lm_head and draft head; returns, for the log, how."""
    is_bf16 = head.weight.dtype == torch.bfloat16 and sidecar.manifest["tensors"][HEAD].get("from", "BF16") == "BF16"
    is_nearest = sidecar.manifest.get("recipe", {}).get("rounding") != "gptq"
    recorded = recorded_figures(sidecar)
    if is_bf16 and is_nearest:
        return check_codes(sidecar, head)
    if is_bf16 and recorded is not None and (head.weight.is_cuda or sidecar.head.n * sidecar.head.k <= N_CPU_WEIGHTS):
        return check_figures(sidecar, head, recorded, tp_size)
    if tp_rank == 0:
        check_sha256(sidecar, model_dir)
    return "the sha256 of lm_head in the checkpoint is the sidecar's"


def check_codes(sidecar: Sidecar, head: Module) -> str:
    """Every code is the nearest to the target's weight."""
    n_differing, n_rows = differing_codes(sidecar, head)
    if n_differing:
        raise DraftfastError(
            f"`{sidecar.path}` was built for another lm_head: {n_differing} of {n_rows * sidecar.head.k} codes differ from this target's",
            REBUILD,
        )
    return f"{n_rows} rows of lm_head give the sidecar's codes"


def differing_codes(sidecar: Sidecar, head: Module) -> tuple[int, int]:
    """Codes that differ, and rows compared, among the rows that this rank's share of lm_head holds."""
    rows = rows_of_rank(sidecar, head)
    if not head.weight.is_cuda and len(rows) > N_CPU_ROWS:
        rows = rows[torch.linspace(0, len(rows) - 1, N_CPU_ROWS).long()]
    n_differing = torch.zeros((), dtype=torch.int64, device=head.weight.device)
    for slab in slabs(sidecar, head, rows):
        found = nvfp4.nearest_codes(slab.weights, slab.block_scales, sidecar.head.global_scale)
        n_differing += _count_differing(found, slab.codes)
    return int(n_differing), len(rows)


def recorded_figures(sidecar: Sidecar) -> Figures | None:
    """The manifest's error figures of the draft head."""
    error = sidecar.manifest["tensors"][HEAD].get("error")
    if not isinstance(error, dict):
        return None
    # Printed with the digits that an F32 needs.
    largest = float(torch.tensor(error["max_abs_error"], dtype=torch.float32))
    return Figures(error["sum_sq_error"], error["sum_sq_weight"], largest)


def check_figures(sidecar: Sidecar, head: Module, recorded: Figures, tp_size: int) -> str:
    """Figures over all rows, those of other ranks included, against the manifest's."""
    found = NONE
    for slab in slabs(sidecar, head, rows_of_rank(sidecar, head)):
        found += figures(slab.weights, slab.codes, slab.block_scales, sidecar.head.global_scale)
    if tp_size > 1:
        found = of_all_ranks(found, head.weight.device)
    if not found.agrees(recorded):
        raise DraftfastError(
            f"`{sidecar.path}` was built for another lm_head: its error against this target's rows is {found.sum_sq_error}, and the manifest records {recorded.sum_sq_error}",
            REBUILD,
        )
    return f"{sidecar.head.n} rows of lm_head give the manifest's error figures"


def of_all_ranks(found: Figures, device: torch.device) -> Figures:
    """The figures of all ranks' rows."""
    from torch.distributed import ReduceOp, all_reduce
    from vllm.distributed import get_tp_group

    sums, largest = (part.to(device) for part in found.tensor())
    all_reduce(sums, group=get_tp_group().device_group)
    all_reduce(largest, ReduceOp.MAX, group=get_tp_group().device_group)
    return Figures(*sums.tolist(), *largest.tolist())


def rows_of_rank(sidecar: Sidecar, head: Module) -> torch.Tensor:
    """Rows of the draft head whose ids lie in this rank's share of lm_head."""
    ids = torch.frombuffer(sidecar.token_ids, dtype=torch.int64)
    begin, end = _share(head)
    return torch.nonzero((ids >= begin) & (ids < end)).squeeze(1)


def slabs(sidecar: Sidecar, head: Module, rows: torch.Tensor) -> Iterator[Rows]:
    """These rows, some thousands at a time, on the head's device."""
    weight, (begin, _) = head.weight, _share(head)
    ids = torch.frombuffer(sidecar.token_ids, dtype=torch.int64)
    codes, scales = tensor(sidecar, f"{HEAD}.weight"), tensor(sidecar, f"{HEAD}.weight_scale")
    shift = row_shift(sidecar).to(weight.device)
    for slab in rows.split(SLAB_ROWS):
        yield Rows(
            codes[slab].to(weight.device),
            scales[slab].to(weight.device).view(torch.float8_e4m3fn),
            weight[(ids[slab] - begin).to(weight.device)].float() - shift,
        )


def _share(head: Module) -> tuple[int, int]:
    """The ids of this rank's rows of lm_head."""
    indices = getattr(head, "shard_indices", None)
    return (indices.org_vocab_start_index, indices.org_vocab_end_index) if indices else (0, head.weight.shape[0])


def row_shift(sidecar: Sidecar) -> torch.Tensor:
    """F32 [H]: what `--row-shift` took off every row of the draft head before it was quantized; zeros if nothing."""
    if not sidecar.manifest.get("recipe", {}).get("row_shift"):
        return torch.zeros(sidecar.head.k)
    name = f"{HEAD}.row_shift"
    entry = sidecar.file.entries.get(name)
    if entry is None or entry.dtype != "F32" or entry.shape != (sidecar.head.k,):
        raise DraftfastError(f"`{sidecar.file.path}` has no tensor `{name}` of F32 [{sidecar.head.k}]", REBUILD)
    return torch.frombuffer(bytearray(sidecar.file.bytes_of(name)), dtype=torch.float32)


def _count_differing(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    different = found ^ expected
    # Zero has two codes, 0x0 and 0x8, and both decode to zero.
    low, high = different & 0xF, different >> 4
    low = (low != 0) & ~(((found & 0x7) == 0) & ((expected & 0x7) == 0))
    high = (high != 0) & ~(((found & 0x70) == 0) & ((expected & 0x70) == 0))
    return low.sum() + high.sum()


def check_sha256(sidecar: Sidecar, model_dir: Path | None) -> None:
    """The tensor in the checkpoint, all of it."""
    name = sidecar.target["head_tensor"]
    if model_dir is None:
        raise DraftfastError(
            f"`{sidecar.path}` is checked against `{name}` of the checkpoint, and the target is not a local folder",
            "give vLLM the target as a path",
        )
    file = TensorFile(shard_of(model_dir, name))
    if name not in file.entries:
        raise DraftfastError(f"`{file.path}` has no tensor `{name}`", REBUILD)
    found = tree_sha256(file.bytes_of(name))
    if found != sidecar.target["head_tree_sha256"]:
        raise DraftfastError(
            f"tensor `{name}` of `{file.path}` has tree sha256 {found}, and the sidecar was built for {sidecar.target['head_tree_sha256']}",
            REBUILD,
        )


def tree_sha256(data: bytes | bytearray | memoryview) -> str:
    """The digest of a tensor in a sidecar: the sha256 of the sha256 digests of its pieces, 1 MiB each but the last."""
    view = memoryview(data).cast("B")
    pieces = (view[at : at + (1 << 20)] for at in range(0, len(view), 1 << 20))
    return hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()


def shard_of(model_dir: Path, name: str) -> Path:
    """The checkpoint's file that holds a tensor."""
    index = model_dir / "model.safetensors.index.json"
    if not index.is_file():
        return model_dir / "model.safetensors"
    try:
        return model_dir / json.loads(index.read_bytes())["weight_map"][name]
    except (ValueError, KeyError, TypeError) as error:
        raise DraftfastError(f"`{index}` does not say which shard holds `{name}`") from error
