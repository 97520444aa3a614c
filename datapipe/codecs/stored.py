"""How the stored bytes of a range become those of a field: steps such as `deflate:812:0f3a...`, joined by `+`.

An index and a plan keep them as text beside the range, so that a reader needs nothing else.

    prefix:HEX           these bytes belong before those of the range, as the header of an array
    crc32:HEX            what is there must have this checksum, as a member of a zip
    crc32c:HEX           ... this one, as a field of a converted dataset
    deflate:NBYTES:HEX   raw DEFLATE, which unpacks to NBYTES bytes with that CRC-32
    sparse:NBYTES:RUNS   the bytes are runs of NBYTES bytes, of which all others are 0: OFFSET,SIZE,OFFSET,SIZE,...
    text:HEX             the range is a JSON object, and the value the text of its member of this name (hex of UTF-8)
    json:HEX             ... the JSON of that member
    absent:REASON        there are no bytes; the reason is the rest of the text
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c
from isal import isal_zlib

from datapipe.codecs.probe import check_sample_size
from datapipe.core.printable import listed
from datapipe.errors import DecodeError

PLAIN = ""
_ABSENT = "absent:"
_UNPACKING = ("deflate", "sparse")  # steps that make other numbers of bytes
_VALUES = {  # of the steps, by their names
    "prefix": re.compile(r"([0-9a-f]{2})+"),
    "crc32": re.compile(r"[0-9a-f]{8}"),
    "crc32c": re.compile(r"[0-9a-f]{8}"),
    "deflate": re.compile(r"[0-9]{1,18}:[0-9a-f]{8}"),
    "sparse": re.compile(r"[0-9]{1,18}:([0-9]{1,18},[0-9]{1,18}(,[0-9]{1,18},[0-9]{1,18})*)?"),
    "text": re.compile(r"([0-9a-f]{2})+"),
    "json": re.compile(r"([0-9a-f]{2})+"),
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


def sparse(nbytes: int, runs: Iterable[tuple[int, int]]) -> str:
    """Return the step that makes `nbytes` bytes of these runs, (offset, size) each, in order, and of zeros."""
    return f"sparse:{nbytes}:{','.join(f'{offset},{size}' for offset, size in runs)}"


def member(name: str, *, is_text: bool) -> str:
    """Return the step that takes a member out of a JSON object: its text, or its JSON."""
    return f"{'text' if is_text else 'json'}:{name.encode(errors='surrogatepass').hex()}"


def absent(reason: str) -> str:
    """Return the codec of a field that cannot be read, known without reading."""
    return _ABSENT + reason.encode(errors="backslashreplace").decode()


def why_absent(codec: str) -> str | None:
    """Return why a field with this codec cannot be read; None if it can."""
    return codec[len(_ABSENT) :] if codec.startswith(_ABSENT) else None


def joined(*steps: str) -> str:
    """Return all of these steps as one text, the first one done first."""
    return "+".join(filter(None, steps))


def value_nbytes(nbytes: int, codec: str) -> int:
    """Return the number of bytes of a field that is stored in a range of `nbytes` bytes. Raises DecodeError for no codec."""
    for step in _steps(codec):
        nbytes = step.nbytes if step.kind in _UNPACKING else nbytes + len(step.prefix)
    return nbytes  # of a member, that of its object, which is not parsed for it


def decode_stored(data: bytes, codec: str) -> bytes:
    """Return the bytes of a field, from those that are stored.

    Raises DecodeError if they are damaged, for more bytes than a sample may have, or for no codec.
    """
    for step in _steps(codec):
        if step.kind == "prefix":
            data = step.prefix + data
            continue
        if step.name:
            data = _member_of(data, step)
            continue
        if step.kind == "sparse":
            data = _with_zeros(data, step)
            continue
        if step.kind == "deflate":
            data = _inflate(data, step.nbytes)
        found = crc32c(data) if step.kind == "crc32c" else isal_zlib.crc32(data)
        if found != step.checksum:
            raise DecodeError(
                f"its bytes have the checksum {found:08x}, expected {step.checksum:08x}: damaged; get the source again"
            )
    return data


class _Step(NamedTuple):
    """A step, and those of its values that it has."""

    kind: str
    prefix: bytes = b""
    nbytes: int = 0  # of the result
    checksum: int = 0
    name: str = ""  # of a member
    runs: tuple[int, ...] = ()  # offset and size of each


@functools.lru_cache(maxsize=256)  # all fields with a prefix have one; others are parsed as quickly
def _steps(codec: str) -> tuple[_Step, ...]:
    """Return the steps of a codec. Raises DecodeError for a text that is none, and for one that unpacks twice."""
    steps: list[_Step] = []
    for text in codec.split("+") if codec else ():
        kind, *values = text.split(":")
        known = _VALUES.get(kind)
        if (
            known is None
            or not known.fullmatch(":".join(values))
            or (kind in _UNPACKING and any(one.kind in _UNPACKING for one in steps))
        ):
            raise DecodeError(f"its index says that it is stored as {codec!r:.60}: damaged; index or convert again")
        if kind == "prefix":
            steps.append(_Step(kind, bytes.fromhex(values[0])))
        elif kind in ("text", "json"):
            try:
                steps.append(_Step(kind, name=bytes.fromhex(values[0]).decode(errors="surrogatepass")))
            except UnicodeDecodeError as exc:
                raise DecodeError(f"its index says that it is stored as {codec!r:.60}: damaged; index or convert again") from exc
        elif kind == "sparse":
            steps.append(_Step(kind, nbytes=int(values[0]), runs=tuple(map(int, filter(None, values[1].split(","))))))
        else:
            steps.append(_Step(kind, nbytes=int(values[0]) if kind == "deflate" else 0, checksum=int(values[-1], 16)))
    return tuple(steps)


def _member_of(data: bytes, step: _Step) -> bytes:
    """Return a member of a JSON object: the UTF-8 of its text, or its JSON."""
    if step.kind == "text":
        with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError, AttributeError):
            return _object_with(step.name, str).decode(data).value.encode()  # type: ignore[attr-defined,no-any-return]
    try:  # once more, in two steps, of which the errors are those of the member alone
        value = _object_with(step.name, msgspec.Raw).decode(data).value  # type: ignore[attr-defined]
        if value is not msgspec.UNSET:
            return msgspec.json.decode(value, type=str).encode() if step.kind == "text" else bytes(value)
        problem = f"its object has no member {step.name!r}"
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:  # ValueError: a name with a quote or a backslash
        what = "text" if step.kind == "text" else "JSON"
        problem = f"its member {step.name!r} is no {what}: {str(exc).splitlines()[0]:.100}"
    raise DecodeError(_without_member(data, step.name) or problem)


def _without_member(data: bytes, name: str) -> str | None:
    """Return why bytes are no JSON object with a member of this name; None if they are one."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as exc:
        return f"what it lies in is not JSON ({exc})"
    if not isinstance(value, dict):
        return f"what it lies in is no JSON object: {data[:40]!r}"
    return None if name in value else f"its object has no member {name!r}, only {listed([one[:40] for one in value]) or 'none'}"


