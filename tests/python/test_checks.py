"""Does a sidecar belong to a target: its head by codes, figures or digest, with and without a row shift; sizes; what cannot be served."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import SidecarDir, write_safetensors

torch = pytest.importorskip("torch", reason="the plugin's tensor code needs torch")

from draftfast_vllm import checks, identity, nvfp4  # noqa: E402
from draftfast_vllm.errors import DraftfastError  # noqa: E402
from draftfast_vllm.sidecar import Sidecar  # noqa: E402
from draftfast_vllm.tensor_file import TensorFile  # noqa: E402

PROGRAM = Path(os.environ.get("DRAFTFAST_BIN", Path(__file__).parents[2] / "target/release/draftfast"))
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


def plain_figures(rows: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, gs: float) -> dict[str, float]:
    """One weight at a time, in F64 as far as the format lets."""
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    sums = [0.0, 0.0, 0.0]
    for row, row_codes, row_scales in zip(rows.tolist(), codes.tolist(), scales.float().tolist(), strict=True):
        for column, w in enumerate(row):
            code = row_codes[column // 2] >> (4 * (column % 2)) & 0xF
            decoded = values[code & 7] * (-1 if code & 8 else 1) * row_scales[column // 16] * gs
            sums = [sums[0] + (decoded - w) ** 2, sums[1] + w * w, max(sums[2], abs(decoded - w))]
    return dict(zip(("sum_sq_error", "sum_sq_weight", "max_abs_error"), sums, strict=True))


def gptq_sidecar(directory: SidecarDir, weight: torch.Tensor, shift: torch.Tensor | None = None) -> Sidecar:
    """Codes that are not all the nearest, and the figures that a builder records."""
    sidecar = sidecar_of(directory, weight, shift)
    _, shape, codes = directory.tensors["draft_head.weight"]
    changed = bytearray(codes)
    changed[::7] = bytes(byte ^ 0x11 for byte in changed[::7])
    directory.tensors["draft_head.weight"] = ("U8", shape, bytes(changed))
    directory.manifest["recipe"]["rounding"] = "gptq"
    directory.write()
    sidecar = Sidecar.open(directory.path)
    (rows,) = identity.slabs(sidecar, head(weight), torch.arange(len(IDS)))
    found = identity.figures(rows.weights, rows.codes, rows.block_scales, sidecar.head.global_scale)
    plain = plain_figures(rows.weights, rows.codes, rows.block_scales, sidecar.head.global_scale)
    assert vars(found) == pytest.approx(plain, rel=1e-5)
    directory.manifest["tensors"]["draft_head"]["error"] = vars(found)
    return Sidecar.open(directory.write())


@pytest.mark.parametrize("shifted", [False, True])
def test_the_target_it_was_built_for_passes_on_every_rank(sidecar_dir, weight, shifted):
    shift = torch.randn(H) if shifted else None
    sidecar = sidecar_of(sidecar_dir, weight, shift)
    assert identity.check_head(sidecar, head(weight), None, 0) == "6 rows of lm_head give the sidecar's codes"
    counts = [identity.differing_codes(sidecar, head(weight, begin, begin + 16)) for begin in range(0, V, 16)]
    assert counts == [(0, 4), (0, 0), (0, 1), (0, 1)]


def test_a_relative_one_per_cent_away_is_refused(sidecar_dir, weight):
    sidecar = sidecar_of(sidecar_dir, weight)
    relative = (weight.float() * (1 + 0.01 * torch.randn(V, H))).to(torch.bfloat16)
    with pytest.raises(DraftfastError, match=r"was built for another lm_head: \d+ of 192 codes differ"):
        identity.check_head(sidecar, head(relative), None, 0)


@pytest.mark.parametrize("shifted", [False, True])
def test_codes_by_error_feedback_are_known_by_their_figures(sidecar_dir, weight, shifted):
    sidecar = gptq_sidecar(sidecar_dir, weight, torch.randn(H) if shifted else None)
    assert identity.check_head(sidecar, head(weight), None, 0) == "6 rows of lm_head give the manifest's error figures"


def test_one_weight_one_bit_away_changes_the_figures(sidecar_dir, weight):
    sidecar = gptq_sidecar(sidecar_dir, weight)
    relative = weight.clone()
    relative.view(torch.int16)[IDS[3], 5] ^= 1
    with pytest.raises(DraftfastError, match="was built for another lm_head: its error against this target's rows is"):
        identity.check_head(sidecar, head(relative), None, 0)
    # An id that the draft head does not have is none of its business.
    other = weight.clone()
    other[2] += 1.0
    identity.check_head(sidecar, head(other), None, 0)


def test_figures_of_ranks_add_up(sidecar_dir, weight, monkeypatch):
    sidecar = gptq_sidecar(sidecar_dir, weight)
    recorded = identity.recorded_figures(sidecar)
    parts = []
    monkeypatch.setattr(identity, "of_all_ranks", lambda found, device: parts.append(found) or recorded)
    for begin in range(0, V, 16):
        identity.check_head(sidecar, head(weight, begin, begin + 16), None, 0, 4)
    assert sum(parts[1:], parts[0]).agrees(recorded) and not parts[0].agrees(recorded)


def checkpoint(folder: Path, weight: torch.Tensor) -> str:
    """A model folder with this head; its digest."""
    write_safetensors(folder / "model.safetensors", {"lm_head.weight": ("BF16", [V, H], raw(weight))})
    return identity.tree_sha256(raw(weight))


@pytest.mark.parametrize("converts", ["the engine", "the builder"])
def test_a_head_of_another_dtype_is_checked_by_the_checkpoint(sidecar_dir, tmp_path, weight, converts):
    sidecar_of(sidecar_dir, weight)
    own = weight.to(torch.float16) if converts == "the engine" else weight
    if converts == "the builder":
        sidecar_dir.manifest["tensors"]["draft_head"]["from"] = "F32"
    sidecar_dir.manifest["target"]["head_tree_sha256"] = checkpoint(tmp_path, weight)
    sidecar = Sidecar.open(sidecar_dir.write())
    assert "sha256" in identity.check_head(sidecar, head(own), tmp_path, 0)
    with pytest.raises(DraftfastError, match="and the target is not a local folder"):
        identity.check_head(sidecar, head(own), None, 0)
    checkpoint(tmp_path, weight * 2)
    with pytest.raises(DraftfastError, match=r"has tree sha256 [0-9a-f]{64}, and the sidecar was built for"):
        identity.check_head(sidecar, head(own), tmp_path, 0)


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


def test_the_digest_of_a_tensor_is_the_programs():
    data = bytes(i % 251 for i in range(3 * 2**20 + 5))
    digest = "f30de2b7bf3a9824d4876d8ffa7f0f0f9e07a3a287bb7c98346a92adb76a1e6b"
    assert identity.tree_sha256(data) == identity.tree_sha256(memoryview(data)) == digest


@pytest.mark.skipif(not PROGRAM.is_file(), reason="draftfast is not built")
@pytest.mark.parametrize("rule", ["max", "four-six", "mse"])
def test_the_error_figures_are_those_that_the_program_records(tmp_path, rule):
    def run(*arguments: str | Path) -> None:
        subprocess.run([PROGRAM, *arguments], check=True, capture_output=True)

    model, ids, out = tmp_path / "model", tmp_path / "ids.txt", tmp_path / "out"
    run("synth", "qwen3.5-dense", "--scale", "tiny", "-o", model)
    ids.write_text("".join(f"{token_id}\n" for token_id in range(0, 999, 3)))
    run("quantize", model, "--vocab", ids, "--scale", rule, "-o", out)
    sidecar = Sidecar.open(out)
    name = sidecar.target["head_tensor"]
    shards = [TensorFile(path) for path in sorted(model.glob("*.safetensors"))]
    shard = next(shard for shard in shards if name in shard.entries)
    weight = torch.frombuffer(bytearray(shard.bytes_of(name)), dtype=torch.bfloat16).view(shard.entries[name].shape)
    recorded = identity.recorded_figures(sidecar)
    assert recorded.sum_sq_error > 0
    identity.check_figures(sidecar, head(weight, 0, len(weight)), recorded, 1)
