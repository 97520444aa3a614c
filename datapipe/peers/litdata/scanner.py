"""Scan chunks of Lightning's `litdata`: where the values of each sample lie, and its label.

A chunk is a file of packed samples (`peers/packed`), in which each sample begins with the sizes of all its values. How they
are stored is said by the `index.json` beside it. Newer releases write samples of bytes, texts and numbers as rows of Arrow's
instead: after the offsets, which are all the same, come an Arrow file, its size as uint32, and eight bytes that say so.
"""

from __future__ import annotations

from pathlib import Path

from datapipe.codecs.field_values import FieldSpec
from datapipe.containers.mapped import byte_source
from datapipe.core import arrow_maps
from datapipe.errors import FormatError
from datapipe.index.sidecar import SidecarRows
from datapipe.peers.arrow_columns import index_batches, read_batches
from datapipe.peers.litdata.index_file import leaves_beside
from datapipe.peers.packed import packed_values, sample_bounds
from datapipe.peers.packed_fields import packed_rows
from datapipe.stores.location import is_url

_FORM = "a chunk of LitData's"
_ROWS_BEHIND = b"LDARW01\0"  # the end of a chunk that has its samples as rows of Arrow's, after none of them


def index_shard(path: str | Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Index one chunk, by its path or URL; ids are row numbers.

    Values that are pickled, nested, or of unknown formats are recorded in `unread` of the rows. Raises MissingDataError,
    StorageError or FormatError, naming the chunk.
    """
    where = str(path)
    stored = leaves_beside(where)
    with byte_source(path, _FORM) as data:
        bounds = sample_bounds(data, _FORM, where)
        if bounds[0] == bounds[-1] and data[len(data) - len(_ROWS_BEHIND) : len(data)] == _ROWS_BEHIND:
            return _rows_of_arrow(where, int.from_bytes(data[:4], "little"))
        values = packed_values(data, bounds, [None] * len(stored), where)
        columns = dict(zip(stored, zip(stored.values(), values, strict=True), strict=True))
        return packed_rows(columns, data, "litdata", where)


def _rows_of_arrow(where: str, num: int) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Index a chunk that ends with an Arrow file of its `num` samples."""
    if is_url(where):
        raise FormatError(f"{where}: its samples are rows of Arrow's, which are not read from stores; copy the folder to a disk")
    data = arrow_maps.map_file(where)
    end = data.size - len(_ROWS_BEHIND) - 4
    nbytes = int.from_bytes(data.slice(end, 4).to_pybytes(), "little")
    try:
        if not 0 < nbytes <= end:
            raise ValueError(f"it would have {nbytes:,} bytes")
        schema, batches = read_batches(data.slice(end - nbytes, nbytes))
        if sum(batch.num_rows for batch in batches) != num:
            raise ValueError(f"it has not the {num:,} samples of the chunk")
        return index_batches(where, schema, batches, data.address, data.size, with_numbers=True)
    except FormatError:
        raise
    except arrow_maps.DAMAGE as exc:
        raise FormatError(f"{where}: the Arrow file in it cannot be read ({exc}); write the chunks without compression") from exc
