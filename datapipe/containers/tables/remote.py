"""Parquet tables in object stores: named by URLs, their footers read, row groups fetched by the ranges of the wanted columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.parquet as pq

from datapipe.containers.remote_shards import named_shards, shards_under
from datapipe.core.errors import FormatError
from datapipe.index.tables import TableFile
from datapipe.stores.location import parse_location
from datapipe.stores.random_access import RemoteBytes, RemoteFile, pin_object

_MAX_GAP = 1 << 20  # bytes read for nothing rather than in a request of its own


def urls_of(text: str) -> list[str]:
    """Return the URLs of the Parquet files that a URL, a pattern, braces or a prefix names, and pin what is there now.

    Raises MissingDataError and StorageError, and FormatError for files of other formats.
    """
    listing = named_shards(text) or shards_under(parse_location(text))
    if listing.container != "parquet":
        raise FormatError(f"{text}: of the tables in stores Parquet is read, not {listing.container}; copy or convert the files")
    urls = []
    for one in listing.objects:
        urls.append(str(listing.location / one.name))
        pin_object(urls[-1], etag=one.etag, nbytes=one.nbytes)
    return urls


def footer_of(data: RemoteBytes) -> bytes:
    """Return the footer of a Parquet file; fewer bytes where it is none."""
    length = int.from_bytes(data[-8:-4], "little")
    return data[max(0, len(data) - 8 - length) : max(0, len(data) - 8)]


class RemoteParquet:
    """Some columns of a Parquet file in a store. Not thread-safe. `dictionaries`: columns to be read as such."""

    def __init__(self, file: TableFile, columns: Sequence[str], dictionaries: Sequence[str]) -> None:
        pin_object(file.path, etag=file.etag, nbytes=file.nbytes)  # which another process may have found
        self._data = RemoteBytes(file.path)
        self._columns = list(columns)
        self._file = pq.ParquetFile(
            RemoteFile(self._data), read_dictionary=list(dictionaries), pre_buffer=False, page_checksum_verification=True
        )

    def read(self, number: int) -> Any:
        """Return a row group as a table. Raises StorageError, and what pyarrow raises for damaged files."""
        self._data.fetch(list(_joined(self._chunks(number))))
        try:
            return self._file.read_row_group(number, columns=self._columns, use_threads=False)
        finally:
            self._data.forget()

    def _chunks(self, number: int) -> list[tuple[int, int]]:
        """Start and end of the wanted columns' chunks."""
        group, found = self._file.metadata.row_group(number), []
        for place in range(group.num_columns):
            chunk = group.column(place)
            name = chunk.path_in_schema
            if any(name == column or name.startswith(f"{column}.") for column in self._columns):
                start = chunk.data_page_offset
                if chunk.dictionary_page_offset:
                    start = min(start, chunk.dictionary_page_offset)
                found.append((start, start + chunk.total_compressed_size))
        return sorted(found)


def _joined(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges that lie near each other as one."""
    first: tuple[int, int] | None = None
    for start, end in ranges:
        if first is not None and start <= first[1] + _MAX_GAP:
            first = (first[0], max(first[1], end))
            continue
        if first is not None:
            yield first
        first = (start, end)
    if first is not None:
        yield first
