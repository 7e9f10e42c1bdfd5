"""Reads a safetensors file: header checks in plain Python, bytes through a memory map.

Independent of torch, so a bad sidecar is refused in the API process before any worker starts. Format:
https://github.com/huggingface/safetensors (8 bytes little-endian header length, JSON, data).
"""

from __future__ import annotations

import json
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from draftfast_vllm.errors import DraftfastError

MAX_HEADER_BYTES = 100_000_000
DTYPE_BYTES = {"U8": 1, "I8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
               "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One tensor: its safetensors dtype, shape, and byte range in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorFile:
    """An open file: `entries` by name, `metadata`, and the bytes of each tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self.n_bytes = os.fstat(file.fileno()).st_size
                if self.n_bytes < 8:
                    raise DraftfastError(f"`{path}` has {self.n_bytes} bytes, too few for a safetensors file")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DraftfastError(f"`{path}` cannot be read: {error.strerror}") from error
        self.metadata, self.entries = self._parse()

    def bytes_of(self, name: str) -> memoryview:
        """The tensor's bytes, without a copy."""
        entry = self.entries[name]
        return memoryview(self._map)[entry.begin : entry.end]

    def contains_byte(self, name: str, byte: int) -> bool:
        """Whether `byte` occurs in the tensor's data; a memchr over the map."""
        entry = self.entries[name]
        return self._map.find(bytes([byte]), entry.begin, entry.end) >= 0

    def _parse(self) -> tuple[dict[str, str], dict[str, Entry]]:
        n_header = int.from_bytes(self._map[:8], "little")
        if n_header > min(MAX_HEADER_BYTES, self.n_bytes - 8):
            raise DraftfastError(
                f"`{self.path}` has {self.n_bytes} bytes and says its header has {n_header}: truncated or not safetensors"
            )
        try:
            header = json.loads(self._map[8 : 8 + n_header])
        except (ValueError, RecursionError) as error:
            raise DraftfastError(f"`{self.path}` has a header that is not JSON") from error
        if not isinstance(header, dict):
            raise DraftfastError(f"`{self.path}` has a header that is not an object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise DraftfastError(f"`{self.path}` has a `__metadata__` that is not strings")
        return metadata, {name: self._entry(name, value, 8 + n_header) for name, value in header.items()}

    def _entry(self, name: str, value: object, data_begin: int) -> Entry:
        try:
            dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]  # type: ignore[index]
            n_bytes = DTYPE_BYTES[dtype]
            for size in shape:
                n_bytes *= size
            well_formed = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        except (KeyError, TypeError, ValueError) as error:
            raise DraftfastError(f"`{self.path}`: tensor `{name}` has a malformed header entry") from error
        if not well_formed or end - begin != n_bytes:
            raise DraftfastError(
                f"`{self.path}`: tensor `{name}` spans bytes {begin} to {end}, expected {n_bytes} bytes for {dtype} {list(shape)}"
            )
        if data_begin + end > self.n_bytes:
            raise DraftfastError(
                f"`{self.path}`: tensor `{name}` ends at byte {data_begin + end}, and the file has {self.n_bytes}: truncated"
            )
        return Entry(name, dtype, shape, data_begin + begin, data_begin + end)
