"""How the sidecars of the tests are made: by the program that DRAFTFAST names, else by the torch reference.

Vocabularies with repeated rows always come from the reference: the program pads with the next-ranked ids instead.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import reference_sidecar


def make(model: Path, out: Path, ids: list[int], pad_to: int = 1) -> None:
    """`pad_to`: rows are repeated up to a multiple of it. A sidecar that is there is left alone."""
    if out.is_dir():
        return
    program = os.environ.get("DRAFTFAST")
    if program is None or len(ids) % pad_to:
        reference_sidecar.build(model, out, ids, n_rows=-(-len(ids) // pad_to) * pad_to)
        return
    vocab = out.with_suffix(".ids.txt")
    vocab.write_text("".join(f"{token_id}\n" for token_id in ids))
    subprocess.run([program, "quantize", model, "--vocab", vocab, "-o", out], check=True)
