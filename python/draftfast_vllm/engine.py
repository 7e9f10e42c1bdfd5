"""What the hooks do: the moments of an engine's start at which draftfast acts, for both model runners.

Every function gets vLLM's original method first. Without settings it calls that and nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from draftfast_vllm import config
from draftfast_vllm.config import Settings
from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.hooks import HOOKS, SPECULATORS

# The versions whose draft path was read. Within them a hook may still be missing: `missing_hooks` looks.
OLDEST, NEWEST = (0, 26), (0, 33)
# This speculator came after 0.26.
OPTIONAL_MODULES = (f"{SPECULATORS}.multi_module_mtp.speculator",)


def config_post_init(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """`VllmConfig.__post_init__`: refuses early, and writes the settings where the workers and the hash find them."""
    original(self, *args, **kwargs)
    settings = config.resolve(self.additional_config)
    if settings is None or not concerns(self, settings):
        return
    check_vllm()
    check_workers(self.parallel_config.tensor_parallel_size)
    settings = check_engine(config.absolute(settings), self)
    self.additional_config[config.KEY] = settings.to_json()


def concerns(vllm_config: Any, settings: Settings) -> bool:
    """Whether this engine is meant: vLLM also builds configurations without a model, and environments outlive engines."""
    if vllm_config.model_config is None:
        return False
    if vllm_config.speculative_config is not None:
        return True
    if config.KEY in vllm_config.additional_config and settings.drafts:
        raise DraftfastError("a draftfast sidecar is configured, and the engine does not speculate",
                             'add `--speculative-config \'{"method": "mtp", "num_speculative_tokens": K}\'`')  # fmt: skip
    return False


def check_vllm() -> None:
    """Refuses a vLLM whose draft path is not known."""
    import vllm

    match = re.match(r"(\d+)\.(\d+)\.", vllm.__version__)
    version = (int(match[1]), int(match[2])) if match else None
    if version is None or not OLDEST <= version <= NEWEST:
        raise DraftfastError(
            f"vLLM {vllm.__version__} is not known to this draftfast, which knows 0.{OLDEST[1]} to 0.{NEWEST[1]}",
            "install another version of either, or unset the sidecar to serve without it",
        )
    for missing in missing_hooks(Path(vllm.__file__).parent):
        raise DraftfastError(
            f"vLLM {vllm.__version__} has no `{missing}`, where draftfast hooks in",
            "unset the sidecar to serve without it",
        )


def check_workers(tp_size: int) -> None:
    """Refuses where a process that vLLM starts would not load this plugin: it would serve without the sidecar."""
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0" and tp_size == 1:
        return
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and config.KEY not in allowed.split(","):
        raise DraftfastError(
            f"`VLLM_PLUGINS` is `{allowed}`, so vLLM's processes do not load draftfast", "add `draftfast` to it"
        )
    if not any(point.name == config.KEY for point in entry_points(group="vllm.general_plugins")):
        raise DraftfastError(
            "the entry point of draftfast is not installed, so vLLM's processes do not load it",
            "install the wheel, or set `VLLM_ENABLE_V1_MULTIPROCESSING=0` to keep the engine in this process",
        )


def missing_hooks(package: Path) -> list[str]:
    """Hooked methods that the installed vLLM does not define, by a look at its source: importing it all takes seconds."""
    missing = []
    for hook in HOOKS:
        path = package.joinpath(*hook.module.split(".")[1:]).with_suffix(".py")
        if not path.is_file() and hook.module in OPTIONAL_MODULES:
            continue
        source = path.read_text() if path.is_file() else ""
        body = re.search(rf"^class {hook.owner}\b(.*?)(?=^class |\Z)", source, re.S | re.M)
        if body is None or not re.search(rf"^    def {hook.method}\(", body[1], re.M):
            missing.append(f"{hook.module}.{hook.owner}.{hook.method}")
    return missing


def check_engine(settings: Settings, vllm_config: Any) -> Settings:
    """What the configuration alone can tell; returns the settings with the sidecar's digest."""
    speculative = vllm_config.speculative_config
    if settings.collect is not None:
        from draftfast_vllm import collect

        collect.check_engine(vllm_config)
    if not settings.drafts:
        return settings
    if speculative.method != "mtp":
        raise DraftfastError(
            f"speculative method is `{speculative.method}`, and a sidecar serves `mtp`",
            "unset the sidecar, or use method `mtp`",
        )
    if speculative.use_local_argmax_reduction and speculative.draft_sample_method == "probabilistic":
        raise DraftfastError(
            "`draft_sample_method` is `probabilistic`, which needs logits, and `use_local_argmax_reduction` makes none",
            "drop one of the two",
        )
    if getattr(speculative, "draft_lm_head_quantization", None) is not None:
        raise DraftfastError(
            "`draft_lm_head_quantization` makes a draft head of its own, and so does the sidecar", "drop one of the two"
        )
    if settings.sidecar is not None and Path(speculative.model or "").absolute() == Path(settings.sidecar):
        raise DraftfastError(
            "`speculative_config.model` is the sidecar, and draftfast puts a sidecar into the target's own drafter",
            "leave `model` out of the speculative configuration",
        )
    if not isinstance(vllm_config.additional_config, dict):
        raise DraftfastError(
            "`additional_config` is not an object, and draftfast writes its digest there for vLLM's compile cache"
        )
    if settings.sidecar is None:
        return _with_digest(settings, _file_sha256(Path(settings.mask or "")))
    from draftfast_vllm.sidecar import Sidecar

    sidecar = Sidecar.open(settings.sidecar)
    tp_size = vllm_config.parallel_config.tensor_parallel_size
    if sidecar.head.n < tp_size:
        raise DraftfastError(f"the draft head has {sidecar.head.n} rows, fewer than tensor parallel size {tp_size}")
    return _with_digest(settings, sidecar.sha256)


