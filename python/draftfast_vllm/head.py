"""The draft head: a module of its own over the kept rows, and the logits processor that knows their ids.

The target's lm_head object is shared with the drafter by vLLM; it is replaced in the drafter, never changed. Both
modules are called where vLLM's were, so each model class keeps its own `compute_logits` and the norm in it.

Tensor parallel: rank r holds rows r, r + tp, ... of the sidecar, so that ranks carry equal loads whatever ids are kept.
No call here waits for the GPU, so all of it can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import Module

from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.kernels import Kernel

NO_ID = torch.iinfo(torch.int32).max


def rank_rows(n_rows: int, tp_rank: int, tp_size: int) -> torch.Tensor:
    """The rows of one rank, ceil(n_rows / tp_size) of them: a rank that is one short repeats its first."""
    if n_rows < tp_size:
        raise DraftfastError(f"the draft head has {n_rows} rows, fewer than tensor parallel size {tp_size}")
    rows = torch.arange(tp_rank, n_rows, tp_size)
    n_short = -(-n_rows // tp_size) - len(rows)
    return torch.cat((rows, rows[:1].repeat(n_short)))


class DraftHead(Module):
    """This rank's rows. It stands where a `ParallelLMHead` stood; only `DraftLogits` calls it."""

    def __init__(
        self, kernel: Kernel, codes: torch.Tensor, scales: torch.Tensor, global_scale: float, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.params_dtype = dtype
        self.output_size_per_partition, self.input_size_per_partition = codes.shape[0], 2 * codes.shape[1]
        self.kernel = kernel
        kernel.prepare(self, codes, scales, global_scale)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, rows of this rank]."""
        return self.kernel.apply(self, hidden_states)

    def top(self, hidden_states: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, H] -> the largest logit [T] and I32 [T] its id, of the I32 ids of this rank's rows; the first of equals."""
        return self.kernel.top(self, hidden_states, token_ids)


class DraftLogits(Module):
    """Stands where the drafter's `LogitsProcessor` stood.

    `all_token_ids` is rank-major: the ids of rank 0's rows, then rank 1's, in the order of gathered logits.
    """

    def __init__(
        self, all_token_ids: torch.Tensor, tp_rank: int, tp_size: int, target_rows: int, original: Module
    ) -> None:
        super().__init__()
        self.target_rows, self.tp_size = target_rows, tp_size
        self.scale = getattr(original, "scale", 1.0)
        self.soft_cap = getattr(original, "soft_cap", None)
        if self.scale <= 0.0:
            raise DraftfastError(f"the drafter scales its logits by {self.scale}, and an argmax needs a positive scale")
        self.register_buffer("all_token_ids", all_token_ids, persistent=False)
        n_rows = len(all_token_ids) // tp_size
        self.register_buffer("token_ids", all_token_ids[tp_rank * n_rows :][:n_rows].int(), persistent=False)
        self._returns_ids = False

    def forward(self, lm_head: DraftHead, hidden_states: torch.Tensor, embedding_bias: None = None) -> torch.Tensor:
        """[T, V] logits, -inf for every id that is not kept; inside `top_tokens_of`, [T] ids."""
        if self._returns_ids:
            return self.get_top_tokens(lm_head, hidden_states)
        logits = lm_head(hidden_states)
        if self.tp_size > 1:
            from vllm.distributed import tensor_model_parallel_all_gather

            logits = tensor_model_parallel_all_gather(logits)
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        if self.scale != 1.0:
            logits = logits * self.scale
        full = logits.new_full((logits.shape[0], self.target_rows), -float("inf"))
        return full.index_copy_(1, self.all_token_ids, logits)

    def get_top_tokens(
        self, lm_head: DraftHead, hidden_states: torch.Tensor, embedding_bias: None = None
    ) -> torch.Tensor:
        """I64 [T] target ids of the largest logits, the same on every rank; the smallest id of equals.

        Scale and soft cap keep the order, so they are left out.
        """
        values, ids = lm_head.top(hidden_states, self.token_ids)
        if self.tp_size == 1:
            return ids.long()
        from vllm.distributed import tensor_model_parallel_all_gather

        # One gather, of bits: as the value of an F32 an id above 2^24 would not survive.
        pairs = torch.stack((values.float().view(torch.int32), ids), dim=-1)
        pairs = tensor_model_parallel_all_gather(pairs)
        values, ids = pairs[:, ::2].view(torch.float32), pairs[:, 1::2]
        return ids.masked_fill(values < values.amax(-1, keepdim=True), NO_ID).amin(-1).long()

    def top_tokens_of(self, compute_logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """`get_top_tokens` for a class that has none: its own `compute_logits`, norm included, up to this module."""

        def get_top_tokens(hidden_states: torch.Tensor, *args: object) -> torch.Tensor:
            self._returns_ids = True
            try:
                return compute_logits(hidden_states, *args)
            finally:
                self._returns_ids = False

        return get_top_tokens


def rank_major(token_ids: Sequence[int] | torch.Tensor, tp_size: int) -> torch.Tensor:
    """Ids in the order of gathered logits, I64."""
    ids = torch.as_tensor(token_ids, dtype=torch.int64)
    return torch.cat([ids[rank_rows(len(ids), rank, tp_size)] for rank in range(tp_size)])


def replace_head(drafter: Module, head: DraftHead, logits: DraftLogits) -> int:
    """Puts both in the drafter: `lm_head`, every `shared_head.head`, every logits processor. Returns how many heads."""
    n_heads = 0
    if hasattr(drafter, "lm_head"):
        drafter.lm_head = head
        n_heads += 1
    for name, module in list(drafter.named_modules()):
        if name.endswith("shared_head") and hasattr(module, "head"):
            module.head = head
            n_heads += 1
    n_processors = _replace_processors(drafter, logits)
    if n_heads == 0 or n_processors == 0:
        raise DraftfastError(
            f"the drafter `{type(drafter).__name__}` has {n_heads} heads and {n_processors} logits processors, expected both",
            "this model class keeps its head elsewhere; serve it without the sidecar",
        )
    if not hasattr(drafter, "get_top_tokens"):
        drafter.get_top_tokens = logits.top_tokens_of(drafter.compute_logits)
    return n_heads


def _replace_processors(drafter: Module, logits: DraftLogits) -> int:
    n_processors = 0
    for module in list(drafter.modules()):
        if isinstance(getattr(module, "logits_processor", None), Module) and not isinstance(module, DraftLogits):
            module.logits_processor = logits
            n_processors += 1
    return n_processors
