"""Where settings come from, and what is refused."""

from __future__ import annotations

import pytest

from draftfast_vllm import config
from draftfast_vllm.config import Settings, resolve
from draftfast_vllm.errors import DraftfastError


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch):
    monkeypatch.setattr(config, "_installed", None)


def test_nothing_configured_is_nothing():
    assert resolve({}, {}) is None
    assert resolve({"other": 1}, {"PATH": "/bin", "Q38_DRAFT_MODEL": "x", "DRAFTFAST_BACKEND": "vllm"}) is None


def test_additional_config_comes_before_install_and_the_environment(monkeypatch):
    monkeypatch.setattr(config, "_installed", Settings(sidecar="b"))
    environment = {"DRAFTFAST_SIDECAR": "c"}
    assert resolve({"draftfast": {"sidecar": "a"}}, environment).sidecar == "a"
    assert resolve({}, environment).sidecar == "b"
    monkeypatch.setattr(config, "_installed", None)
    assert resolve({}, environment).sidecar == "c"


def test_the_seeds_mask_is_found_by_its_variables():
    assert resolve({}, {"SPARK_DRAFT_VOCAB": "/x/keep.pt", "SPARK_DRAFT_ROWS": "64064"}).mask == "/x/keep.pt"
    assert resolve({}, {"Q38_KEEP_MASK": "/x/keep.pt"}).mask == "/x/keep.pt"
    assert resolve({}, {"Q38_KEEP_MASK": "/x/keep.pt", "DRAFTFAST_SIDECAR": "s"}) == Settings(sidecar="s")
    with pytest.raises(DraftfastError, match="`Q38_KEEP_MASK`, `SPARK_DRAFT_VOCAB` name different masks"):
        resolve({}, {"SPARK_DRAFT_VOCAB": "a.pt", "Q38_KEEP_MASK": "b.pt"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("DIR", "is str, expected an object"),
        ({}, "names neither `sidecar`, `mask` nor `collect`"),
        ({"sidecar": "a", "mask": "b"}, "gives both `sidecar` and `mask`"),
        ({"sidecar": 1}, "`sidecar` is int, expected a string"),
        ({"sidecar": "a", "backend": "fast"}, "`backend` is `fast`, expected one of auto, draftfast, vllm"),
        ({"sidecar": "a", "sidecars": "b"}, "has the unknown key `sidecars`"),
        ({"sidecar": "a", "keep_bf16": "mtp.*"}, "`keep_bf16` is not a list of globs"),
        ({"collect": "a", "collect_states": -1}, "`collect_states` is not a number of states"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, message):
    with pytest.raises(DraftfastError, match=message.replace("[", r"\[")):
        resolve({"draftfast": given}, {})


def test_what_is_written_back_reads_as_the_same():
    settings = Settings(sidecar="/a", keep_bf16=("mtp.fc",), sidecar_sha256="f" * 64)
    written = settings.to_json()
    assert written == {"sidecar": "/a", "keep_bf16": ["mtp.fc"], "sidecar_sha256": "f" * 64}
    assert resolve({"draftfast": written}, {}) == settings