def _with_digest(settings: Settings, sha256: str) -> Settings:
    if settings.sidecar_sha256 not in (None, sha256):
        raise DraftfastError(f"`{settings.sidecar or settings.mask}` has digest {sha256}, and the configuration expects {settings.sidecar_sha256}",
                             "it changed; leave `sidecar_sha256` out to take the one that is there")  # fmt: skip
    return Settings(**{**settings.__dict__, "sidecar_sha256": sha256})


def _file_sha256(path: Path) -> str:
    import hashlib

    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DraftfastError(f"`{path}` cannot be read: {error.strerror}") from error


def load_draft_model(original: Callable[..., Any], self: Any, target_model: Any, *args: Any, **kwargs: Any) -> Any:
    """Model runner V2: `load_draft_model` has returned the drafter, which shares the target's head."""
    drafter = original(self, target_model, *args, **kwargs)
    get_language_model = getattr(target_model, "get_language_model", None)
    language_model = get_language_model() if get_language_model else target_model
    _act(self, drafter, language_model if hasattr(language_model, "lm_head") else target_model)
    return drafter


def share_lm_head(original: Callable[..., Any], self: Any, target_language_model: Any) -> None:
    """Model runner V1: the last step of `load_model` before local argmax is validated."""
    original(self, target_language_model)
    _act(self, self.model, target_language_model)


def _act(owner: Any, drafter: Any, target: Any) -> None:
    """`owner` is the speculator (V2) or proposer (V1)."""
    settings = config.resolve(owner.vllm_config.additional_config)
    if settings is None:
        return
    if settings.drafts:
        check_vllm()
        from draftfast_vllm.attach import attach

        attach(drafter, target, owner.vllm_config, settings)
        prefer_local_argmax(owner)
    if settings.collect is not None:
        from draftfast_vllm import collect

        collect.observe(drafter, owner.vllm_config, settings)


def prefer_local_argmax(owner: Any) -> None:
    """Greedy drafting needs ids, not V logits a row: take them unless something reads the logits."""
    speculative = owner.vllm_config.speculative_config
    reads_logits = (
        speculative.draft_sample_method == "probabilistic"
        or getattr(owner, "use_acceptance_estimator", False)
        or getattr(owner, "draft_watermarker", None) is not None
    )
    if not reads_logits:
        owner.use_local_argmax_reduction = True
