"""Takes out of a CUDA library what an sm_90 GPU does not load: `keep_sm90.py [--no-ptx] LIBRARY`, in place.

Each kernel source is a container in section `.nv_fatbin`: a header of 16 bytes (magic, version, header size, U64 payload
size), then an entry for each architecture (U16 kind: 1 PTX, 2 ELF; U16 version; U32 header size; U64 payload size; the
architecture at byte 28). The entries that the driver would choose move to the front, and zeros take the place of the rest,
so that no address changes and the file packs to a fifth.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
PTX, ELF, ARCHITECTURE = 1, 2, 90


def containers(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each payload begins and ends."""
    at = data.find(MAGIC)
    while at >= 0:
        begin = at + 16
        end = begin + struct.unpack_from("<Q", data, at + 8)[0]
        yield begin, end
        at = data.find(MAGIC, end)


def entries(data: bytes, begin: int, end: int) -> list[tuple[int, int, bytes]]:
    """Kind, architecture and bytes of each."""
    found = []
    while begin < end:
        kind, _, header_bytes, payload_bytes = struct.unpack_from("<HHIQ", data, begin)
        (architecture,) = struct.unpack_from("<I", data, begin + 28)
        size = header_bytes + payload_bytes
        if kind not in (PTX, ELF) or begin + size > end:
            raise ValueError(f"no entry at byte {begin}: kind {kind}, {size} bytes")
        found.append((kind, architecture, data[begin : begin + size]))
        begin += size
    return found


def chosen(found: list[tuple[int, int, bytes]], ptx: bool) -> list[bytes]:
    """Machine code for this architecture; else the newest PTX that it can compile; else the smallest entry, to keep a valid
    container."""
    native = [content for kind, architecture, content in found if (kind, architecture) == (ELF, ARCHITECTURE)]
    if native:
        return native
    older = [entry for entry in found if entry[0] == PTX and entry[1] <= ARCHITECTURE]
    if ptx and older:
        return [max(older, key=lambda entry: entry[1])[2]]
    return [min((content for _, _, content in found), key=len)]


def main(path: Path, ptx: bool) -> None:
    data = bytearray(path.read_bytes())
    n_kept = n_bytes = 0
    for begin, end in list(containers(bytes(data))):
        kept = b"".join(chosen(entries(bytes(data[begin:end]), 0, end - begin), ptx))
        struct.pack_into("<Q", data, begin - 8, len(kept))
        data[begin:end] = kept + bytes(end - begin - len(kept))
        n_kept, n_bytes = n_kept + len(kept), n_bytes + end - begin
    path.write_bytes(data)
    print(f"{path.name}: {n_bytes} bytes of kernels, {n_kept} of them for sm_{ARCHITECTURE}")


if __name__ == "__main__":
    main(Path(sys.argv[-1]), ptx="--no-ptx" not in sys.argv)
