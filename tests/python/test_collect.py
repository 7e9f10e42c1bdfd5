"""What is recorded at the input of a linear, and under which names."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the plugin's tensor code needs torch")

from draftfast_vllm import collect, nvfp4  # noqa: E402
from draftfast_vllm.backend import head_kernel  # noqa: E402
from draftfast_vllm.config import Settings  # noqa: E402
from draftfast_vllm.errors import DraftfastError  # noqa: E402
from draftfast_vllm.head import DraftHead, DraftLogits  # noqa: E402


def record(**settings) -> collect.InputRecord:
    return collect.InputRecord(["a.weight"], Settings(collect="x", **settings))


def test_batches_add_up_to_the_whole():
    x = torch.randn(100, 8, dtype=torch.bfloat16)
    found = record(collect_second_moments=True)
    for batch in x.split([1, 9, 40, 50]):
        found.add(batch.view(-1, 1, 8))
    assert found.n_states == 100
    assert torch.allclose(found.sum_of_squares, x.double().square().sum(0))
    assert torch.allclose(found.sum_of_products, x.float().T @ x.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [1, 7, 8, 100, 1000])
@pytest.mark.parametrize("batch", [1, 3, 64])
def test_states_are_spread_evenly_over_the_run(n, batch):
    x = torch.arange(500).unsqueeze(1).float()
    found = record(collect_states=n)
    for part in x.split(batch):
        found.add(part)
    numbers = [int(state) for state in found.sample()]
    assert len(numbers) == min(n, 500)
    gaps = {b - a for a, b in itertools.pairwise(numbers)}
    assert numbers[0] == 0 and (not gaps or max(gaps) <= 2 * min(gaps))
    assert numbers[-1] >= 500 - 2 * (500 // min(n, 500)) - 1 or n == 1


def test_drafter_modules_get_the_names_of_their_tensors():
    linear = SimpleNamespace(weight_loader_v2=None)
    modules = {
        "model.fc": linear,
        "model.layers.0.self_attn.qkv_proj": linear,
        "model.layers.0.mlp.gate": SimpleNamespace(),
    }
    names = [
        "lm_head.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "mtp.fc.weight",
        "mtp.norm.weight",
        "mtp.layers.0.mlp.gate.weight",
    ]
    names += [f"mtp.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    assert collect.drafter_tensors(names, modules, 4) == {
        "model.fc": ["mtp.fc.weight"],
        "model.layers.0.self_attn.qkv_proj": [f"mtp.layers.0.self_attn.{part}_proj.weight" for part in "qkv"],
    }


def test_layers_behind_the_target_are_the_drafters():
    modules = {
        "model.layers.61.mtp_block.o_proj": SimpleNamespace(weight_loader_v2=None),
        "model.layers.61.eh_proj": torch.nn.Linear(2, 2),
    }
    names = ["model.layers.3.o_proj.weight", "model.layers.61.o_proj.weight", "model.layers.61.eh_proj.weight"]
    assert collect.drafter_tensors(names, modules, 61) == {
        "model.layers.61.mtp_block.o_proj": ["model.layers.61.o_proj.weight"],
        "model.layers.61.eh_proj": ["model.layers.61.eh_proj.weight"],
    }


def test_the_head_is_lm_head_or_a_tied_embedding():
    assert (
        collect.head_name(["model.embed_tokens.weight", "model.language_model.lm_head.weight"])
        == "model.language_model.lm_head.weight"
    )
    assert collect.head_name(["mtp.embed_tokens.weight", "model.embed_tokens.weight"]) == "model.embed_tokens.weight"
    with pytest.raises(DraftfastError, match=r"neither `lm_head\.weight` nor an embedding"):
        collect.head_name(["a.weight"])


@pytest.mark.parametrize(
    ("eager", "tp_size", "message"),
    [(False, 1, "needs an eager engine"), (True, 2, "needs tensor parallel size 1, found 2")],
)
def test_engines_in_which_hooks_miss_inputs_are_refused(eager, tp_size, message):
    vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=eager), parallel_config=SimpleNamespace(tensor_parallel_size=tp_size)
    )
    with pytest.raises(DraftfastError, match=message):
        collect.check_engine(vllm_config)


@pytest.mark.parametrize("call", ["logits", "ids"])
def test_our_head_is_seen_whichever_way_it_multiplies(tmp_path, call):
    weights = torch.randn(4, 32)
    codes, scales, gs = nvfp4.quantize(weights)
    head = DraftHead(head_kernel("auto", codes, scales, gs, torch.float32, 8), codes, scales, gs, torch.float32)
    logits = DraftLogits(torch.tensor([1, 2, 3, 5]), 0, 1, 8, SimpleNamespace(scale=1.0, soft_cap=None))
    drafter = torch.nn.Module()
    drafter.lm_head = head
    collector = collect.Collector(tmp_path, Settings(collect="x"))
    collector.watch_head(drafter, ["lm_head.weight"])
    x = torch.randn(3, 32)
    (logits if call == "logits" else logits.get_top_tokens)(head, x)
    assert collector.records[0].n_states == 0, "a warm-up"
    collector._serving = True
    (logits if call == "logits" else logits.get_top_tokens)(head, x)
    assert collector.records[0].n_states == 3
    assert torch.allclose(collector.records[0].sum_of_squares, x.double().square().sum(0))
