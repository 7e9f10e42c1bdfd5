"""Opening a sidecar: what a good one gives, and one sentence for each way to be bad."""

from __future__ import annotations

import struct

import pytest
from conftest import SidecarDir, head, packed

from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.sidecar import Sidecar


def refusal(directory: SidecarDir) -> str:
    with pytest.raises(DraftfastError) as refused:
        sidecar = Sidecar.open(directory.write())
        sidecar.check_scales()
        sidecar.verify_drafter()
    return str(refused.value)


def test_a_good_sidecar_opens(sidecar_dir):
    sidecar = Sidecar.open(sidecar_dir.path)
    sidecar.check_scales()
    sidecar.verify_drafter()
    assert (sidecar.head.n, sidecar.head.k, sidecar.head.global_scale) == (4, 32, 0.5)
    assert [(linear.name, linear.n, linear.k) for linear in sidecar.linears] == [("mtp.fc", 32, 64)]
    assert list(sidecar.token_ids) == [1, 4, 7, 9]
    assert len(sidecar.sha256) == 64


def test_rows_may_repeat_the_first_id_at_the_end(sidecar_dir):
    sidecar_dir.tensors |= head([1, 4, 7, 1, 1])
    sidecar = Sidecar.open(sidecar_dir.write())
    assert (sidecar.n_real_rows, sidecar.head.n) == (3, 5)


@pytest.mark.parametrize("ids", [[4, 1], [1, 1, 4], [1, 4, 4], [1, 16], [-1, 4], [1, 4, 1, 7]])
def test_ids_out_of_order_or_range_are_refused(sidecar_dir, ids):
    sidecar_dir.tensors |= head(ids)
    assert "expected ascending ids below 16" in refusal(sidecar_dir)


def test_a_later_format_is_refused(sidecar_dir):
    sidecar_dir.manifest["format"] = 2
    assert "has format 2, and this plugin reads format 1" in refusal(sidecar_dir)


def test_a_manifest_without_a_target_is_refused(sidecar_dir):
    sidecar_dir.manifest["target"].pop("head_tree_sha256")
    assert "does not say which target it serves" in refusal(sidecar_dir)


@pytest.mark.parametrize("suffix", ["weight", "weight_scale"])
def test_a_missing_part_is_named(sidecar_dir, suffix):
    del sidecar_dir.tensors[f"mtp.fc.{suffix}"]
    assert f"has no tensor `mtp.fc.{suffix}`" in refusal(sidecar_dir)


def test_a_missing_head_is_named(sidecar_dir):
    for name in [name for name in sidecar_dir.tensors if name.startswith("draft_head")]:
        del sidecar_dir.tensors[name]
    assert "has no tensor `draft_head.weight`" in refusal(sidecar_dir)


def test_scales_of_another_shape_are_refused(sidecar_dir):
    sidecar_dir.tensors["mtp.fc.weight_scale"] = ("F8_E4M3", [32, 2], b"\x38" * 64)
    assert "`mtp.fc.weight_scale` has shape [32, 2], expected [32, 4] for 32 x 64 weights" in refusal(sidecar_dir)


def test_columns_that_are_no_blocks_are_refused(sidecar_dir):
    sidecar_dir.tensors |= packed("mtp.fc", 32, 24) | {"mtp.fc.weight_scale": ("F8_E4M3", [32, 1], b"\x38" * 32)}
    assert "expected [32, 1.5]" in refusal(sidecar_dir)


@pytest.mark.parametrize("nan", [b"\x7f", b"\xff"])
def test_nan_scales_are_refused(sidecar_dir, nan):
    sidecar_dir.tensors["mtp.fc.weight_scale"] = ("F8_E4M3", [32, 4], b"\x38" * 127 + nan)
    assert "tensor `mtp.fc.weight_scale` holds NaN" in refusal(sidecar_dir)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 0.0, -1.0])
def test_global_scales_that_are_no_scales_are_refused(sidecar_dir, scale):
    sidecar_dir.tensors["mtp.fc.weight_scale_2"] = ("F32", [], struct.pack("<f", scale))
    assert "expected a positive number" in refusal(sidecar_dir)


def test_a_changed_byte_is_found(sidecar_dir):
    path = sidecar_dir.path / "drafter.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x40")
    with pytest.raises(DraftfastError, match=r"`sha256sums.txt` says"):
        Sidecar.open(sidecar_dir.path).verify_drafter()


def test_a_changed_manifest_is_found(sidecar_dir):
    (sidecar_dir.path / "manifest.json").write_text("{}")
    with pytest.raises(DraftfastError, match=r"manifest.json` has sha256"):
        Sidecar.open(sidecar_dir.path)


def test_every_truncation_is_refused(sidecar_dir):
    path = sidecar_dir.path / "drafter.safetensors"
    whole = path.read_bytes()
    for n_bytes in [*range(0, 16), *range(16, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:n_bytes])
        with pytest.raises(DraftfastError):
            Sidecar.open(sidecar_dir.path)


def test_coverage_is_said_as_it_was_measured(sidecar_dir):
    assert Sidecar.open(sidecar_dir.path).coverage() == "coverage not recorded"
    shares = [{"domain": "en", "share": 0.96926}, {"domain": "zh", "share": 0.5}]
    sidecar_dir.record = {"coverage": {"measured": "in-sample", "coverage": shares}}
    sidecar = Sidecar.open(sidecar_dir.write())
    assert sidecar.coverage() == "covering en 96.9 %, zh 50.0 % of the text they were chosen from"
    (sidecar.path / "vocabulary.json").write_text("{}")
    with pytest.raises(DraftfastError, match=r"vocabulary.json` has sha256"):
        sidecar.coverage()
    sidecar_dir.record = {"coverage": {"measured": "split", "coverage": []}}
    assert Sidecar.open(sidecar_dir.write()).coverage() == "coverage not measured"
    sidecar_dir.record = {"coverage": {"measured": "held-out"}}
    with pytest.raises(DraftfastError, match="holds no coverage"):
        Sidecar.open(sidecar_dir.write()).coverage()


def test_no_directory_is_refused(tmp_path):
    with pytest.raises(DraftfastError, match="is not a directory"):
        Sidecar.open(tmp_path / "nowhere")
