"""Make an index of samples whose values lie packed, each in one piece, by what their form says of each value.

The image is the one value of images, chosen by name if there are several; labels are integers, or texts that name classes, under
the names that `labels` has for the form. All others become fields.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from datapipe.codecs.field_values import NO_LABEL, FieldKind, FieldSpec
from datapipe.codecs.npy import npy_header
from datapipe.codecs.stored import absent, prefixed
from datapipe.containers.columns import add_field
from datapipe.containers.field_names import (
    HEAD_NBYTES,
    IMAGE,
    IMAGE_COLUMNS,
    KEY_COLUMNS,
    LABEL,
    is_mask_name,
    kind_of_bytes,
    names_among,
)
from datapipe.containers.labels import MAX_LABEL_NBYTES, class_labels, label_names, label_text, said_labels, webdataset_number
from datapipe.containers.mapped import ByteSource
from datapipe.errors import FormatError
from datapipe.index.sidecar import FieldColumn, SidecarRows
from datapipe.peers.packed import PackedValues

MAX_DIMENSIONS = 63
_MAX_KEY_NBYTES = 1024
_TEXT_LABELS = ("label", "labels", "class", "fine_label")  # names under which texts are names of classes
_PIL_HEAD_NBYTES = 12 + 16  # with the longest name of a mode
_CHANNELS = {b"L": (), b"RGB": (3,)}  # of pixels that decoders take as they are, by mode
ReadHead = Callable[[bytes], tuple[int, tuple[int, ...], "np.dtype[np.generic]"]]


@dataclass(frozen=True, slots=True)
class StoredAs:
    """How the values of one name are stored.

    `number`: the dtype of single numbers. `read_head`: what takes the first `head_nbytes` of a value, or all of it, and returns
    the size of its head, and shape and dtype of the array that follows; it raises IndexError, KeyError or ValueError for none.
    """

    kind: FieldKind | None  # None: they are no field
    why_not: str = ""
    number: np.dtype[np.generic] | None = None
    shape: tuple[int, ...] = ()  # of arrays of `number`, if all have one
    row_dtype: np.dtype[np.generic] | None = None  # of arrays of one dimension, of any length
    is_digits: bool = False  # whole numbers, written out
    read_head: ReadHead | None = None
    head_nbytes: int = 0

    @property
    def nbytes(self) -> int | None:
        """The size of each value in bytes, if it follows from this."""
        return None if self.number is None else math.prod(self.shape) * self.number.itemsize

    def column(self, values: PackedValues, data: ByteSource) -> FieldColumn:
        """Return where the values lie, without heads, and what belongs before them."""
        if self.row_dtype is not None:
            codecs = [_row_codec(self.row_dtype, nbytes) for nbytes in values.nbytes.tolist()]
            return FieldColumn(values.offset, values.nbytes, codecs=codecs)
        if self.read_head is None:
            prefix = b"" if self.number is None else npy_header(self.shape, self.number)
            return FieldColumn(values.offset, values.nbytes, prefix, codecs=values.codecs)
        begins = values.read(data, at_most=self.head_nbytes)
        found = [_headless(self.read_head, begin, nbytes) for begin, nbytes in zip(begins, values.nbytes.tolist(), strict=True)]
        heads = np.array([head for head, _ in found], np.int64)
        return FieldColumn(values.offset + heads, values.nbytes - heads, codecs=[codec for _, codec in found])


def _row_codec(dtype: np.dtype[np.generic], nbytes: int) -> str:
    """Return the codec of an array of one dimension."""
    if nbytes % dtype.itemsize:
        return absent(f"has {nbytes} bytes, which are no values of {dtype}: damaged; write the shard again")
    return prefixed(npy_header((nbytes // dtype.itemsize,), dtype))


def _headless(read_head: ReadHead, begin: bytes, nbytes: int) -> tuple[int, str]:
    """Return the size of the head of a value, and the codec of what follows it: one of `absent` if it cannot be read."""
    try:
        head, shape, dtype = read_head(begin)
    except _UnreadError as exc:
        return 0, absent(str(exc))
    except (IndexError, KeyError, ValueError):
        return 0, absent("does not begin like a value of its kind: damaged; write the shard again")
    expected = math.prod(shape) * dtype.itemsize
    if len(shape) > MAX_DIMENSIONS or head + expected != nbytes:
        return 0, absent(f"has {nbytes - head} bytes of values, its head says {expected}: damaged; write the shard again")
    return head, prefixed(npy_header(shape, dtype))


class _UnreadError(Exception):
    """A value is whole, and not read; the text says why."""


def _pixels_head(data: bytes) -> tuple[int, tuple[int, ...], np.dtype[np.generic]]:
    width, height, mode_nbytes = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 8))
    mode = data[12 : 12 + mode_nbytes]
    if mode_nbytes > len(mode):
        raise ValueError("cut off")
    if mode not in _CHANNELS:
        shown = mode.decode(errors="backslashreplace")
        raise _UnreadError(f"holds raw pixels of Pillow's mode {shown!r}, of which L and RGB are read; write it as JPEG or PNG")
    return 12 + mode_nbytes, (height, width, *_CHANNELS[mode]), np.dtype("u1")


# Raw pixels of Pillow's: width, height and the length of the mode's name, uint32 each, that name, and the pixels.
PIXELS = StoredAs(FieldKind.IMAGE, read_head=_pixels_head, head_nbytes=_PIL_HEAD_NBYTES)
ENCODED = StoredAs(FieldKind.IMAGE)
TEXT = StoredAs(FieldKind.TEXT)
BYTES = StoredAs(FieldKind.BYTES)


@functools.cache
def number_of(dtype: str) -> StoredAs:
    """Return how single numbers are stored, little-endian."""
    return StoredAs(FieldKind.ARRAY, number=np.dtype(dtype).newbyteorder("<"))


def unread(why: str) -> StoredAs:
    """Return how values are stored that are no field, with the reason."""
    return StoredAs(None, why)


def packed_rows(
    columns: Mapping[str, tuple[StoredAs, PackedValues]], data: ByteSource, form: str, where: str
) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Return the rows of a shard, ids being row numbers, and its fields. `columns`: its values by name; `form`: of `labels`.

    Names that are no fields are recorded in `unread` of the rows. Raises FormatError if there are no others, for several images
    of which none is called so, and for labels that are no class numbers.
    """
    for name, (one, places) in columns.items():
        if one.nbytes is not None and (places.nbytes != one.nbytes).any():
            row = int((places.nbytes != one.nbytes).argmax())
            what = f"{name!r:.40} of sample {row} has {places.nbytes[row]} bytes, expected {one.nbytes}"
            raise FormatError(f"{where}: {what}: damaged; get the file again")
    stored = {name: _by_contents(name, *column, data) for name, column in columns.items()}
    values = {name: one for name, (_, one) in columns.items()}
    image = _image(stored, where)
    label, labels, said = _labels(stored, values, data, form, where)
    num = len(next(iter(values.values())).offset)
    stem = os.fsencode(PurePath(where).stem)
    rows = SidecarRows((), said=said)
    rows.add_samples(_keys(stored, values, data) or [b"%s/%d" % (stem, row) for row in range(num)], labels or [NO_LABEL] * num)
    specs: list[FieldSpec] = []
    if image is not None:
        rows.add_column(IMAGE, stored[image].column(values[image], data))
        specs.append(FieldSpec(IMAGE, FieldKind.IMAGE))
    if label is not None:
        specs.append(FieldSpec(LABEL, FieldKind.LABEL))
    for name, one in stored.items():
        if one.kind is None:
            rows.unread[name] = one.why_not
        elif name not in (image, label):
            specs.append(add_field(rows, name, one.kind, one.column(values[name], data)))
    if not specs:
        shown = ", ".join(f"{name} ({why})" for name, why in list(rows.unread.items())[:12])
        raise FormatError(f"{where}: holds nothing that can be read: {shown}; write the shards with other values")
    return rows, tuple(specs)


