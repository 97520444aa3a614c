"""Map Arrow files into memory without trusting them: no descriptor stays open, and nothing is decompressed.

Arrow's reader checks the messages of a file, but not the values in its buffers, and it decompresses compressed buffers
to a size that the file states. So compressed messages are refused here, before any of them is read; the caller checks
values with `RecordBatch.validate(full=True)`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from datapipe.core import regular_files
from datapipe.core.regular_files import AnyPath

MAGIC = b"ARROW1"  # a file of batches and a footer; a stream has neither

# The exceptions that pyarrow raises for damaged files, from its own checks and from those of Python.
DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, struct.error)

_FEATHER_1 = b"FEA1"
_STREAM_START = 8  # bytes of a file before its stream: the magic, padded
_DICTIONARY, _BATCH = 2, 3  # MessageHeader of Arrow's Message.fbs
_OLD_COMPRESSION = b"ARROW:experimental_compression"  # marked compression before there was a field for it


def map_file(path: AnyPath) -> pa.Buffer:
    """Map a file. The map is freed with the last buffer cut out of it. No descriptor stays open.

    Raises FormatError if it is not a regular file, OSError as `os.open` does, or without a number if it is empty.
    """
    with regular_files.opened_by_name(path) as name, pa.memory_map(name) as opened:
        return opened.read_buffer()


def is_file(data: pa.Buffer) -> bool:
    """Return True if the data begins and ends as an Arrow file with a footer does."""
    ends = (data.slice(0, len(MAGIC)), data.slice(max(0, data.size - len(MAGIC))))
    return data.size > 2 * _STREAM_START and all(end.to_pybytes() == MAGIC for end in ends)


def refuse_cut(data: pa.Buffer) -> None:
    """Raise ValueError for a file that begins as one with a footer does, and ends before it."""
    if data.slice(0, len(MAGIC)).to_pybytes() == MAGIC and not is_file(data):
        raise ValueError(f"it begins as an Arrow or Feather file and its end is missing: it was cut after {data.size} bytes")
    if data.slice(0, len(_FEATHER_1)).to_pybytes() == _FEATHER_1:
        raise ValueError("Feather of version 1, from before 2020; read it with pyarrow.feather and write it again")


def stream_of(data: pa.Buffer) -> pa.Buffer:
    """Return the stream in a mapped file. Raises ValueError if it was cut or a batch is compressed, DAMAGE if it does not parse.

    A file with a footer is read as the stream at its beginning: a footer may point anywhere.
    """
    refuse_cut(data)
    stream = data.slice(_STREAM_START) if is_file(data) else data
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)):
        if is_compressed(message.metadata.to_pybytes()):
            raise ValueError("its batches are compressed")
    return stream


def is_compressed(metadata: bytes) -> bool:
    """Return True if a message says that its body is compressed; see Arrow's Message.fbs."""
    message = FlatTable(metadata, 0)
    if message.number(1) not in (_DICTIONARY, _BATCH):
        return False
    batch = batch_in(metadata)
    return (batch is not None and batch.table(3) is not None) or _OLD_COMPRESSION in metadata


def batch_in(metadata: bytes) -> FlatTable | None:
    """Return the RecordBatch in a message, that of a dictionary too; None if there is none. Raises struct.error."""
    message = FlatTable(metadata, 0)
    kind = message.number(1)
    if kind not in (_DICTIONARY, _BATCH):
        return None
    batch = message.table(2)
    return batch.table(1) if kind == _DICTIONARY and batch is not None else batch


class FlatTable:
    """A table of a flatbuffer: https://flatbuffers.dev/internals. Raises struct.error for references out of the bytes."""

    def __init__(self, data: bytes, place: int) -> None:
        """`place`: that of the reference to the table."""
        self._data = data
        self._start = place + self._read("<I", place)
        self._slots = self._start - self._read("<i", self._start)

    def number(self, field: int) -> int:
        """Return a field of one byte; 0 if it is omitted."""
        place = self._place(field)
        return self._read("<B", place) if place else 0

    def table(self, field: int) -> FlatTable | None:
        """Return a field that is a table; None if it is omitted."""
        place = self._place(field)
        return FlatTable(self._data, place) if place else None

    def structs(self, field: int, form: str) -> Iterator[tuple[int, ...]]:
        """Yield the structs of a field that is a list of them, each as `struct.unpack` gives it; none if it is omitted."""
        place = self._place(field)
        if place:
            place += self._read("<I", place)
            num, size = self._read("<I", place), struct.calcsize(form)
            if num * size > len(self._data) - place - 4:
                raise struct.error("a list leads out of the message")
            yield from struct.iter_unpack(form, self._data[place + 4 : place + 4 + num * size])

    def _place(self, field: int) -> int:
        slot = 4 + 2 * field
        offset = self._read("<H", self._slots + slot) if slot < self._read("<H", self._slots) else 0
        return self._start + offset if offset else 0

    def _read(self, form: str, place: int) -> int:
        if place < 0:
            raise struct.error("a reference leads out of the message")
        return int(struct.unpack_from(form, self._data, place)[0])
