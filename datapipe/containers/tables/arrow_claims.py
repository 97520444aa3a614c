"""Check what Arrow files claim, before memory is made for it: sizes of compressed buffers, and numbers of rows.

The body of a message holds its buffers, and a compressed buffer begins with the size of its contents (Arrow's
Message.fbs, File.fbs). Arrow allocates that size, whatever the buffer is.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from datapipe.containers.mapped import is_bomb
from datapipe.core import arrow_maps
from datapipe.core.arrow_maps import FlatTable

_PREFIX = 8  # bytes before a message: the mark of a continuation, the size of what follows; before a compressed buffer: its size
_BUFFERS = 2  # field of a RecordBatch
_DICTIONARIES, _BATCHES = 2, 3  # fields of a Footer
_BLOCK, _BUFFER = "<qi4xq", "<qq"  # offset, nbytes of metadata and of body; offset, nbytes


def measured_field(schema: pa.Schema) -> int | None:
    """Return the place of a column whose values take bytes, so that a batch with it has the rows that it claims; None: none."""
    return next((place for place, field in enumerate(schema) if _takes_bytes(field.type)), None)


def _takes_bytes(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _takes_bytes(kind.storage_type)
    if pa.types.is_null(kind) or pa.types.is_run_end_encoded(kind):
        return False
    if pa.types.is_struct(kind):
        return any(_takes_bytes(field.type) for field in kind)
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size > 0 and _takes_bytes(kind.value_type)
    return not (pa.types.is_fixed_size_binary(kind) and kind.byte_width == 0)


def check_sizes(data: pa.Buffer) -> None:
    """Raise ValueError if a buffer of the mapped file claims more than its bytes can become, `arrow_maps.DAMAGE` if it is cut."""
    arrow_maps.refuse_cut(data)
    for metadata, body in _messages_of_file(data) if arrow_maps.is_file(data) else _messages_of_stream(data):
        batch = arrow_maps.batch_in(metadata)
        if batch is None or not arrow_maps.is_compressed(metadata):
            continue
        for offset, nbytes in batch.structs(_BUFFERS, _BUFFER):
            if not nbytes:
                continue
            if offset < 0 or nbytes < _PREFIX or offset + nbytes > body.size:
                raise ValueError("a buffer lies outside of its message")
            claimed = int.from_bytes(body[offset : offset + _PREFIX].to_pybytes(), "little", signed=True)
            if is_bomb(claimed, nbytes):  # -1 for one that is stored as it is
                raise ValueError(f"a buffer of {nbytes} bytes claims {claimed} bytes uncompressed")


def _messages_of_stream(data: pa.Buffer) -> Iterator[tuple[bytes, pa.Buffer]]:
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(data)):
        if message.body is not None:
            yield message.metadata.to_pybytes(), message.body


def _messages_of_file(data: pa.Buffer) -> Iterator[tuple[bytes, pa.Buffer]]:
    """The messages to which the footer points."""
    end = data.size - len(arrow_maps.MAGIC) - 4
    nbytes = int.from_bytes(data[end : end + 4].to_pybytes(), "little", signed=True)
    if not 0 < nbytes <= end:
        raise ValueError(f"its footer of {nbytes} bytes is longer than the file")
    footer = FlatTable(data[end - nbytes : end].to_pybytes(), 0)
    for field in (_DICTIONARIES, _BATCHES):
        for offset, metadata_nbytes, body_nbytes in footer.structs(field, _BLOCK):
            start = offset + metadata_nbytes
            if offset < 0 or metadata_nbytes < _PREFIX or body_nbytes < 0 or start + body_nbytes > end:
                raise ValueError("a message lies outside of the file: it was cut, or is damaged")
            message = data[offset:start].to_pybytes()
            is_old = message[:4] != b"\xff\xff\xff\xff"  # before Arrow 0.15
            yield message[4 if is_old else _PREFIX :], data[start : start + body_nbytes]
