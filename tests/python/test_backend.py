"""Linears by our product and by vLLM's: which of them takes how many vectors, and that both give the decoder's result."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

import emulated  # noqa: E402
from draftfast_vllm import backend, gemv, linears, nvfp4  # noqa: E402
from draftfast_vllm.errors import DraftfastError  # noqa: E402


@pytest.fixture
def ours(monkeypatch):
    """Our products by the reference decoder; what was launched."""
    for module, name in ((backend, "gemv_kernel"), (gemv, "_run"), (gemv, "plan"), (gemv, "most_blocks")):
        monkeypatch.setattr(module, name, getattr(module, name))
    emulated.enable()
    emulated.launches.clear()
    return emulated.launches


def plain(n, k, bias=None):
    """A `PlainLinear` filled with random weights, and these decoded."""
    torch.manual_seed(n * k)
    codes, scales, global_scale = nvfp4.quantize(torch.randn(n, k, dtype=torch.bfloat16))
    original = torch.nn.Linear(k, n, bias=bias is not None, dtype=torch.bfloat16)
    if bias is not None:
        original.bias.data.fill_(bias)
    layer = linears.PlainLinear(original)
    layer.kernel = backend.fill_linear("draftfast", "fc", layer, codes, scales, global_scale)
    return layer, nvfp4.decode(codes, scales, global_scale)


def is_product(y, x, weight):
    """Within what rounding the decoded weights to BF16 does, which the reference's wide kernel does and ours does not."""
    expected = x.float() @ weight.T
    return y.shape == expected.shape and float((y.float() - expected).norm()) <= 5e-3 * float(expected.norm())


@pytest.mark.parametrize(("n", "k"), [(48, 64), (33, 16), (64, 272)])
@pytest.mark.parametrize("m", [0, 1, 3, 8, 9, 40])
def test_any_number_of_vectors_gives_the_decoders_result(ours, n, k, m):
    layer, weight = plain(n, k)
    x = torch.randn(m, k, dtype=torch.bfloat16)
    y = layer(x)
    assert y.dtype == torch.bfloat16 and is_product(y, x, weight)
    assert ours == ([("layer", m)] if 1 <= m <= 8 else [])


def test_more_dimensions_and_a_bias(ours):
    layer, weight = plain(32, 64, bias=3.0)
    x = torch.randn(2, 3, 64, dtype=torch.bfloat16)
    assert is_product(layer(x) - 3.0, x, weight)
    assert ours == [("layer", 6)]


def test_a_compiler_sees_one_op_for_all_numbers_of_vectors(ours):
    layer, weight = plain(32, 64)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for m in (2, 8, 12):
        x = torch.randn(m, 64, dtype=torch.bfloat16)
        assert is_product(compiled(x), x, weight)
    assert ours == [("layer", 2), ("layer", 8)]


def test_layers_do_not_meet_each_others_weights(ours):
    (first, first_weight), (second, second_weight) = plain(32, 64), plain(48, 64)
    x = torch.randn(16, 64, dtype=torch.bfloat16)
    for layer, weight in ((first, first_weight), (second, second_weight)):
        assert is_product(layer(x), x, weight)


@pytest.mark.parametrize(
    ("times", "most"),
    [
        ({1: (5, 9), 2: (5, 9), 4: (5, 9), 8: (5, 9)}, 8),
        ({1: (5, 9), 2: (5, 9), 4: (10, 9), 8: (5, 9)}, 2),
        ({1: (9, 9), 2: (10, 9), 4: (10, 9), 8: (10, 9)}, 1),
        ({1: (10, 9), 2: (5, 9), 4: (5, 9), 8: (5, 9)}, 0),
    ],
)
def test_ours_is_taken_while_it_wins(times, most):
    assert backend.most_vectors(times) == most


@pytest.mark.parametrize("most", [0, 1, 8])
def test_auto_keeps_only_the_layouts_that_it_uses(ours, monkeypatch, most):
    monkeypatch.setattr(backend, "linear_us", lambda *_: {m: (m / (most + 0.5), 1.0) for m in (1, 2, 4, 8)})
    codes, scales, global_scale = nvfp4.quantize(torch.randn(32, 64, dtype=torch.bfloat16))
    layer = linears.PlainLinear(torch.nn.Linear(64, 32, bias=False, dtype=torch.bfloat16))
    layer.kernel = backend.fill_linear("auto", "fc", layer, codes, scales, global_scale)
    assert set(dict(layer.named_parameters())) == ({"weight", "codes", "block_scales"} if most else {"weight"})
    layer(torch.randn(1, 64, dtype=torch.bfloat16)), layer(torch.randn(8, 64, dtype=torch.bfloat16))
    assert ours == [("layer", m) for m in (1, 8) if m <= most]
    assert ("both layouts" in layer.kernel.name) == bool(most)


def test_a_processor_has_only_the_decoder():
    codes = torch.zeros(32, 32, dtype=torch.uint8)
    assert backend.gemv_kernel("auto", "fc", codes, torch.bfloat16, True).name == "decoded"
    with pytest.raises(DraftfastError, match="needs a CUDA device"):
        backend.gemv_kernel("draftfast", "fc", codes, torch.bfloat16, True)
