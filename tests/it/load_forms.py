"""Loads every vocabulary form of a folder the way its consumer does, and saves files that consumers write.

usage: load_forms.py DIR    (DIR/expected.json: {"target_rows": V, "token_ids": [...]})
Prints `ok NAME` a check; any failure raises.
"""

import json
import sys
from pathlib import Path

import numpy
import safetensors.numpy
import safetensors.torch
import torch

folder = Path(sys.argv[1])
expected = json.loads((folder / "expected.json").read_text())
V, ids = expected["target_rows"], torch.tensor(expected["token_ids"])
N = len(ids)
arange = torch.arange(N)


def load(name):
    return torch.load(folder / name, weights_only=True)


# The seed: rows are gathered by mask.
mask = load("mask.pt")
assert mask.dtype == torch.bool and mask.shape == (V,)
assert torch.equal(mask.nonzero().squeeze(1), ids)
print("ok mask.pt")

# SGLang --speculative-token-map: torch.tensor(x, dtype=int64) of whatever was loaded, then head.data[ids].
tokens = torch.tensor(load("ids.pt"), dtype=torch.int64)
assert torch.equal(tokens, ids)
print("ok ids.pt")

# speculators: len(t2d) == V, sum(t2d) == N, target = d2t + arange, rows by mask.
d2t, t2d = numpy.load(folder / "d2t.npy"), numpy.load(folder / "t2d.npy")
assert d2t.dtype == numpy.int64 and t2d.dtype == numpy.bool_
assert len(t2d) == V and int(t2d.sum()) == N
assert numpy.array_equal(d2t + numpy.arange(N), numpy.nonzero(t2d)[0])
print("ok d2t.npy t2d.npy")

# SpecForge validate_vocab_mapping_consistency: nonzero(t2d) == d2t + arange.
mapping = load("vocab_mapping.pt")
assert set(mapping) == {"d2t", "t2d"} and mapping["d2t"].dtype == torch.int64 and mapping["t2d"].dtype == torch.bool
assert torch.equal(mapping["t2d"].nonzero().squeeze(1), mapping["d2t"] + arange)
print("ok vocab_mapping.pt")

# Model-Optimizer: shape and dtype of d2t; offsets.
offsets = load("d2t.pt")
assert offsets.dtype == torch.int64 and offsets.shape == (N,)
assert torch.equal(offsets + arange, ids)
print("ok d2t.pt")

# EAGLE-3 checkpoints, vLLM draft_id_to_target_id.
tensors = safetensors.torch.load_file(folder / "draft_vocab.safetensors")
assert tensors["d2t"].dtype == torch.int64 and tensors["t2d"].dtype == torch.bool
assert torch.equal(tensors["d2t"] + arange, ids) and torch.equal(tensors["token_ids"], ids)
assert torch.equal(tensors["t2d"].nonzero().squeeze(1), ids)
assert numpy.array_equal(safetensors.numpy.load_file(folder / "draft_vocab.safetensors")["token_ids"], ids.numpy())
print("ok draft_vocab.safetensors")

# MiaAI-Lab: int(line) for every line, so no header and no blank line.
assert [int(line) for line in (folder / "ids.txt").read_text().split("\n")[:-1]] == ids.tolist()
print("ok ids.txt")
assert json.loads((folder / "ids.json").read_text()) == ids.tolist()
print("ok ids.json")

# What other tools save, to be read back by draftfast.
saved = folder / "saved"
saved.mkdir()
by_frequency = ids.flip(0)
torch.save(by_frequency.tolist(), saved / "freq_list.pt")
torch.save(by_frequency, saved / "token_map.pt")
torch.save(ids.to(torch.int32), saved / "ids_int32.pt")
torch.save(by_frequency - arange, saved / "d2t.pt")
torch.save({"d2t": ids - arange, "t2d": mask}, saved / "cache.pt")
torch.save({"selected_token_ids": by_frequency, "target_vocab_size": V}, saved / "automodel.pt")
torch.save(mask, saved / "mask.pt")
torch.save(torch.cat([torch.zeros(7, dtype=torch.bool), mask])[7:], saved / "mask_view.pt")
numpy.save(saved / "ids.npy", ids.numpy())
numpy.save(saved / "d2t-9.npy", (ids - arange).numpy())
numpy.save(saved / "t2d-9.npy", mask.numpy())
safetensors.torch.save_file({"d2t": ids - arange, "lm_head.weight": torch.zeros(4, 4)}, saved / "eagle3.safetensors")
torch.save({"weights": torch.zeros(3)}, saved / "refused_float.pt")
torch.save(mask.to(torch.uint8), saved / "refused_uint8.pt")
torch.save(torch.zeros(2, 2, dtype=torch.int64), saved / "refused_2d.pt")
torch.save(ids, saved / "refused_legacy.pt", _use_new_zipfile_serialization=False)
torch.save(folder, saved / "refused_object.pt")
torch.save({i: 1 for i in range(4)}, saved / "refused_token_freq.pt")
print("ok saved")
