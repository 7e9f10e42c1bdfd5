"""Hostile safetensors headers."""

from __future__ import annotations

import json
import struct

import pytest

from draftfast_vllm.errors import DraftfastError
from draftfast_vllm.tensor_file import TensorFile


def write(path, header: bytes, data: bytes = b"", n_header: int | None = None):
    path.write_bytes(struct.pack("<Q", len(header) if n_header is None else n_header) + header + data)
    return path


@pytest.mark.parametrize(
    ("header", "n_header"),
    [
        (b"", 1 << 63),
        (b"{}", 3),
        (b"[]", None),
        (b"null", None),
        (b"{", None),
        (b"[" * 100_000, None),
        (b'{"__metadata__": {"a": 1}}', None),
        (b'{"__metadata__": []}', None),
        (b'{"a": 1}', None),
        (b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}', None),
        (b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 0]}}', None),
        (b'{"a": {"dtype": "U8", "shape": [-1, -1], "data_offsets": [0, 1]}}', None),
        (b'{"a": {"dtype": "U8", "shape": [true], "data_offsets": [0, 1]}}', None),
        (b'{"a": {"dtype": "U8", "shape": [1.0], "data_offsets": [0, 1]}}', None),
        (b'{"a": {"dtype": "U9", "shape": [1], "data_offsets": [0, 1]}}', None),
        (b'{"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}', None),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1]}}', None),
        (b'{"a": {"dtype": "U8", "shape": "1", "data_offsets": [0, 1]}}', None),
    ],
)
def test_malformed_headers_are_refused(tmp_path, header, n_header):
    with pytest.raises(DraftfastError):
        TensorFile(write(tmp_path / "x.safetensors", header, b"\0", n_header))


def test_tensors_are_read_without_a_copy(tmp_path):
    header = json.dumps({"a": {"dtype": "U8", "shape": [2, 1], "data_offsets": [1, 3]}}).encode()
    file = TensorFile(write(tmp_path / "x.safetensors", header, b"\x01\x02\x03"))
    assert bytes(file.bytes_of("a")) == b"\x02\x03"
    assert file.contains_byte("a", 3) and not file.contains_byte("a", 1)
    assert file.entries["a"].shape == (2, 1)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DraftfastError, match=r"nowhere` cannot be read: No such file"):
        TensorFile(tmp_path / "nowhere")
