"""Tiny sidecars in plain Python, so that most tests need neither torch nor vLLM."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

SIZES = {"U8": 1, "F8_E4M3": 1, "F32": 4, "I64": 8, "BF16": 2}
Tensors = dict[str, tuple[str, list[int], bytes]]


def write_safetensors(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
    header: dict[str, Any] = {"__metadata__": metadata or {"format": "pt"}}
    begin = 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + len(content)]}
        begin += len(content)
    encoded = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", len(encoded)) + encoded + b"".join(content for _, _, content in tensors.values())
    )


def packed(name: str, n: int, k: int) -> Tensors:
    """Codes 1 and 2, scale 1."""
    return {
        f"{name}.weight": ("U8", [n, k // 2], b"\x21" * (n * k // 2)),
        f"{name}.weight_scale": ("F8_E4M3", [n, k // 16], b"\x38" * (n * k // 16)),
        f"{name}.weight_scale_2": ("F32", [], struct.pack("<f", 0.5)),
    }


def head(ids: list[int], k: int = 32) -> Tensors:
    return packed("draft_head", len(ids), k) | {
        "draft_head.token_ids": ("I64", [len(ids)], struct.pack(f"<{len(ids)}q", *ids))
    }


class SidecarDir:
    """A directory that tests damage: change `tensors` or `manifest`, then `write`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors = head([1, 4, 7, 9]) | packed("mtp.fc", 32, 64)
        self.manifest: dict[str, Any] = {
            "format": 1,
            "tensors": {
                "draft_head": {"to": "NVFP4"},
                "mtp.fc": {"to": "NVFP4"},
                "mtp.experts.0.up_proj": {"to": "U8"},
            },
            "target": {
                "target_rows": 16,
                "hidden_size": 32,
                "head_tensor": "lm_head.weight",
                "head_tree_sha256": "0" * 64,
            },
        }
        self.record: dict[str, Any] | None = None
        self.write()

    def write(self) -> Path:
        self.path.mkdir(exist_ok=True)
        write_safetensors(self.path / "drafter.safetensors", self.tensors)
        (self.path / "manifest.json").write_text(json.dumps(self.manifest))
        names = ["drafter.safetensors", "manifest.json"]
        if self.record is not None:
            (self.path / "vocabulary.json").write_text(json.dumps(self.record))
            names.append("vocabulary.json")
        lines = [f"{hashlib.sha256((self.path / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
        (self.path / "sha256sums.txt").write_text("".join(lines))
        return self.path


@pytest.fixture
def sidecar_dir(tmp_path: Path) -> SidecarDir:
    return SidecarDir(tmp_path / "sidecar")
