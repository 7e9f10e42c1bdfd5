"""A sidecar directory, opened and checked without torch: the draft head, its ids, the NVFP4 linears, the provenance.

The layout is ModelOpt's checkpoint form: for each linear X `X.weight` U8 [N, K/2] (low nibble = even k),
`X.weight_scale` F8_E4M3 [N, K/16], `X.weight_scale_2` F32 []; w = e2m1(code) * weight_scale * weight_scale_2.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.tensor_file import TensorFile

FORMAT_VERSION = 1
BLOCK = 16
DRAFTER_NAME, MANIFEST_NAME, SUMS_NAME = "drafter.safetensors", "manifest.json", "sha256sums.txt"
RECORD_NAME = "vocabulary.json"
MEASURED_ON = {"held-out": "held-out text", "split": "held-out text", "in-sample": "the text they were chosen from"}
HEAD = "draft_head"
REBUILD = "build the sidecar again with `draftfast build`"


@dataclass(frozen=True)
class Packed:
    """One NVFP4 linear in the file: `name` without its suffix, N rows, K columns, and the global scale."""

    name: str
    n: int
    k: int
    global_scale: float


class Sidecar:
    """`Sidecar.open(dir)` has checked everything that does not need the target."""

    def __init__(
        self, path: Path, sums: dict[str, str], sha256: str, manifest: dict[str, Any], file: TensorFile
    ) -> None:
        self.path = path
        self.sums = sums
        self.sha256 = sha256
        """Digest of `sha256sums.txt`, which covers every file."""
        self.manifest = manifest
        self.file = file
        self.head = _packed(file, HEAD)
        # By the manifest: routed experts that the target ships packed are copied, and stay what vLLM loads.
        self.linears = [_packed(file, name) for name in sorted(manifest["tensors"]) if _is_linear(manifest, name)]
        self.token_ids = _token_ids(file, self.head.n, self.target_rows)

    @classmethod
    def open(cls, path: str | Path) -> Sidecar:
        """Reads headers and the manifest; an error names the file, the tensor, found and expected."""
        path = Path(path)
        if not path.is_dir():
            raise DraftfastError(
                f"`{path}` is not a directory", "give the directory that `draftfast build -o DIR` wrote"
            )
        sums_bytes = _read(path / SUMS_NAME)
        sums = _parse_sums(path / SUMS_NAME, sums_bytes)
        manifest = _manifest(path / MANIFEST_NAME, sums)
        return cls(path, sums, hashlib.sha256(sums_bytes).hexdigest(), manifest, TensorFile(path / DRAFTER_NAME))

    @property
    def target(self) -> dict[str, Any]:
        """The manifest's record of the model that this sidecar serves."""
        return self.manifest["target"]

    @property
    def target_rows(self) -> int:
        """V: rows of the target's lm_head."""
        return self.target["target_rows"]

    @property
    def n_real_rows(self) -> int:
        """Distinct ids; the other rows repeat the first."""
        return len(set(self.token_ids))

    def coverage(self) -> str:
        """What the kept ids cover of each domain, by `vocabulary.json`, for the log; says so where nothing is recorded."""
        if RECORD_NAME not in self.sums:
            return "coverage not recorded"
        path = self.path / RECORD_NAME
        content = _read(path)
        found = hashlib.sha256(content).hexdigest()
        if found != self.sums[RECORD_NAME]:
            raise DraftfastError(
                f"`{path}` has sha256 {found}, and `{SUMS_NAME}` says {self.sums[RECORD_NAME]}", REBUILD
            )
        try:
            figures = json.loads(content)["coverage"]
            text = MEASURED_ON[figures["measured"]]
            domains = [f"{domain['domain']} {100 * domain['share']:.1f} %" for domain in figures["coverage"]]
        except (ValueError, KeyError, TypeError) as error:
            raise DraftfastError(f"`{path}` holds no coverage", REBUILD) from error
        return f"covering {', '.join(domains)} of {text}" if domains else "coverage not measured"

    def verify_drafter(self) -> None:
        """Hashes `drafter.safetensors` against `sha256sums.txt`; an error if a byte differs."""
        digest = hashlib.sha256()
        with open(self.file.path, "rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
        if digest.hexdigest() != self.sums.get(DRAFTER_NAME):
            raise DraftfastError(
                f"`{self.file.path}` has sha256 {digest.hexdigest()}, and `{SUMS_NAME}` says {self.sums.get(DRAFTER_NAME)}",
                "copy the sidecar again; `draftfast verify-sha` checks a copy",
            )

    def check_scales(self) -> None:
        """Refuses NaN block scales (E4M3 0x7F and 0xFF): one of them makes a whole row NaN."""
        for linear in [self.head, *self.linears]:
            name = f"{linear.name}.weight_scale"
            if self.file.contains_byte(name, 0x7F) or self.file.contains_byte(name, 0xFF):
                raise DraftfastError(f"`{self.file.path}`: tensor `{name}` holds NaN", REBUILD)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DraftfastError(f"`{path}` cannot be read: {error.strerror}", REBUILD) from error


def _parse_sums(path: Path, content: bytes) -> dict[str, str]:
    sums: dict[str, str] = {}
    for line in content.decode("utf-8", "replace").splitlines():
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name:
            raise DraftfastError(f"`{path}` has the line `{line}`, expected `SHA256  NAME`")
        sums[name] = digest
    return sums


def _manifest(path: Path, sums: dict[str, str]) -> dict[str, Any]:
    content = _read(path)
    found = hashlib.sha256(content).hexdigest()
    if found != sums.get(MANIFEST_NAME):
        raise DraftfastError(f"`{path}` has sha256 {found}, and `{SUMS_NAME}` says {sums.get(MANIFEST_NAME)}", REBUILD)
    try:
        manifest = json.loads(content)
        version = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise DraftfastError(f"`{path}` is not a sidecar manifest", REBUILD) from error
    if version != FORMAT_VERSION:
        raise DraftfastError(
            f"`{path}` has format {version}, and this plugin reads format {FORMAT_VERSION}",
            "install the `draftfast` that built it, or build the sidecar again with this one",
        )
    target = manifest.get("target")
    if not isinstance(target, dict) or not all(
        isinstance(target.get(key), kind)
        for key, kind in (("target_rows", int), ("hidden_size", int), ("head_tensor", str), ("head_tree_sha256", str))
    ):
        raise DraftfastError(f"`{path}` does not say which target it serves", REBUILD)
    tensors = manifest.get("tensors")
    if not isinstance(tensors, dict) or not all(isinstance(record, dict) for record in tensors.values()):
        raise DraftfastError(f"`{path}` does not list its tensors", REBUILD)
    return manifest


def _is_linear(manifest: dict[str, Any], name: str) -> bool:
    return name != HEAD and manifest["tensors"][name].get("to") == "NVFP4"


def _packed(file: TensorFile, name: str) -> Packed:
    expected = {"weight": "U8", "weight_scale": "F8_E4M3", "weight_scale_2": "F32"}
    for suffix, dtype in expected.items():
        entry = file.entries.get(f"{name}.{suffix}")
        if entry is None:
            raise DraftfastError(f"`{file.path}` has no tensor `{name}.{suffix}`", REBUILD)
        if entry.dtype != dtype or len(entry.shape) != (0 if suffix == "weight_scale_2" else 2):
            raise DraftfastError(
                f"`{file.path}`: tensor `{entry.name}` is {entry.dtype} {list(entry.shape)}, expected {dtype}"
            )
    n, half_k = file.entries[f"{name}.weight"].shape
    k = 2 * half_k
    scales = file.entries[f"{name}.weight_scale"].shape
    if k % BLOCK or scales != (n, k // BLOCK):
        raise DraftfastError(
            f"`{file.path}`: tensor `{name}.weight_scale` has shape {list(scales)}, expected [{n}, {k / BLOCK:g}] for {n} x {k} weights"
        )
    (global_scale,) = struct.unpack("<f", file.bytes_of(f"{name}.weight_scale_2"))
    if not 0.0 < global_scale < float("inf"):
        raise DraftfastError(
            f"`{file.path}`: tensor `{name}.weight_scale_2` is {global_scale}, expected a positive number", REBUILD
        )
    return Packed(name, n, k, global_scale)


def _token_ids(file: TensorFile, n_rows: int, target_rows: int) -> array[int]:
    name = f"{HEAD}.token_ids"
    entry = file.entries.get(name)
    if entry is None or entry.dtype != "I64" or entry.shape != (n_rows,):
        found = "missing" if entry is None else f"{entry.dtype} {list(entry.shape)}"
        raise DraftfastError(f"`{file.path}`: tensor `{name}` is {found}, expected I64 [{n_rows}]", REBUILD)
    ids = array("q", bytes(file.bytes_of(name)))
    if sys.byteorder == "big":
        ids.byteswap()
    previous, padding = -1, False
    for row, token_id in enumerate(ids):
        padding = padding or (row > 0 and token_id == ids[0])
        if padding and token_id == ids[0]:
            continue
        if padding or token_id <= previous or token_id >= target_rows:
            raise DraftfastError(
                f"`{file.path}`: tensor `{name}` has id {token_id} at row {row}, expected ascending ids below {target_rows}",
                REBUILD,
            )
        previous = token_id
    return ids
