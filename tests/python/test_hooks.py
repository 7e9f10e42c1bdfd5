"""Patching on import, on made-up modules; and the look for missing hooks, on made-up packages."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

from draftfast_vllm import engine, hooks
from draftfast_vllm.errors import DraftfastError


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A module `toy_engine` with a class, hooked."""
    (tmp_path / "toy_engine.py").write_text("class Runner:\n    def load(self, x):\n        return [x]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(hooks, "HOOKS", (hooks.Hook("toy_engine", "Runner", "load", "toy"),))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(engine, "toy", lambda original, self, x: ["hooked", *original(self, x)], raising=False)
    yield
    sys.modules.pop("toy_engine", None)


def test_a_module_is_patched_when_it_is_imported(toy):
    hooks.arm()
    hooks.arm()
    assert importlib.import_module("toy_engine").Runner().load(1) == ["hooked", 1]


def test_a_module_that_is_imported_already_is_patched_once(toy):
    module = importlib.import_module("toy_engine")
    hooks.arm()
    hooks.arm()
    assert module.Runner().load(1) == ["hooked", 1]


def test_registration_imports_neither_torch_nor_vllm():
    script = "import draftfast_vllm, sys; draftfast_vllm.register(); print([m for m in ('torch', 'vllm', 'numpy') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONPATH": "python"}, check=True
    )
    assert done.stdout.strip() == "[]"


def write_package(root):
    for hook in hooks.HOOKS:
        path = root.joinpath(*hook.module.split(".")[1:]).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"class Before:\n    pass\n\n\nclass {hook.owner}(Before):\n    x = 1\n\n    def {hook.method}(self):\n        pass\n"
        )
    return root


def test_a_package_with_all_hooks_misses_none(tmp_path):
    assert engine.missing_hooks(write_package(tmp_path)) == []


def test_a_missing_method_class_or_module_is_named(tmp_path):
    write_package(tmp_path)
    proposer = tmp_path / "v1/spec_decode/llm_base_proposer.py"
    name = "vllm.v1.spec_decode.llm_base_proposer.SpecDecodeBaseProposer._maybe_share_lm_head"
    good = proposer.read_text()
    for bad in (
        good.replace("_maybe_share_lm_head", "share"),
        good.replace("SpecDecodeBaseProposer", "Proposer"),
        None,
    ):
        proposer.unlink() if bad is None else proposer.write_text(bad)
        assert engine.missing_hooks(tmp_path) == [name]


def test_the_speculator_that_0_26_lacks_may_be_missing(tmp_path):
    (write_package(tmp_path) / "v1/worker/gpu/spec_decode/multi_module_mtp/speculator.py").unlink()
    assert engine.missing_hooks(tmp_path) == []


@pytest.mark.parametrize("version", ["0.25.1", "0.34.0", "1.0.0", "dev"])
def test_an_unknown_vllm_is_refused(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version))
    with pytest.raises(
        DraftfastError, match=f"vLLM {version} is not known to this draftfast, which knows 0.26 to 0.33"
    ):
        engine.check_vllm()


def config(additional=None, speculative=True, **options):
    given = dict(method="mtp", model=None, use_local_argmax_reduction=False, draft_sample_method="greedy") | options
    return SimpleNamespace(
        model_config=SimpleNamespace(), additional_config=additional or {}, parallel_config=SimpleNamespace(tensor_parallel_size=1),
        speculative_config=SimpleNamespace(**given) if speculative else None,
    )  # fmt: skip


@pytest.fixture
def known_vllm(monkeypatch):
    monkeypatch.setattr(engine, "check_vllm", lambda: None)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def test_the_digest_goes_into_what_vllm_hashes(sidecar_dir, known_vllm):
    vllm_config = config({"draftfast": {"sidecar": str(sidecar_dir.path)}})
    engine.config_post_init(lambda self: None, vllm_config)
    written = vllm_config.additional_config["draftfast"]
    assert len(written["sidecar_sha256"]) == 64
    engine.config_post_init(lambda self: None, vllm_config)
    assert vllm_config.additional_config["draftfast"] == written


def test_an_engine_without_settings_is_left_alone(monkeypatch):
    monkeypatch.setattr(engine.config, "_installed", None)
    vllm_config = config()
    engine.config_post_init(lambda self: None, vllm_config)
    assert vllm_config.additional_config == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculative": False}, "the engine does not speculate"),
        ({"method": "eagle3"}, "speculative method is `eagle3`"),
        (
            {"use_local_argmax_reduction": True, "draft_sample_method": "probabilistic"},
            "`draft_sample_method` is `probabilistic`",
        ),
        ({"draft_lm_head_quantization": "nvfp4"}, "`draft_lm_head_quantization` makes a draft head of its own"),
    ],
)
def test_contradictions_are_refused(sidecar_dir, known_vllm, options, message):
    with pytest.raises(DraftfastError, match=message):
        engine.config_post_init(lambda self: None, config({"draftfast": {"sidecar": str(sidecar_dir.path)}}, **options))


def test_a_sidecar_that_changed_is_refused(sidecar_dir, known_vllm):
    vllm_config = config({"draftfast": {"sidecar": str(sidecar_dir.path), "sidecar_sha256": "0" * 64}})
    with pytest.raises(DraftfastError, match="and the configuration expects 0000"):
        engine.config_post_init(lambda self: None, vllm_config)


def test_workers_that_would_not_load_the_plugin_are_refused(monkeypatch):
    monkeypatch.setattr(engine, "entry_points", lambda group: [])
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    engine.check_workers(1)
    for tp_size, multiprocessing in ((2, "0"), (1, "1")):
        monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", multiprocessing)
        with pytest.raises(DraftfastError, match="the entry point of draftfast is not installed"):
            engine.check_workers(tp_size)
    monkeypatch.setattr(engine, "entry_points", lambda group: [SimpleNamespace(name="draftfast")])
    engine.check_workers(2)
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    with pytest.raises(DraftfastError, match="`VLLM_PLUGINS` is `other`"):
        engine.check_workers(2)
    monkeypatch.setenv("VLLM_PLUGINS", "other,draftfast")
    engine.check_workers(2)
