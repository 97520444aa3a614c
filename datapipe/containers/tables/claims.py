"""Check what files of tables claim, before memory or an order is made for it: numbers of rows, and sizes of compressed buffers.

Of Parquet, rows that are stored in at least a byte each are taken from the footer: they cost no more than the file does. More of
them, as in runs of equal values, are believed if the pages of a column have them too, and only up to a limit: a run of any length
takes a few bytes.

Of Arrow, the body of a message holds its buffers, and a compressed buffer begins with the size of its contents (Arrow's
Message.fbs, File.fbs). Arrow allocates that size, whatever the buffer is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from datapipe.containers.mapped import ByteSource, is_bomb
from datapipe.containers.parquet.footer import Footer, SchemaLeaf, read_footer
from datapipe.containers.parquet.pages import num_values_of, pages
from datapipe.containers.parquet.thrift_compact import DamagedError, number_in
from datapipe.core import arrow_maps
from datapipe.core.arrow_maps import FlatTable

MIN_ROWS = 1 << 22  # of a row group that takes hardly a byte
ROWS_PER_BYTE = 64  # of the file, for larger ones; a label that is true in one row of a hundred takes more
_PREFIX = 8  # bytes before a message: the mark of a continuation, the size of what follows; before a compressed buffer: its size
_BUFFERS = 2  # field of a RecordBatch
_DICTIONARIES, _BATCHES = 2, 3  # fields of a Footer
_BLOCK, _BUFFER = "<qi4xq", "<qq"  # offset, nbytes of metadata and of body; offset, nbytes


def check_parquet_rows(rows: Sequence[int], *, total: int, data: ByteSource) -> None:
    """Raise DamagedError if the row groups of the file in `data` cannot have that many rows. `total`: rows of the file."""
    if min(rows, default=0) < 0 or sum(rows) != total:
        raise DamagedError(f"it tells of {total} rows, its row groups of {sum(rows)}")
    if total <= len(data):
        return
    most = MIN_ROWS + ROWS_PER_BYTE * len(data)
    for number, count in enumerate(rows):
        if count > most:
            raise DamagedError(
                f"row group {number} claims {count} rows in a file of {len(data)} bytes, of which at most {most} are believed; "
                "if it has them, write it with smaller row groups"
            )
    footer = read_footer(data)
    if [number_in(group, 3) for group in footer.row_groups] != list(rows):
        raise DamagedError("its row groups have two numbers of rows")
    _check_pages(footer, _smallest(footer), data)


def _smallest(footer: Footer) -> SchemaLeaf:
    """Return the column with the fewest bytes; one of lists only if there is no other."""
    if not footer.columns:
        raise DamagedError(f"it claims {footer.num_rows} rows and has no columns")
    sizes = {leaf: sum(chunk.end - chunk.start for chunk, _ in footer.chunks(leaf)) for leaf in footer.columns}
    return min(sizes, key=lambda leaf: (leaf.is_repeated, sizes[leaf]))


def _check_pages(footer: Footer, leaf: SchemaLeaf, data: ByteSource) -> None:
    for number, (chunk, _) in enumerate(footer.chunks(leaf)):
        rows, found = number_in(footer.row_groups[number], 3), sum(map(num_values_of, pages(data, chunk)))
        if found != chunk.num_values or found < rows:  # a row of lists has at least one value, if only a null
            raise DamagedError(
                f"row group {number} claims {rows} rows, and the pages of its column {leaf.path!r} hold {found} values"
            )


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
