"""Device code within shared libraries: wheels hold it for many GPU generations, a machine has one.

The compiler embeds a *fat binary* per source file (layout as in CUDA's `fatbinary_section.h` and as `cuobjdump`
lists it): a header (magic u32, version u16, header size u16, size of what follows u64) and after it entries, each
with a header (kind u16, version u16, header size u32, payload size u64, ..., architecture u32 at 28) before its
payload. The driver reads the headers and loads the payload that fits the GPU; the others it leaves alone.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MACHINE_CODE = 2  # kind of an entry; 1 is PTX, from which the driver would compile
_MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ")
_ARCHITECTURE = struct.Struct("<I")
_ARCHITECTURE_AT = 28
_ENTRY_HEADERS = range(_ARCHITECTURE_AT + _ARCHITECTURE.size, 257)  # sizes that make sense, bytes


@dataclass(frozen=True, slots=True)
class Payload:
    """One piece of device code."""

    kind: int
    architecture: int  # 90 for compute capability 9.0
    start: int  # in the file, bytes
    nbytes: int

    def is_for(self, architecture: int) -> bool:
        """Whether this is machine code for it."""
        return self.kind == MACHINE_CODE and self.architecture == architecture


def fat_binaries(image: mmap.mmap | bytes) -> Iterator[list[Payload]]:
    """The payloads of each fat binary; of one that is not understood nothing is given."""
    at = image.find(_MAGIC)
    while at >= 0:
        _, _, header, size = _HEADER.unpack_from(image, at)
        end = at + header + size
        payloads = _payloads(image, at + header, end) if end <= len(image) else []
        if payloads:
            yield payloads
        at = image.find(_MAGIC, end if payloads else at + 1)


def blank_others(path: Path, architecture: int) -> int:
    """Zero, in place, device code that is not machine code for `architecture`; the number of bytes zeroed.

    The file keeps its size and its headers, so it loads as before, and the zeros take no room in an archive. A fat
    binary without machine code for `architecture` is left whole: the driver would compile its PTX.
    """
    num_zeroed = 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as image:
        for payloads in list(fat_binaries(image)):
            if not any(payload.is_for(architecture) for payload in payloads):
                continue
            for payload in payloads:
                if not payload.is_for(architecture):
                    image[payload.start : payload.start + payload.nbytes] = bytes(payload.nbytes)
                    num_zeroed += payload.nbytes
    return num_zeroed


def _payloads(image: mmap.mmap | bytes, start: int, end: int) -> list[Payload]:
    """The entries between two places; empty unless they fill it."""
    found, at = [], start
    while at < end:
        if at + _ARCHITECTURE_AT + _ARCHITECTURE.size > end:
            return []
        kind, _, header, nbytes = _ENTRY.unpack_from(image, at)
        (architecture,) = _ARCHITECTURE.unpack_from(image, at + _ARCHITECTURE_AT)
        if header not in _ENTRY_HEADERS or at + header + nbytes > end:
            return []
        found.append(Payload(kind, architecture, at + header, nbytes))
        at += header + nbytes
    return found
