"""How the sidecars of the tests are made: by the program that DRAFTFAST names, else by the torch reference."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import reference_sidecar

PROGRAM = os.environ.get("DRAFTFAST")
N_STATES = 512


def make(model: Path, out: Path, ids: list[int], pad_to: int = 1) -> None:
    """`pad_to`: rows are repeated up to a multiple of it. A sidecar that is there is left alone."""
    if out.is_dir():
        return
    if PROGRAM is None:
        reference_sidecar.build(model, out, ids, n_rows=-(-len(ids) // pad_to) * pad_to)
    else:
        _quantize(PROGRAM, model, out, ids, "--pad-to", str(pad_to))


def make_by_error_feedback(model: Path, out: Path, ids: list[int]) -> None:
    """With `--rounding gptq --row-shift`, from random inputs. Only the program can."""
    if PROGRAM is None or out.is_dir():
        return
    states = out.with_suffix(".states.safetensors")
    generator = torch.Generator().manual_seed(0)
    inputs = {
        name: torch.randn(N_STATES, weight.shape[1], generator=generator).to(torch.bfloat16)
        for name, weight in sorted(load_file(model / "model.safetensors").items())
        if name == "lm_head.weight" or name.removesuffix(".weight").endswith(reference_sidecar.LINEARS)
    }
    save_file({name: x for name, x in inputs.items() if name.startswith(("mtp.", "lm_head"))}, states)
    _quantize(PROGRAM, model, out, ids, "--rounding", "gptq", "--row-shift", "--importance", str(states))


def _quantize(program: str, model: Path, out: Path, ids: list[int], *options: str) -> None:
    vocab = out.with_suffix(".ids.txt")
    vocab.write_text("".join(f"{token_id}\n" for token_id in ids))
    subprocess.run([program, "-q", "quantize", model, "--vocab", vocab, "-o", out, *options], check=True)
