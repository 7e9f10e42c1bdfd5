"""Which vLLM methods are wrapped, and how: when vLLM imports their module, not before.

    VllmConfig.__post_init__                     API process: resolve, check, refuse; ship settings to the workers
    {MTP,MultiModuleMTP}Speculator.load_draft_model     model runner V2: after the drafter is loaded and shares the head
    SpecDecodeBaseProposer._maybe_share_lm_head         model runner V1: the same moment

vLLM logs and swallows exceptions while it loads plugins, so nothing is refused here: `VllmConfig.__post_init__` does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Wrapper = Callable[..., Any]


@dataclass(frozen=True)
class Hook:
    """A method to wrap: `wrapper(original, self, *args, **kwargs)` of `draftfast_vllm.engine`."""

    module: str
    owner: str
    method: str
    wrapper: str


SPECULATORS = "vllm.v1.worker.gpu.spec_decode"
HOOKS = (
    Hook("vllm.config.vllm", "VllmConfig", "__post_init__", "config_post_init"),
    Hook(f"{SPECULATORS}.mtp.speculator", "MTPSpeculator", "load_draft_model", "load_draft_model"),
    Hook(
        f"{SPECULATORS}.multi_module_mtp.speculator", "MultiModuleMTPSpeculator", "load_draft_model", "load_draft_model"
    ),
    Hook("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer", "_maybe_share_lm_head", "share_lm_head"),
)


def arm() -> None:
    """Wraps the methods of modules that are imported, and those of the others as they are."""
    for name in {hook.module for hook in HOOKS}:
        if name in sys.modules:
            patch(sys.modules[name])
    if not any(isinstance(finder, _PatchOnImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PatchOnImport())


def patch(module: ModuleType) -> None:
    """Wraps this module's methods, once. A class or method that is not there is left to `engine.missing_hooks`."""
    for hook in HOOKS:
        owner = getattr(module, hook.owner, None) if module.__name__ == hook.module else None
        original = getattr(owner, hook.method, None)
        if original is not None and not hasattr(original, "draftfast_original"):
            setattr(owner, hook.method, _wrapped(original, hook.wrapper))


def _wrapped(original: Callable[..., Any], wrapper: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        from draftfast_vllm import engine

        return getattr(engine, wrapper)(original, self, *args, **kwargs)

    method.draftfast_original = original  # type: ignore[attr-defined]
    return method


class _PatchOnImport(MetaPathFinder):
    """Lets the other finders find a hooked module, and patches it once it is executed."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if all(name != hook.module for hook in HOOKS):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _PatchingLoader(spec.loader)
                return spec
        return None


class _PatchingLoader(Loader):
    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = module.__spec__.loader = self._inner  # type: ignore[union-attr]
        self._inner.exec_module(module)
        patch(module)
