"""Scan shards of MosaicML's `streaming`: where the values of each sample lie, and its label.

A shard is a file of packed samples (`peers/packed`) with a JSON object before the first: the names of the columns, their
encodings, and the sizes of those that have fixed ones. So it can be read without the other shards
(streaming/base/format/mds/writer.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datapipe.codecs.field_values import FieldSpec
from datapipe.containers.mapped import ByteSource, byte_source
from datapipe.errors import FormatError
from datapipe.index.sidecar import SidecarRows
from datapipe.peers.mds.encodings import parse_encoding
from datapipe.peers.packed import head_nbytes, packed_values, sample_bounds
from datapipe.peers.packed_fields import StoredAs, packed_rows

_FORM = "an MDS shard"
_MAX_COLUMNS = 1000
_MAX_ABOUT_NBYTES = 1 << 24  # of the JSON


def index_shard(path: str | Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Index one shard, by its path or URL; ids are row numbers.

    Columns of lists of images, pickled ones, and those of unknown encodings are recorded in `unread` of the rows. Raises
    MissingDataError, StorageError or FormatError, naming the shard.
    """
    where = str(path)
    with byte_source(path, _FORM) as data:
        bounds = sample_bounds(data, _FORM, where)
        about, begin = head_nbytes(data), int(bounds[0])
        if bounds[-1] != len(data):
            raise FormatError(f"{where}: not {_FORM}, or damaged: {len(data) - bounds[-1]:,} bytes after its last sample")
        if begin - about > _MAX_ABOUT_NBYTES:
            raise FormatError(f"{where}: not {_FORM}: what it says of its columns takes {begin - about:,} bytes")
        stored = _described(data, about, begin, where)
        values = packed_values(data, bounds, [one.nbytes for one in stored.values()], where)
        return packed_rows(dict(zip(stored, zip(stored.values(), values, strict=True), strict=True)), data, "mds", where)


def _described(data: ByteSource, start: int, end: int, where: str) -> dict[str, StoredAs]:
    """Return how the columns are stored, by name, in their order."""
    try:
        about: Any = json.loads(data[start:end])
        names, encodings, sizes = (about[f"column_{what}"] for what in ("names", "encodings", "sizes"))
        version, form = about["version"], about["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise FormatError(f"{where}: not {_FORM}: what it says of its columns does not parse ({exc!r:.80})") from exc
    if (version, form) != (2, "mds"):
        raise FormatError(f"{where}: format {form!r:.20}, version {version!r:.20}; MDS of version 2 is read")
    if not all(isinstance(one, list) for one in (names, encodings, sizes)) or not _are_columns(names, encodings, sizes):
        raise FormatError(f"{where}: names no columns, more than {_MAX_COLUMNS}, or one twice; write the shard again")
    stored = {name: parse_encoding(text, where) for name, text in zip(names, encodings, strict=True)}
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        if (size or None) != stored[name].nbytes:
            raise FormatError(f"{where}: column {name!r:.40} of {encoding:.40} has the size {size!r:.20}; write the shard again")
    return stored


def _are_columns(names: list[Any], encodings: list[Any], sizes: list[Any]) -> bool:
    are_texts = all(isinstance(one, str) for one in (*names, *encodings))
    return are_texts and 0 < len(set(names)) == len(names) == len(encodings) == len(sizes) <= _MAX_COLUMNS
