"""Map Arrow files into memory without trusting them: no descriptor stays open, and nothing is decompressed.

Arrow's reader checks the messages of a file, but not the values in its buffers, and it decompresses compressed buffers
to a size that the file states. So compressed messages are refused here, before any of them is read; the caller checks
values with `RecordBatch.validate(full=True)`.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from datapipe.core import regular_files
from datapipe.core.regular_files import AnyPath

MAGIC = b"ARROW1"  # a file of batches and a footer; a stream has neither

# The exceptions that pyarrow raises for damaged files, from its own checks and from those of Python.
DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, struct.error)

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


def stream_of(data: pa.Buffer) -> pa.Buffer:
    """Return the stream in a mapped file. Raises ValueError if a batch is compressed, DAMAGE if it does not parse.

    A file with a footer is read as the stream at its beginning: a footer may point anywhere.
    """
    stream = data.slice(_STREAM_START) if is_file(data) else data
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)):
        if _is_compressed(message.metadata.to_pybytes()):
            raise ValueError("its batches are compressed")
    return stream


def _is_compressed(metadata: bytes) -> bool:
    """Return True if a message says that its body is compressed; see Arrow's Message.fbs."""
    message = _Table(metadata, 0)
    kind = message.number(1)
    if kind not in (_DICTIONARY, _BATCH):
        return False
    batch = message.table(2)
    if kind == _DICTIONARY and batch is not None:
        batch = batch.table(1)
    return (batch is not None and batch.table(3) is not None) or _OLD_COMPRESSION in metadata


class _Table:
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

    def table(self, field: int) -> _Table | None:
        """Return a field that is a table; None if it is omitted."""
        place = self._place(field)
        return _Table(self._data, place) if place else None

    def _place(self, field: int) -> int:
        slot = 4 + 2 * field
        offset = self._read("<H", self._slots + slot) if slot < self._read("<H", self._slots) else 0
        return self._start + offset if offset else 0

    def _read(self, form: str, place: int) -> int:
        if place < 0:
            raise struct.error("a reference leads out of the message")
        return int(struct.unpack_from(form, self._data, place)[0])
