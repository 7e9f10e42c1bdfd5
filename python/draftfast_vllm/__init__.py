"""draftfast in vLLM: the drafter reads a quantized draft head over a kept vocabulary and NVFP4 MTP linears.

`register` is the `vllm.general_plugins` entry point. It imports neither torch nor vLLM: it only notes which vLLM
modules to patch when vLLM itself imports them (`hooks`). What is patched does nothing until a sidecar is configured.
"""

from __future__ import annotations

from draftfast_vllm.config import Settings
from draftfast_vllm.errors import DraftfastError

__all__ = ["DraftfastError", "install", "register"]


def register() -> None:
    """Entry point: arms the hooks in this process. Safe to call many times."""
    from draftfast_vllm import hooks

    hooks.arm()


def install(sidecar: str | None = None, **options: object) -> None:
    """Configures this process, for offline use: call it before `LLM(...)`.

    `options` are the keys of `--additional-config '{"draftfast": {...}}'` (see `config.Settings`). An engine that vLLM
    starts in a subprocess gets them through the engine's configuration, and its hooks through the entry point, so the
    package must be installed there.
    """
    from draftfast_vllm import config

    given = dict(options) if sidecar is None else {"sidecar": sidecar, **options}
    config.set_installed(Settings.parse(given, "`draftfast_vllm.install`"))
    register()
