"""`collect`: serve as usual, and record what the next sidecar should be built from.

Written into the directory that the setting names:
`importance.safetensors`: per linear, named after its tensor, F32 [K], the mean of x_k^2 over its inputs;
`counts.tsv`: `id<TAB>count` of the tokens that the engine put out;
`second_moments.safetensors` (asked for): F32 [K, K], the mean of x x^T;
`states.safetensors` (asked for): raw inputs [n, K] in the model's dtype, evenly spaced over the run.

Inputs are read by module hooks, which a compiled graph or a captured one would pass by: the engine must be eager. One
rank holds whole inputs and whole outputs, so tensor parallel size is 1.
"""

from __future__ import annotations

import atexit
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from draftfast_vllm.attach import local_dir
from draftfast_vllm.config import Settings
from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.head import DraftHead
from draftfast_vllm.linears import candidates
from draftfast_vllm.tensor_file import TensorFile

# Draft steps between two writes of the small files, and of all.
N_STEPS_SMALL, N_STEPS_ALL = 256, 8192


def check_engine(vllm_config: Any) -> None:
    """Refuses engines in which hooks would not see every input."""
    if not vllm_config.model_config.enforce_eager:
        raise DraftfastError(
            "`collect` needs an eager engine: hooks do not run inside compiled graphs", "add `--enforce-eager`"
        )
    if vllm_config.parallel_config.tensor_parallel_size != 1:
        raise DraftfastError(
            f"`collect` needs tensor parallel size 1, found {vllm_config.parallel_config.tensor_parallel_size}"
        )


