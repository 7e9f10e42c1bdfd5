"""Finding sidecar linears in a drafter: names, fused parts, and what does not fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the plugin's tensor code needs torch")

from draftfast_vllm import linears  # noqa: E402
from draftfast_vllm.errors import DraftfastError  # noqa: E402
from draftfast_vllm.sidecar import Packed  # noqa: E402


class Column(torch.nn.Module):
    def __init__(self, n, k, **more):
        super().__init__()
        self.output_size, self.input_size, self.quant_method = n, k, SimpleNamespace()
        for name, value in more.items():
            setattr(self, name, value)


def drafter(**modules):
    root = torch.nn.Module()
    for path, module in modules.items():
        parent = root
        *parents, leaf = path.split("__")
        for name in parents:
            if not hasattr(parent, name):
                parent.add_module(name, torch.nn.Module())
            parent = getattr(parent, name)
        parent.add_module(leaf, module)
    return root


QKV = dict(total_num_heads=8, total_num_kv_heads=2, head_size=16)


def parts(names, sizes, k=64, scale=1.0):
    return [Packed(name, n, k, scale) for name, n in zip(names, sizes, strict=True)]


def test_fused_parts_meet_in_their_module():
    root = drafter(
        model__fc=Column(64, 128),
        model__layers__0__qkv_proj=Column(192, 64, **QKV),
        model__layers__0__gate_up_proj=Column(96, 64, output_sizes=[48, 48]),
    )
    names = [f"mtp.layers.0.{part}_proj" for part in ("q", "k", "v", "gate", "up")]
    found = linears.group(root, [*parts(names, [128, 32, 32, 48, 48]), Packed("mtp.fc", 64, 128, 2.0)])
    assert {group.name: list(group.parts) for group in found} == {
        "model.layers.0.qkv_proj": ["q", "k", "v"], "model.layers.0.gate_up_proj": [0, 1], "model.fc": [None],
    }  # fmt: skip


def test_deepseek_names_lead_into_the_mtp_block():
    root = drafter(
        model__layers__61__mtp_block__o_proj=Column(64, 64),
        model__layers__61__eh_proj=torch.nn.Linear(128, 64, bias=False),
    )
    found = linears.group(
        root, [Packed("model.layers.61.o_proj", 64, 64, 1.0), Packed("model.layers.61.eh_proj", 64, 128, 1.0)]
    )
    assert [group.name for group in found] == ["model.layers.61.mtp_block.o_proj", "model.layers.61.eh_proj"]


@pytest.mark.parametrize(
    ("sidecar_parts", "message"),
    [
        (parts(["mtp.layers.0.q_proj", "mtp.layers.0.k_proj"], [128, 32]), "needs its shard `v` quantized too"),
        (parts(["mtp.layers.0.gate_proj"], [48]), "needs its shard `1` quantized too"),
        (parts(["mtp.layers.0.gate_proj"], [48]) + parts(["mtp.layers.0.up_proj"], [48], scale=2.0), r"global scales \[1.0, 2.0\]"),
        (parts(["mtp.layers.0.gate_proj", "mtp.layers.0.up_proj"], [48, 64]), r"`mtp.layers.0.up_proj.weight` of the sidecar has shape \[64, 64\], and the drafter's has \[48, 64\]"),
        (parts(["mtp.layers.0.q_proj", "mtp.layers.0.k_proj", "mtp.layers.0.v_proj"], [64, 32, 32]), r"has shape \[64, 64\], and the drafter's has \[128, 64\]"),
        (parts(["mtp.layers.0.mlp.shared_expert.up_proj"], [48]), "has no linear in the drafter"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(sidecar_parts, message):
    root = drafter(
        model__layers__0__qkv_proj=Column(192, 64, **QKV),
        model__layers__0__gate_up_proj=Column(96, 64, output_sizes=[48, 48]),
    )
    with pytest.raises(DraftfastError, match=message):
        linears.group(root, sidecar_parts)


def test_a_four_shard_attention_needs_its_index_shards():
    class QKVIndexerLinear(Column):
        pass

    root = drafter(model__layers__0__qkv_proj=QKVIndexerLinear(192, 64, **QKV))
    names = [f"mtp.layers.0.{part}_proj" for part in "qkv"]
    with pytest.raises(DraftfastError, match="needs its shard `index_k`, `index_q` quantized too"):
        linears.group(root, parts(names, [128, 32, 32]))
