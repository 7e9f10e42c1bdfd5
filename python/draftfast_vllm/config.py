"""Where the settings come from, first match wins: `additional_config["draftfast"]`, `install(...)`, the environment.

The resolved settings, with a digest of the sidecar, are written back into `additional_config`: vLLM ships that to its
worker processes and hashes it into the key of its compile cache, so a graph compiled without the sidecar is never
loaded with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from draftfast_vllm.errors import DraftfastError

KEY = "draftfast"
BACKENDS = ("auto", "draftfast", "vllm")
# The seed recipe's variables: one of them whose name speaks of the vocabulary and whose value is a `.pt` file is the
# mask of kept ids. Its other variables tuned that recipe's own code and mean nothing here.
SEED_PREFIXES = ("SPARK_DRAFT_", "Q38_")
SEED_WORDS = ("VOCAB", "MASK", "KEEP")


@dataclass(frozen=True)
class Settings:
    """What a user can say. All but one of `sidecar`, `mask` and `collect` may be left out."""

    sidecar: str | None = None
    """Directory that `draftfast build` wrote."""
    mask: str | None = None
    """`bool[V]` `.pt` file of kept ids, the seed's form: head and MTP linears are quantized at load."""
    backend: str = "auto"
    """Kernel of the draft head: `draftfast` (our GEMV), `vllm`, or `auto`, the faster of both on this GPU."""
    keep_bf16: tuple[str, ...] = ()
    """Globs of sidecar linears to leave as the target ships them."""
    collect: str | None = None
    """Directory to write `importance.safetensors` and `counts.tsv` into."""
    collect_second_moments: bool = False
    """Also the full second-moment matrix of each input."""
    collect_states: int = 0
    """Also this many raw input states of each linear."""
    sidecar_sha256: str | None = None
    """Digest of the sidecar; filled in by the plugin, checked when given."""

    @property
    def drafts(self) -> bool:
        """Whether the drafter is to be replaced, not only observed."""
        return self.sidecar is not None or self.mask is not None

    @classmethod
    def parse(cls, given: object, source: str) -> Settings:
        """Settings from a JSON object; `source` names it in errors."""
        if not isinstance(given, Mapping):
            raise DraftfastError(
                f"{source} is {type(given).__name__}, expected an object", 'for example {"sidecar": "DIR"}'
            )
        known = {field.name for field in fields(cls)}
        for key in given:
            if key not in known:
                raise DraftfastError(f"{source} has the unknown key `{key}`", f"known keys: {', '.join(sorted(known))}")
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
        settings = cls(**values)
        settings._check(source)
        return settings

    def _check(self, source: str) -> None:
        for name in ("sidecar", "mask", "collect", "sidecar_sha256"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise DraftfastError(f"{source}: `{name}` is {type(value).__name__}, expected a string")
        if self.backend not in BACKENDS:
            raise DraftfastError(f"{source}: `backend` is `{self.backend}`, expected one of {', '.join(BACKENDS)}")
        if not isinstance(self.keep_bf16, tuple) or not all(isinstance(glob, str) for glob in self.keep_bf16):
            raise DraftfastError(f"{source}: `keep_bf16` is not a list of globs")
        if not isinstance(self.collect_second_moments, bool):
            raise DraftfastError(f"{source}: `collect_second_moments` is not true or false")
        if not isinstance(self.collect_states, int) or isinstance(self.collect_states, bool) or self.collect_states < 0:
            raise DraftfastError(f"{source}: `collect_states` is not a number of states")
        if self.sidecar is not None and self.mask is not None:
            raise DraftfastError(f"{source} gives both `sidecar` and `mask`", "the sidecar holds its own vocabulary")
        if self.sidecar is None and self.mask is None and self.collect is None:
            raise DraftfastError(f"{source} names neither `sidecar`, `mask` nor `collect`")

    def to_json(self) -> dict[str, object]:
        """The object that goes into `additional_config`: only what differs from the default."""
        default = Settings()
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value != getattr(default, key)
        }


_installed: Settings | None = None


def set_installed(settings: Settings) -> None:
    """What `install` was given."""
    global _installed
    _installed = settings


def resolve(additional_config: object, environ: Mapping[str, str] | None = None) -> Settings | None:
    """The settings that hold for an engine with this `additional_config`; None: not configured, touch nothing."""
    if isinstance(additional_config, Mapping) and KEY in additional_config:
        return Settings.parse(additional_config[KEY], f'`additional_config["{KEY}"]`')
    return _installed or from_environment(os.environ if environ is None else environ)


def from_environment(environ: Mapping[str, str]) -> Settings | None:
    """`DRAFTFAST_SIDECAR`, `DRAFTFAST_BACKEND`, `DRAFTFAST_COLLECT`, or a `.pt` mask in one of the seed's variables."""
    given: dict[str, object] = {}
    for key, name in (
        ("sidecar", "DRAFTFAST_SIDECAR"),
        ("backend", "DRAFTFAST_BACKEND"),
        ("collect", "DRAFTFAST_COLLECT"),
    ):
        if environ.get(name):
            given[key] = environ[name]
    if "sidecar" not in given and (mask := seed_mask(environ)) is not None:
        given["mask"] = mask
    if given.keys() <= {"backend"}:
        return None
    return Settings.parse(given, "the environment")


def seed_mask(environ: Mapping[str, str]) -> str | None:
    """The `.pt` mask named by the seed's variables; an error if they name two different files."""
    named = {
        name: value
        for name, value in environ.items()
        if name.startswith(SEED_PREFIXES) and any(word in name for word in SEED_WORDS) and value.endswith(".pt")
    }
    if len(set(named.values())) > 1:
        raise DraftfastError(
            f"{', '.join(f'`{name}`' for name in sorted(named))} name different masks", "leave one of them set"
        )
    return next(iter(named.values()), None)


def absolute(settings: Settings) -> Settings:
    """The same with absolute paths: worker processes may start elsewhere."""
    values = asdict(settings)
    for name in ("sidecar", "mask", "collect"):
        if values[name] is not None:
            values[name] = str(Path(values[name]).expanduser().absolute())
    return Settings(**values)
