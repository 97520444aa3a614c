"""Define the messages between a loader and its workers: data by name and value, in MessagePack; never pickled.

A request is a `Request`: a kind of data, and a body that the kind defines. Rows come back as one Arrow record batch of
fixed-size binaries, with the kind's answer as its metadata. The structs are checked when they are read, and what no struct can
say, such as lengths that must agree, by the functions here that make arrays and extents of them.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from datapipe.errors import FormatError
from datapipe.index.entries import Extents
from datapipe.order.draws import Draws
from datapipe.stores.location import is_url

MAX_ROWS = 1 << 16  # of a request
MAX_NBYTES = 1 << 30  # of the rows of a request

T = TypeVar("T")
_pack = msgspec.msgpack.Encoder()

SEATS = 2  # of a core, so that it is never idle while rows are on their way
HELLO, LOOK, OFFER = "hello", "look", "offer"  # actions of a worker
ZEROS = "zeros"  # no kind of data


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for rows of a kind of data."""

    kind: str
    body: msgspec.Raw


class Hello(msgspec.Struct, frozen=True):
    """A worker's description of itself."""

    node: str
    cores: int
    seats: int  # requests that it works on at once: `SEATS` for each core
    kinds: list[str]
    versions: dict[str, str]


class Look(msgspec.Struct, frozen=True):
    """Files that a worker is asked to look at."""

    paths: list[bytes]


class Seen(msgspec.Struct, frozen=True):
    """The sizes of these files in bytes, or why a file cannot be read there."""

    found: list[int | str]


class ExtentsForm(msgspec.Struct, frozen=True, array_like=True):
    """`Extents` of bytes."""

    paths: list[bytes]
    offset: bytes
    nbytes: bytes
    crc32c: bytes
    has_crc: bytes
    one_file_each: bool
    codecs: list[str] | None


class DrawsForm(msgspec.Struct, frozen=True, array_like=True):
    """`Draws`."""

    seed: bytes  # of any size, as decimal digits
    epoch: int
    ids: bytes


class Zeros(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for rows of zeros, of the kind `ZEROS`, by which the network's rate is measured."""

    num_rows: int
    nbytes: int  # of each


class Bad(msgspec.Struct, frozen=True):
    """The answer that names the bad rows, or samples, whose errors the loader finds by itself."""

    bad: list[int]


def packed(struct: Any) -> bytes:
    """Return a struct as bytes."""
    return _pack.encode(struct)


def unpacked(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Return the struct that bytes are. Raises FormatError."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise FormatError(f"a message between a loader and a worker is no {kind.__name__}: {exc}") from exc


def packed_request(kind: str, body: Any) -> bytes:
    """Return the request for rows of a kind of data. `body`: a struct of the kind's."""
    return packed(Request(kind, msgspec.Raw(packed(body))))


def num_bad(answer: bytes) -> int:
    """Return how many samples a worker calls bad. Raises FormatError for an answer that is no `Bad`."""
    return len(unpacked(answer, Bad).bad)


def bytes_of(numbers: NDArray[Any], dtype: Any = np.int64) -> bytes:
    """Return numbers as they are sent: those of `dtype`, one after the other."""
    return numbers.astype(dtype, copy=False).tobytes()


def array_of(data: bytes, dtype: Any, num: int) -> NDArray[Any]:
    """Return (num,) numbers, the caller's own. Raises FormatError for another number of bytes."""
    if len(data) != num * np.dtype(dtype).itemsize:
        raise FormatError(f"a message of {num} rows has {len(data)} bytes of their numbers")
    return np.frombuffer(data, dtype).copy()


def place_of(path: str) -> bytes:
    """Return a path or URL as it is sent."""
    return os.fsencode(path if path.startswith("/") or is_url(path) else os.path.abspath(path))


def placed(place: bytes) -> str:
    """Return the path or URL that was sent."""
    return os.fsdecode(place)


def form_of_extents(extents: Extents) -> ExtentsForm:
    """Return extents of bytes as they are sent."""
    codecs = None
    if extents.codecs is not None and any(extents.codecs):
        codecs = [codec if isinstance(codec, str) else "" for codec in extents.codecs]
    return ExtentsForm(
        [place_of(path) for path in extents.paths],
        bytes_of(extents.offset),
        bytes_of(extents.nbytes),
        bytes_of(extents.crc32c, np.uint32),
        bytes_of(extents.has_crc, np.uint8),
        extents.one_file_each,
        codecs,
    )


def extents_of(form: ExtentsForm) -> Extents:
    """Return the extents that were sent. Raises FormatError."""
    num = len(form.paths)
    if num > MAX_ROWS or (form.codecs is not None and len(form.codecs) != num):
        raise FormatError(f"a message has {num} extents, and codecs of another number of them, or too many")
    offset, nbytes = array_of(form.offset, np.int64, num), array_of(form.nbytes, np.int64, num)
    if num and (offset.min() < 0 or nbytes.min() < -1):
        raise FormatError("a message has an extent before the beginning of its file")
    return Extents(
        paths=[placed(path) for path in form.paths],
        offset=offset,
        nbytes=nbytes,
        crc32c=array_of(form.crc32c, np.uint32, num),
        has_crc=array_of(form.has_crc, np.uint8, num),
        one_file_each=form.one_file_each,
        codecs=None if form.codecs is None else list(form.codecs),
    )


def form_of_draws(draws: Draws) -> DrawsForm:
    """Return draws as they are sent."""
    return DrawsForm(str(draws.seed).encode(), draws.epoch, bytes_of(draws.ids))


def draws_of(form: DrawsForm, num: int) -> Draws:
    """Return the draws that were sent, of so many rows. Raises FormatError."""
    if not form.seed.removeprefix(b"-").isdigit() or len(form.seed) > 80:
        raise FormatError("a message has a seed that is no number")
    return Draws(int(form.seed), form.epoch, array_of(form.ids, np.int64, num))