@functools.lru_cache(maxsize=64)
def _object_with(name: str, kind: type[Any]) -> msgspec.json.Decoder[msgspec.Struct]:
    """Return what parses one member of objects, and leaves the others alone."""
    fields = [("value", kind | msgspec.UnsetType, msgspec.UNSET)]
    return msgspec.json.Decoder(msgspec.defstruct("Object", fields, rename={"value": name}))


def _with_zeros(data: bytes, step: _Step) -> bytes:
    """Return runs of bytes at their places among zeros."""
    check_sample_size(step.nbytes)
    sizes = step.runs[1::2]
    ends = [0, *(offset + size for offset, size in zip(step.runs[::2], sizes, strict=True))]
    if sum(sizes) != len(data) or ends[-1] > step.nbytes or any(map(operator.lt, step.runs[::2], ends)):
        raise DecodeError("the runs of a sparse file do not fit its bytes: damaged; index or convert again")
    value, at = bytearray(step.nbytes), 0
    for offset, size in zip(step.runs[::2], sizes, strict=True):
        value[offset : offset + size] = data[at : at + size]
        at += size
    return bytes(value)


def _inflate(data: bytes, nbytes: int) -> bytes:
    """Unpack raw DEFLATE; never makes more than the `nbytes` that were announced, and one."""
    check_sample_size(nbytes)
    unpacking = isal_zlib.decompressobj(-isal_zlib.MAX_WBITS)
    try:
        found = unpacking.decompress(data, nbytes + 1)
    except isal_zlib.IsalError as exc:  # type: ignore[misc]  # its stub calls it an exception, not a class
        raise DecodeError(f"its compressed bytes are damaged ({exc}); get the archive again") from exc
    if len(found) != nbytes or not unpacking.eof:
        what = f"more than the {nbytes} bytes" if len(found) > nbytes else f"{len(found)} of the {nbytes} bytes"
        raise DecodeError(f"unpacks to {what} that the archive announces: damaged, or a bomb; get the archive again")
    return found
