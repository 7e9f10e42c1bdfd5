"""The draft head on one rank and on several: rows, ids, ties, logits, and classes that lack `get_top_tokens`."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the plugin's tensor code needs torch")

from draftfast_vllm import nvfp4  # noqa: E402
from draftfast_vllm.backend import head_kernel  # noqa: E402
from draftfast_vllm.errors import DraftfastError  # noqa: E402
from draftfast_vllm.head import DraftHead, DraftLogits, rank_major, rank_rows, replace_head  # noqa: E402

V, H = 100, 32
PLAIN = SimpleNamespace(scale=1.0, soft_cap=None)


def make(ids: list[int], rank: int = 0, tp_size: int = 1, original=PLAIN, seed: int = 0):
    weights = torch.randn(V, H, generator=torch.Generator().manual_seed(seed))[ids]
    weights[:] = torch.where(torch.tensor(ids).unsqueeze(1) == ids[0], weights[:1], weights)
    codes, scales, gs = nvfp4.quantize(weights)
    rows = rank_rows(len(ids), rank, tp_size)
    head = DraftHead(
        head_kernel("auto", codes[rows], scales[rows], gs, torch.float32, 8),
        codes[rows],
        scales[rows],
        gs,
        torch.float32,
    )
    return head, DraftLogits(rank_major(ids, tp_size), rank, tp_size, V, original), nvfp4.decode(codes, scales, gs)


def test_logits_stand_at_their_ids_and_minus_infinity_elsewhere():
    ids = [3, 5, 40, 99]
    head, logits, weights = make(ids)
    x = torch.randn(7, H)
    full = logits(head, x)
    assert full.shape == (7, V)
    assert torch.allclose(full[:, ids], x @ weights.T, rtol=1e-4, atol=1e-5)
    rest = torch.ones(V, dtype=torch.bool)
    rest[ids] = False
    assert (full[:, rest] == -float("inf")).all()
    assert torch.equal(logits.get_top_tokens(head, x), full.argmax(-1))


@pytest.mark.parametrize("n_rows", [2, 3, 7, 50, 51])
@pytest.mark.parametrize("tp_size", [1, 2, 3])
@pytest.mark.parametrize("n_repeats", [0, 4])
def test_ranks_agree_with_each_other_and_with_one_rank(monkeypatch, n_rows, tp_size, n_repeats):
    if n_rows + n_repeats < tp_size:
        pytest.skip("fewer rows than ranks")
    ids = sorted(torch.randperm(V, generator=torch.Generator().manual_seed(n_rows))[:n_rows].tolist())
    ids += ids[:1] * n_repeats
    x = torch.randn(9, H, generator=torch.Generator().manual_seed(1)).round()
    x[0] = 0  # every logit ties
    whole, one, _ = make(ids)
    expected_ids, expected_logits = one.get_top_tokens(whole, x), one(whole, x)
    ranks = [make(ids, rank, tp_size)[:2] for rank in range(tp_size)]
    local = [(head(x), logits) for head, logits in ranks]
    sent: list[torch.Tensor] = []
    fake_gather(monkeypatch, lambda pairs: sent.append(pairs) or pairs.repeat(1, tp_size))
    for head, logits in ranks:
        logits.get_top_tokens(head, x)
    for head, logits in ranks:
        fake_gather(monkeypatch, lambda _: torch.cat(sent, -1))
        assert torch.equal(logits.get_top_tokens(head, x), expected_ids)
        fake_gather(monkeypatch, lambda _: torch.cat([values for values, _ in local], -1))
        # Shares of a matrix product may differ in the last bit.
        assert torch.allclose(logits(head, x), expected_logits, rtol=1e-4, atol=1e-5)


def fake_gather(monkeypatch, gather):
    package, module = ModuleType("vllm"), ModuleType("vllm.distributed")
    module.tensor_model_parallel_all_gather = gather
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setitem(sys.modules, "vllm.distributed", module)


def test_ranks_have_equal_shares_whatever_ids_are_kept():
    shares = [rank_rows(10, rank, 4).tolist() for rank in range(4)]
    assert shares == [[0, 4, 8], [1, 5, 9], [2, 6, 2], [3, 7, 3]]
    with pytest.raises(DraftfastError, match="has 3 rows, fewer than tensor parallel size 4"):
        rank_rows(3, 0, 4)


def test_soft_cap_and_scale_of_the_class_go_on():
    head, logits, weights = make([1, 2, 3], original=SimpleNamespace(scale=0.5, soft_cap=2.0))
    x = torch.randn(4, H)
    assert torch.allclose(logits(head, x)[:, [1, 2, 3]], torch.tanh(x @ weights.T / 2) * 2 * 0.5)
    with pytest.raises(DraftfastError, match="scales its logits by -1"):
        make([1, 2, 3], original=SimpleNamespace(scale=-1.0, soft_cap=None))


class Processor(torch.nn.Module):
    scale, soft_cap = 1.0, None

    def forward(self, lm_head, x):
        raise AssertionError("replaced")


class SharedHead(torch.nn.Module):
    """DeepSeek's: a norm, and a head that is called by the logits processor."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(H, V)

    def forward(self, x):
        return x * 2 + 1


class Drafter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleDict({"61": torch.nn.Module(), "62": torch.nn.Module()})
        for layer in self.model.layers.values():
            layer.shared_head = SharedHead()
        self.model.logits_processor = Processor()

    def compute_logits(self, x, spec_step_idx=0):
        shared = self.model.layers[str(61 + spec_step_idx)].shared_head
        return self.model.logits_processor(shared.head, shared(x))


def test_a_shared_head_keeps_its_norm_and_gets_top_tokens():
    drafter = Drafter()
    head, logits, weights = make([4, 8, 15, 16, 23, 42])
    assert replace_head(drafter, head, logits) == 2
    x = torch.randn(5, H)
    expected = drafter.compute_logits(x)
    assert torch.allclose(expected[:, [4, 8, 15, 16, 23, 42]], (x * 2 + 1) @ weights.T, rtol=1e-4, atol=1e-5)
    assert torch.equal(drafter.get_top_tokens(x), expected.argmax(-1))
    assert torch.equal(drafter.get_top_tokens(x, 1), expected.argmax(-1))
    assert drafter.compute_logits(x).shape == (5, V)


def test_a_drafter_without_a_head_is_refused():
    head, logits, _ = make([1, 2])
    with pytest.raises(DraftfastError, match="has 0 heads and 0 logits processors, expected both"):
        replace_head(torch.nn.Linear(2, 2), head, logits)
