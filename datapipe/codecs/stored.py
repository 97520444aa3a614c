"""How the stored bytes of a range become those of a field: steps such as `deflate:812:0f3a...`, joined by `+`.

An index and a plan keep them as text beside the range, so that a reader needs nothing else.

    prefix:HEX           these bytes belong before those of the range, as the header of an array
    crc32:HEX            what is there must have this checksum, as a member of a zip
    crc32c:HEX           ... this one, as a field of a converted dataset
    deflate:NBYTES:HEX   raw DEFLATE, which unpacks to NBYTES bytes with that CRC-32
    absent:REASON        there are no bytes; the reason is the rest of the text
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from crc32c import crc32c
from isal import isal_zlib

from datapipe.errors import DecodeError

PLAIN = ""
_ABSENT = "absent:"
_VALUES = {  # of the steps, by their names
    "prefix": re.compile(r"([0-9a-f]{2})+"),
    "crc32": re.compile(r"[0-9a-f]{8}"),
    "crc32c": re.compile(r"[0-9a-f]{8}"),
    "deflate": re.compile(r"[0-9]{1,18}:[0-9a-f]{8}"),
}


def prefixed(prefix: bytes) -> str:
    """Return the step that puts `prefix` before the bytes."""
    return f"prefix:{prefix.hex()}" if prefix else PLAIN


def summed_crc32(value: int) -> str:
    """Return the step that compares the CRC-32."""
    return f"crc32:{value:08x}"


def summed_crc32c(value: int) -> str:
    """Return the step that compares the CRC-32C."""
    return f"crc32c:{value:08x}"


def deflated(nbytes: int, crc32: int) -> str:
    """Return the step that unpacks raw DEFLATE to `nbytes` bytes and compares their CRC-32."""
    return f"deflate:{nbytes}:{crc32:08x}"


def absent(reason: str) -> str:
    """Return the codec of a field that cannot be read, known without reading."""
    return _ABSENT + reason


def why_absent(codec: str) -> str | None:
    """Return why a field with this codec cannot be read; None if it can."""
    return codec[len(_ABSENT) :] if codec.startswith(_ABSENT) else None


def joined(*steps: str) -> str:
    """Return all of these steps as one text, the first one done first."""
    return "+".join(filter(None, steps))


def value_nbytes(nbytes: int, codec: str) -> int:
    """Return the number of bytes of a field that is stored in a range of `nbytes` bytes. Raises DecodeError for no codec."""
    for kind, values in _steps(codec):
        if kind == "prefix":
            nbytes += len(values[0]) // 2
        elif kind == "deflate":
            nbytes = int(values[0])
    return nbytes


def decode_stored(data: bytes, codec: str) -> bytes:
    """Return the bytes of a field, from those that are stored. Raises DecodeError if they are damaged, or for no codec."""
    for kind, values in _steps(codec):
        if kind == "prefix":
            data = bytes.fromhex(values[0]) + data
        elif kind == "deflate":
            data = _inflate(data, int(values[0]))
            _compare(_crc32(data), values[1])
        else:
            _compare(_crc32(data) if kind == "crc32" else crc32c(data), values[0])
    return data


def _steps(codec: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the values of each step."""
    for step in codec.split("+") if codec else ():
        kind, *values = step.split(":")
        known = _VALUES.get(kind)
        if known is None or not known.fullmatch(":".join(values)):
            raise DecodeError(f"its index says that it is stored as {codec!r:.60}: damaged; index or convert again")
        yield kind, values


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


def _crc32(data: bytes) -> int:
    value: int = isal_zlib.crc32(data)
    return value


def _compare(found: int, expected: str) -> None:
    if found != int(expected, 16):
        raise DecodeError(f"its bytes have the checksum {found:08x}, expected {expected}: damaged; get the source again")
