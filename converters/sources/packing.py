"""How the stored bytes of a range become those of a field: steps such as `deflate:812:0f3a...`, joined by `+`.

A plan keeps them as text beside the range, so that a worker needs nothing else to read it.

    prefix:HEX           these bytes belong before those of the range, as the header of an array
    crc32:HEX            what is there must have this checksum, as a member of a zip
    crc32c:HEX           ... this one, as a field of a converted dataset
    deflate:NBYTES:HEX   NBYTES bytes of raw DEFLATE, with the CRC-32 of what they unpack to
"""

from __future__ import annotations

from crc32c import crc32c
from isal import isal_zlib

from datapipe.errors import DecodeError

PLAIN = ""


def prefixed(prefix: bytes) -> str:
    """Return the step that puts `prefix` before the bytes."""
    return f"prefix:{prefix.hex()}" if prefix else PLAIN


def summed_crc32(value: int) -> str:
    """Return the step that compares the CRC-32."""
    return f"crc32:{value:08x}"


def summed_crc32c(value: int) -> str:
    """Return the step that compares the CRC-32C."""
    return f"crc32c:{value:08x}"


def deflated(stored_nbytes: int, crc32: int) -> str:
    """Return the step that unpacks raw DEFLATE and compares the CRC-32 of the result."""
    return f"deflate:{stored_nbytes}:{crc32:08x}"


def joined(*steps: str) -> str:
    """Return all of these steps as one text, the first one done first."""
    return "+".join(filter(None, steps))


def stored_nbytes(nbytes: int, packing: str) -> int:
    """Return the bytes to read for a field of `nbytes` bytes."""
    for step in reversed(packing.split("+")) if packing else ():
        kind, _, rest = step.partition(":")
        if kind == "prefix":
            nbytes -= len(rest) // 2
        elif kind == "deflate":
            nbytes = int(rest.partition(":")[0])
    return nbytes


def unpack(data: bytes, nbytes: int, packing: str) -> bytes:
    """Return the `nbytes` bytes of a field, from those that are stored. Raises DecodeError if they are damaged."""
    for step in packing.split("+") if packing else ():
        kind, *values = step.split(":")
        if kind == "prefix":
            data = bytes.fromhex(values[0]) + data
        elif kind == "deflate":
            data = _inflate(data, nbytes)
            _compare(isal_zlib.crc32(data), values[1])
        else:
            _compare(isal_zlib.crc32(data) if kind == "crc32" else crc32c(data), values[0])
    return data


def _inflate(data: bytes, nbytes: int) -> bytes:
    """Unpack raw DEFLATE; never makes more than the `nbytes` that were announced, and one."""
    unpacking = isal_zlib.decompressobj(-isal_zlib.MAX_WBITS)
    try:
        found = unpacking.decompress(data, nbytes + 1)
    except isal_zlib.IsalError as exc:  # type: ignore[misc]  # its stub calls it an exception, not a class
        raise DecodeError(f"its compressed bytes are damaged ({exc}); get the archive again") from exc
    if len(found) != nbytes or not unpacking.eof:
        what = f"more than the {nbytes} bytes" if len(found) > nbytes else f"{len(found)} of the {nbytes} bytes"
        raise DecodeError(f"unpacks to {what} that the archive announces: damaged, or a bomb; get the archive again")
    return found


def _compare(found: int, expected: str) -> None:
    if found != int(expected, 16):
        raise DecodeError(f"its bytes have the checksum {found:08x}, expected {expected}: damaged; get the source again")