def _by_contents(name: str, stored: StoredAs, values: PackedValues, data: ByteSource) -> StoredAs:
    """Return how values are stored, by their name and contents where their form does not say it all."""
    if stored.kind is FieldKind.IMAGE and is_mask_name(name) and stored.read_head is None:
        return StoredAs(FieldKind.MASK)
    if stored.kind is not FieldKind.BYTES:
        return stored
    sizes = values.nbytes
    first = int((sizes > 0).argmax())
    start = int(values.offset[first])
    return StoredAs(kind_of_bytes(name, data[start : start + min(int(sizes[first]), HEAD_NBYTES)]))


def _image(stored: Mapping[str, StoredAs], where: str) -> str | None:
    """Return the name of the images: called so, or the only ones; None if there are none."""
    images = [name for name, one in stored.items() if one.kind is FieldKind.IMAGE]
    named = names_among(IMAGE_COLUMNS, images)
    if len(images) > 1 and not named:
        raise FormatError(f"{where}: several images a sample ({', '.join(images)}); call one of them 'image'")
    return next(iter([*named, *images]), None)


def _labels(
    stored: Mapping[str, StoredAs], values: Mapping[str, PackedValues], data: ByteSource, form: str, where: str
) -> tuple[str | None, list[int], dict[int, str] | None]:
    """Return the name of the labels, the labels, and what each says if they are texts."""
    for name in label_names(form, stored):
        one, places = stored[name], values[name]
        if one.number is not None and one.number.kind in "iu" and not one.shape:
            numbers = np.frombuffer(b"".join(places.read(data)), one.number)
            return name, class_labels(numbers.tolist(), where), None
        is_said = one.is_digits or (one.kind is FieldKind.TEXT and name.lower() in _TEXT_LABELS)
        if is_said and places.nbytes.max() <= MAX_LABEL_NBYTES:
            try:
                said = said_labels(map(label_text, places.read(data)), webdataset_number)
            except UnicodeDecodeError as exc:
                raise FormatError(f"{where}: a label under {name!r} is not UTF-8; write the shard again") from exc
            return name, [*said.labels], dict(said.texts)
    return None, [], None


def _keys(stored: Mapping[str, StoredAs], values: Mapping[str, PackedValues], data: ByteSource) -> list[bytes] | None:
    """Return the names of samples, if there are texts or bytes of which each is another."""
    for name in names_among(KEY_COLUMNS, stored):
        sizes = values[name].nbytes
        if stored[name].kind in (FieldKind.TEXT, FieldKind.BYTES) and sizes.min() > 0 and sizes.max() <= _MAX_KEY_NBYTES:
            keys = values[name].read(data)
            if len(set(keys)) == len(keys):
                return keys
    return None
