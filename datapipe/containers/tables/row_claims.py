"""Check how many rows a file claims, before memory or an order is made for them.

Rows that are stored in at least a byte each are taken from the footer: they cost no more than the file does. More of them,
as in runs of equal values, are believed if the pages of a column have them too, and only up to a limit: a run of
any length takes a few bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from datapipe.containers.mapped import ByteSource
from datapipe.containers.parquet.footer import Footer, SchemaLeaf, read_footer
from datapipe.containers.parquet.pages import Chunk, num_values_of, pages
from datapipe.containers.parquet.thrift_compact import DamagedError, number_in

MIN_ROWS = 1 << 22  # of a row group that takes hardly a byte
ROWS_PER_BYTE = 64  # of the file, for larger ones; a label that is true in one row of a hundred takes more


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
        rows, found = number_in(footer.row_groups[number], 3), _num_values(chunk, data)
        if found != chunk.num_values or found < rows:  # a row of lists has at least one value, if only a null
            raise DamagedError(
                f"row group {number} claims {rows} rows, and the pages of its column {leaf.path!r} hold {found} values"
            )


def _num_values(chunk: Chunk, data: ByteSource) -> int:
    return sum(num_values_of(page) for page in pages(data, chunk))