class InputRecord:
    """What was seen at the input of one module; `names` are the tensors that it stands for."""

    def __init__(self, names: list[str], settings: Settings) -> None:
        self.names = names
        self.n_states = 0
        self.sum_of_squares: torch.Tensor | None = None
        self.sum_of_products: torch.Tensor | None = None
        self.states: list[torch.Tensor] = []
        self._wants_products, self._n_wanted_states = settings.collect_second_moments, settings.collect_states
        self._stride = 1

    def add(self, x: torch.Tensor) -> None:
        """[..., K] inputs."""
        x = x.detach().reshape(-1, x.shape[-1])
        squares = x.double().square().sum(0)
        self.sum_of_squares = squares if self.sum_of_squares is None else self.sum_of_squares + squares
        if self._wants_products:
            products = x.float().T @ x.float()
            self.sum_of_products = products if self.sum_of_products is None else self.sum_of_products + products
        if self._n_wanted_states:
            self._sample(x)
        self.n_states += len(x)

    def sample(self) -> list[torch.Tensor]:
        """As many states as were asked for, evenly spaced over the run."""
        n = min(len(self.states), self._n_wanted_states)
        return [self.states[i * len(self.states) // n] for i in range(n)]

    def _sample(self, x: torch.Tensor) -> None:
        """Every `stride`-th state of the run; when twice too many are held, every second of them goes."""
        first = -self.n_states % self._stride
        self.states.extend(x[first :: self._stride].cpu().unbind())
        while len(self.states) >= 2 * self._n_wanted_states:
            self.states = self.states[::2]
            self._stride *= 2


class Collector:
    """All records of one engine, and the directory they go to."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.directory, self.settings = directory, settings
        self.records: list[InputRecord] = []
        self.counts: Counter[int] = Counter()
        self._n_steps = 0
        self._serving = False
        directory.mkdir(parents=True, exist_ok=True)

    def watch_linear(self, module: Module, names: list[str]) -> None:
        """Records the input of each call. Warm-up runs, which have no attention metadata, are left out."""
        record = self._record(names)

        def before(_: Module, inputs: tuple[torch.Tensor, ...]) -> None:
            self._serving = serves_requests()
            if self._serving:
                record.add(inputs[0])

        module.register_forward_pre_hook(before)

    def watch_head(self, drafter: Module, names: list[str]) -> None:
        """Our head multiplies in `forward` or `top`; vLLM's is read by either method of the logits processor."""
        record = self._record(names)
        heads = [module for module in drafter.modules() if isinstance(module, DraftHead)]
        if heads:
            self._watch_methods(heads[0], ("forward", "top"), 0, record)
            return
        for module in list(drafter.modules()):
            processor = getattr(module, "logits_processor", None)
            if isinstance(processor, Module):
                self._watch_methods(processor, ("forward", "get_top_tokens"), 1, record)

    def count_outputs(self, token_ids: int | Iterable[int]) -> None:
        """Tokens that a request put out."""
        self.counts.update([token_ids] if isinstance(token_ids, int) else token_ids)

    def write(self, everything: bool = True) -> None:
        """Replaces the files."""
        seen = [record for record in self.records if record.n_states]
        self._write_counts()
        self._write_tensors(
            "importance", {name: (r.sum_of_squares / r.n_states).float() for r in seen for name in r.names}
        )
        if not everything:
            return
        if self.settings.collect_second_moments:
            self._write_tensors(
                "second_moments", {name: r.sum_of_products / r.n_states for r in seen for name in r.names}
            )
        if self.settings.collect_states:
            self._write_tensors("states", {name: torch.stack(r.sample()) for r in seen for name in r.names})

    def _record(self, names: list[str]) -> InputRecord:
        self.records.append(InputRecord(names, self.settings))
        return self.records[-1]

    def _head_input(self, record: InputRecord, hidden_states: torch.Tensor) -> None:
        if not self._serving:
            return
        record.add(hidden_states)
        self._n_steps += 1
        if self._n_steps % N_STEPS_SMALL == 0:
            self.write(everything=self._n_steps % N_STEPS_ALL == 0)

    def _watch_methods(self, module: Module, methods: Iterable[str], position: int, record: InputRecord) -> None:
        """Records argument `position` of these methods, none of which calls another."""
        for name in methods:
            setattr(module, name, self._watched(getattr(module, name), position, record))

    def _watched(self, original: Callable[..., Any], position: int, record: InputRecord) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            self._head_input(record, args[position])
            return original(*args, **kwargs)

        return method

    def _write_tensors(self, stem: str, tensors: dict[str, torch.Tensor]) -> None:
        from safetensors.torch import save_file

        tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in sorted(tensors.items())}
        n_states = {f"n_states.{name}": str(record.n_states) for record in self.records for name in record.names}
        part = self.directory / f".{stem}.part"
        save_file(tensors, part, metadata={"format": "pt", **n_states})
        part.chmod(0o644)
        os.replace(part, self.directory / f"{stem}.safetensors")

    def _write_counts(self) -> None:
        part = self.directory / ".counts.part"
        part.write_text("".join(f"{token_id}\t{count}\n" for token_id, count in sorted(self.counts.items())))
        os.replace(part, self.directory / "counts.tsv")


def observe(drafter: Module, vllm_config: Any, settings: Settings) -> Collector:
    """Starts recording this drafter and this process's scheduler."""
    check_engine(vllm_config)
    model_dir = local_dir(vllm_config.model_config)
    if model_dir is None:
        raise DraftfastError(
            "`collect` names its records after the checkpoint's tensors, and the target is not a local folder"
        )
    collector = Collector(Path(settings.collect or ""), settings)
    names = tensor_names(model_dir)
    modules = dict(drafter.named_modules())
    for module_name, parts in drafter_tensors(
        names, modules, vllm_config.model_config.hf_text_config.num_hidden_layers
    ).items():
        collector.watch_linear(modules[module_name], parts)
    collector.watch_head(drafter, [head_name(names)])
    _count_requests(collector)
    atexit.register(collector.write)
    collectors.append(collector)
    return collector


collectors: list[Collector] = []
"""Those of this process; each is written at exit."""


def serves_requests() -> bool:
    """Whether the current forward pass is for requests, not a warm-up."""
    from vllm.forward_context import get_forward_context, is_forward_context_available

    return is_forward_context_available() and bool(get_forward_context().attn_metadata)


def tensor_names(model_dir: Path) -> list[str]:
    """Names of all tensors of a checkpoint."""
    index = model_dir / "model.safetensors.index.json"
    if index.is_file():
        return sorted(json.loads(index.read_bytes())["weight_map"])
    return sorted(TensorFile(model_dir / "model.safetensors").entries)


def drafter_tensors(names: Iterable[str], modules: dict[str, Module], n_target_layers: int) -> dict[str, list[str]]:
    """The drafter's linear modules, each with the checkpoint tensors that it holds."""
    weights = [name.removesuffix(".weight") for name in names if name.endswith(".weight")]
    own = [name for name in weights if name.startswith(("mtp.", "model.mtp."))]
    if not own:
        own = [name for name in weights if _layer(name) >= n_target_layers]
    found: dict[str, list[str]] = {}
    for name in own:
        for path, _ in candidates(name):
            module = modules.get(path)
            if module is not None and (hasattr(module, "weight_loader_v2") or isinstance(module, torch.nn.Linear)):
                found.setdefault(path, []).append(f"{name}.weight")
                break
    return found


def _layer(name: str) -> int:
    head, _, rest = name.partition("model.layers.")
    number = rest.partition(".")[0]
    return int(number) if head in ("", "language_model.") and number.isdigit() else -1


def head_name(names: Iterable[str]) -> str:
    """The tensor of the target's head; its embedding where they are tied."""
    names = list(names)
    for suffix in ("lm_head.weight", "embed_tokens.weight"):
        for name in names:
            if name.endswith(suffix) and not name.startswith("mtp."):
                return name
    raise DraftfastError("the checkpoint has neither `lm_head.weight` nor an embedding")


def _count_requests(collector: Collector) -> None:
    from vllm.v1.request import Request

    original = getattr(Request, "append_output_token_ids", None)
    if original is None:
        raise DraftfastError("this vLLM has no `Request.append_output_token_ids`, where `collect` counts tokens")

    def append_output_token_ids(self: Any, token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        collector.count_outputs(token_ids)
        return original(self, token_ids, *args, **kwargs)

    Request.append_output_token_ids = append_output_token_ids
