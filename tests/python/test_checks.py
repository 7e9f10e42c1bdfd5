"""Does a sidecar belong to a target: the check of its head, with and without a row shift."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from conftest import SidecarDir

torch = pytest.importorskip("torch", reason="the plugin's tensor code needs torch")

from draftfast_vllm import checks, nvfp4  # noqa: E402
from draftfast_vllm.errors import DraftfastError  # noqa: E402
from draftfast_vllm.sidecar import Sidecar  # noqa: E402

V, H, IDS = 64, 32, [1, 4, 7, 9, 33, 60]


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def sidecar_of(directory: SidecarDir, weight: torch.Tensor, shift: torch.Tensor | None = None) -> Sidecar:
    rows = weight[IDS].float() - (0 if shift is None else shift)
    codes, scales, gs = nvfp4.quantize(rows)
    directory.tensors |= {
        "draft_head.weight": ("U8", list(codes.shape), raw(codes)),
        "draft_head.weight_scale": ("F8_E4M3", list(scales.shape), raw(scales)),
        "draft_head.weight_scale_2": ("F32", [], struct.pack("<f", gs)),
        "draft_head.token_ids": ("I64", [len(IDS)], struct.pack(f"<{len(IDS)}q", *IDS)),
    }
    directory.manifest["target"]["target_rows"] = V
    directory.manifest["recipe"] = {"rounding": "nearest"}
    if shift is not None:
        directory.tensors["draft_head.row_shift"] = ("F32", [H], raw(shift))
        directory.manifest["recipe"]["row_shift"] = True
    return Sidecar.open(directory.write())


def head(weight: torch.Tensor, begin: int = 0, end: int = V) -> SimpleNamespace:
    return SimpleNamespace(
        weight=weight[begin:end], shard_indices=SimpleNamespace(org_vocab_start_index=begin, org_vocab_end_index=end)
    )


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(V, H, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)


@pytest.mark.parametrize("shifted", [False, True])
def test_the_target_it_was_built_for_passes_on_every_rank(sidecar_dir, weight, shifted):
    shift = torch.randn(H) if shifted else None
    sidecar = sidecar_of(sidecar_dir, weight, shift)
    assert checks.check_head(sidecar, head(weight), None, 0) == "6 rows of lm_head give the sidecar's codes"
    counts = [checks._differing_codes(sidecar, head(weight, begin, begin + 16)) for begin in range(0, V, 16)]
    assert counts == [(0, 4), (0, 0), (0, 1), (0, 1)]


def test_a_relative_one_per_cent_away_is_refused(sidecar_dir, weight):
    sidecar = sidecar_of(sidecar_dir, weight)
    relative = (weight.float() * (1 + 0.01 * torch.randn(V, H))).to(torch.bfloat16)
    with pytest.raises(DraftfastError, match=r"was built for another lm_head: \d+ of 192 codes differ"):
        checks.check_head(sidecar, head(relative), None, 0)


def test_a_head_of_another_dtype_is_checked_by_the_checkpoint(sidecar_dir, weight):
    sidecar = sidecar_of(sidecar_dir, weight)
    with pytest.raises(DraftfastError, match="and the target is not a local folder"):
        checks.check_head(sidecar, head(weight.to(torch.float16) * 1.01), None, 0)


def test_a_shift_under_a_soft_cap_is_refused(sidecar_dir, weight):
    sidecar = sidecar_of(sidecar_dir, weight, torch.ones(H))
    checks.check_shift(sidecar, SimpleNamespace(soft_cap=None))
    with pytest.raises(DraftfastError, match="and the drafter caps its logits"):
        checks.check_shift(sidecar, SimpleNamespace(soft_cap=30.0))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (SimpleNamespace(), "has no `lm_head`"),
        (SimpleNamespace(lm_head=SimpleNamespace(weight=torch.zeros(2, 2, dtype=torch.uint8))), r"is already quantized \(its weight is uint8\)"),
        (SimpleNamespace(lm_head=SimpleNamespace()), r"is already quantized \(its weight is missing\)"),
        (SimpleNamespace(lm_head=SimpleNamespace(weight=torch.zeros(2, 2)), logits_processor=type("LogitsProcessorWithLoRA", (), {})()), "takes LoRA adapters"),
    ],
)  # fmt: skip
def test_targets_that_cannot_be_served_are_named(target, message):
    with pytest.raises(DraftfastError, match=message):
        checks.target_head(target)


@pytest.mark.parametrize(
    ("hidden", "rows", "message"),
    [(64, V, "hidden_size 32, and the loaded one has 64"), (H, 65, "target_rows 64, and the loaded one has 65")],
)
def test_sizes_of_another_target_are_refused(sidecar_dir, weight, hidden, rows, message):
    sidecar = sidecar_of(sidecar_dir, weight)
    checks.check_config(sidecar, SimpleNamespace(hidden_size=H, vocab_size=V))
    with pytest.raises(DraftfastError, match=message):
        checks.check_config(sidecar, SimpleNamespace(hidden_size=hidden, vocab_size=rows))
