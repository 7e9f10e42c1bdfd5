"""The one exception of the plugin: a sentence that names what was found and expected, and what to do about it."""

from __future__ import annotations


class DraftfastError(ValueError):
    """Refusal to serve. `hint` is one more sentence, shown on its own line."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.hint = hint
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")
