"""Read sidecars: each is checked when it is opened, and a bounded number of a dataset's is open at a time."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.codecs.field_values import NO_LABEL
from datapipe.core import arrow_maps
from datapipe.core.regular_files import path_inside
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.arrow_buffers import values_of
from datapipe.index.manifest import MANIFEST_NAME, Manifest, ShardInfo
from datapipe.index.remote_set import RemoteSet
from datapipe.index.sidecar import (
    FURTHER,
    FURTHER_KEY,
    PREFIX_KEY,
    RANGES_KEY,
    ROW_GROUPS_KEY,
    ROW_NBYTES,
    ROWS_KEY,
    SIDECAR_SUFFIX,
    VALUES_KEY,
)
from datapipe.stores.pending import waiting

_LEAST_LABEL = -1  # besides NO_LABEL
_MAX_NBYTES = 1 << 61  # so that the sum of an offset and a size fits 63 bits
MAX_OPEN_SIDECARS = 4096  # one map each; Linux allows a process 65,530


@functools.lru_cache(maxsize=64)
def _schema(field_names: tuple[str, ...], further: tuple[tuple[str, ...], ...]) -> pa.Schema:
    """Return the columns of a sidecar with these fields, and further ones of each."""
    columns = {
        "id": pa.int64(), "key": pa.binary(), "source": pa.binary(), "label": pa.int64(), "height": pa.int32(),
        "width": pa.int32(),
    }  # fmt: skip
    parts = {"encoding": pa.string(), "offset": pa.int64(), "nbytes": pa.int64(), "crc32c": pa.uint32(), "has_crc": pa.uint8()}
    for name, more in zip(field_names, further, strict=True):
        columns |= {f"{name}.{part}": kind for part, kind in parts.items()}
        columns |= {f"{name}.{part}": FURTHER[part] for part in more}
    return pa.schema(list(columns.items()))


_NUMBERS: dict[str, type] = {"offset": np.int64, "nbytes": np.int64, "crc32c": np.uint32, "has_crc": np.uint8}  # by field


class Sidecar:
    """One opened sidecar. Columns are numpy views of the memory map. Immutable, and so thread-safe.

    `shard`: the manifest's entry of its shard; extents must lie within the shard, and the bytes must have the manifest's hash,
    so that an opened sidecar gives what was written. Opening reads all of it once, at more than a gigabyte a second. Raises
    MissingDataError, StorageError or FormatError on opening.
    """

    __slots__ = (
        "_buffers", "_further", "_numbers", "field_names", "heights", "ids", "labels", "num_samples", "path", "prefixes",
        "ranges", "row_columns", "row_groups", "values_file", "widths",
    )  # fmt: skip

    def __init__(self, path: Path, *, shard: ShardInfo | None = None) -> None:
        self.path = path
        data = self._map()
        if shard is not None and shard.index_sha256 and hashlib.sha256(data).hexdigest() != shard.index_sha256:
            raise self._error("differs from what was written (sha256)")
        try:
            metadata = self._read(data)
            self._take_metadata(metadata)
        except arrow_maps.DAMAGE as exc:
            if isinstance(exc, FormatError):
                raise
            raise self._error(f"not an Arrow file, or damaged ({exc})") from exc
        if shard is not None and self.num_samples != shard.num_samples:
            raise self._error(f"has {self.num_samples} samples, the manifest says {shard.num_samples}")
        self._check_values(_MAX_NBYTES if shard is None else shard.nbytes)

    def _map(self) -> pa.Buffer:
        try:
            data = arrow_maps.map_file(self.path)
        except FileNotFoundError as exc:
            raise MissingDataError(f"{self.path}: index is missing; `datapipe verify` lists everything that is") from exc
        except OSError as exc:
            if exc.errno is None:
                raise self._error(f"cannot be mapped ({exc})") from exc
            raise StorageError(exc.errno, f"{self.path}: cannot be read ({exc.strerror})") from exc
        return data

    def _read(self, data: pa.Buffer) -> dict[bytes, bytes]:
        """Read the columns and return the schema's metadata. Raises FormatError or `arrow_maps.DAMAGE`."""
        if not arrow_maps.is_file(data):
            raise self._error("not an Arrow file, or cut off")
        with pa.ipc.open_stream(arrow_maps.stream_of(data)) as reader:
            metadata = reader.schema.metadata or {}
            if metadata.get(b"datapipe.index.sidecar") != b"1":
                raise self._error("not a datapipe index")
            self.field_names = tuple(metadata[b"datapipe.fields"].decode().split(","))
            self._further = self._read_further(metadata)
            if not reader.schema.equals(_schema(self.field_names, tuple(self._further.values()))):
                raise self._error("its columns are not those of an index")
            batches = list(reader)
        if len(batches) > 1:
            raise self._error(f"has {len(batches)} record batches, but an index has one")
        for batch in batches:
            batch.validate(full=True)
        self.num_samples = sum(batch.num_rows for batch in batches)
        self._buffers = dict(zip(reader.schema.names, batches[0].columns, strict=True)) if self.num_samples else {}
        if any(column.null_count for column in self._buffers.values()):
            raise self._error("has null values")
        return metadata

    def _take_metadata(self, metadata: dict[bytes, bytes]) -> None:
        self._numbers = {
            (name, part): self._fixed(f"{name}.{part}", dtype) for name in self.field_names for part, dtype in _NUMBERS.items()
        }
        self.ids = self._fixed("id", np.int64)
        self.labels = self._fixed("label", np.int64)
        self.heights = self._fixed("height", np.int32)
        self.widths = self._fixed("width", np.int32)
        self.prefixes = self._read_prefixes(metadata)
        rows = self._of_fields(metadata, ROWS_KEY)
        self.row_columns = {name: text.decode(errors="surrogateescape") for name, text in rows.items()}
        self.row_groups = self._read_row_groups(metadata)
        self.ranges = frozenset(self._of_fields(metadata, RANGES_KEY))
        self.values_file = {name: file.decode() for name, file in self._of_fields(metadata, VALUES_KEY).items()}

    def _check_values(self, data_nbytes: int) -> None:
        """Raise FormatError for values that no valid index has. `data_nbytes`: the size of the shard."""
        if not self.num_samples:
            return
        least = int(self.labels.min(initial=_LEAST_LABEL, where=self.labels != NO_LABEL))
        if least < _LEAST_LABEL:
            raise self._error(f"a label is {least}, the least is {_LEAST_LABEL}")
        for name in self.field_names:
            offsets, sizes = self.offsets(name), self.nbytes(name)
            by_rows = name in self.row_columns
            is_elsewhere = name in self.ranges or name in self.values_file  # in files whose sizes are not known here
            nbytes = _MAX_NBYTES if is_elsewhere else data_nbytes
            most = self.num_samples - 1 if by_rows else nbytes
            is_sound = offsets.min() >= 0 and sizes.min() >= 0 and offsets.max() <= most and sizes.max() <= _MAX_NBYTES
            if not is_sound or (not by_rows and int((offsets + sizes).max()) > nbytes):
                end = "rows" if by_rows else f"{nbytes} bytes"
                raise self._error(f"field {name!r} of a sample reaches beyond the {end} of its shard")

    def _error(self, what: str) -> FormatError:
        return FormatError(f"{self.path}: {what}; index or convert again")

    def _of_fields(self, metadata: dict[bytes, bytes], key: str) -> dict[str, bytes]:
        """Return, by field, what the metadata say of it under this key; fields of which they say nothing are left out."""
        found = {name: metadata.get((key + name).encode()) for name in self.field_names}
        return {name: value for name, value in found.items() if value is not None}

    def _read_further(self, metadata: dict[bytes, bytes]) -> dict[str, tuple[str, ...]]:
        """Return, by field, the further columns that it has."""
        spelled = self._of_fields(metadata, FURTHER_KEY)
        further = {name: tuple(filter(None, spelled.get(name, b"").decode().split(","))) for name in self.field_names}
        if any(part not in FURTHER for parts in further.values() for part in parts):
            raise self._error("has columns that no index has")
        return further

    def _read_prefixes(self, metadata: dict[bytes, bytes]) -> dict[str, bytes]:
        """Return, by field, bytes that belong before those of every extent."""
        try:
            return {name: bytes.fromhex(text.decode()) for name, text in self._of_fields(metadata, PREFIX_KEY).items()}
        except ValueError as exc:
            raise self._error(f"a prefix is not hexadecimal ({exc})") from exc

    def _read_row_groups(self, metadata: dict[bytes, bytes]) -> NDArray[np.int64]:
        """Return (g + 1,) rows at which row groups begin, and the number of rows; empty if no field is addressed by them."""
        try:
            starts = np.array(json.loads(metadata.get(ROW_GROUPS_KEY.encode(), b"[]")), np.int64)
        except (ValueError, TypeError, OverflowError, RecursionError) as exc:
            raise self._error(f"row groups are not a list of rows ({exc})") from exc
        is_sound = starts.ndim == 1 and (len(starts) > 1 or not self.row_columns)
        if not is_sound or (len(starts) and (starts[0] or starts[-1] != self.num_samples or (np.diff(starts) < 0).any())):
            raise self._error(f"row groups do not cover its {self.num_samples} samples")
        return starts

    def _fixed(self, name: str, dtype: type) -> NDArray[Any]:
        return values_of(self._buffers[name], dtype) if self.num_samples else np.empty(0, dtype)

    def offsets(self, name: str) -> NDArray[np.int64]:
        """Return (n,) bytes from the start of the shard, or rows if `row_columns` has the field."""
        return self._numbers[name, "offset"]

    def nbytes(self, name: str) -> NDArray[np.int64]:
        """Return (n,) sizes in bytes; approximate ones if `row_columns` has the field."""
        return self._numbers[name, "nbytes"]

    def crc32c(self, name: str) -> NDArray[np.uint32]:
        """Return (n,) checksums, valid where `has_crc` is 1."""
        return self._numbers[name, "crc32c"]

    def has_crc(self, name: str) -> NDArray[np.uint8]:
        """Return (n,) 1 if the checksum was computed."""
        return self._numbers[name, "has_crc"]

    def encoding(self, name: str, row: int) -> str:
        """Return the encoding of a sample's field; "" if unknown."""
        return str(self._buffers[f"{name}.encoding"][row].as_py())

    def paths(self, name: str, rows: NDArray[np.int64]) -> list[bytes] | None:
        """Return the files, relative to the dataset, that hold a field of these samples; None if the index does not name them.

        An empty name is that of the sample's source.
        """
        return self._texts(f"{name}.path", rows) if "path" in self._further[name] else None

    def codecs(self, name: str, rows: NDArray[np.int64]) -> list[str] | None:
        """Return how a field of these samples is stored; None if as its bytes."""
        return self._texts(f"{name}.codec", rows) if "codec" in self._further[name] else None

    def runs(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
        """Return (n + 1,) where the runs of each sample's field end, from 0 on, and (runs, 2) runs; None if it has none.

        Raises FormatError if they are not whole ones.
        """
        return self._numbers_of(name, "runs", 2)

    def images(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
        """Return (n + 1,) where the images of each sample end, from 0 on, and (images, 5); None if there are none at all.

        Of each image: the place of its token among those of the sample, bytes, width, height, orientation. Raises as `runs` does.
        """
        return self._numbers_of(name, "images", 5)

    def _numbers_of(self, name: str, part: str, width: int) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
        """Return (n + 1,) where the rows of numbers of each sample's field end, and the rows, (k, width)."""
        if part not in self._further[name] or not self.num_samples:
            return None
        column = self._buffers[f"{name}.{part}"]
        _, ends, data = column.buffers()
        nbytes = np.frombuffer(ends, np.int32, self.num_samples + 1, 4 * column.offset).astype(np.int64)
        if (nbytes % (4 * width)).any():
            raise self._error(f"{part} of field {name!r} are cut off")
        return nbytes // (4 * width), np.frombuffer(data, np.int32, int(nbytes[-1]) // 4).reshape(-1, width)

    def _texts(self, column: str, rows: NDArray[np.int64]) -> list[Any]:
        values = self._buffers[column]
        return [values[row].as_py() for row in rows.tolist()]

    def key(self, row: int) -> bytes:
        """Return the key of a sample."""
        return bytes(self._buffers["key"][row].as_py())

    def source(self, row: int) -> bytes:
        """Return the source file of a sample, relative, as the file system spells it."""
        return bytes(self._buffers["source"][row].as_py())


class OpenSidecars:
    """The sidecars of an index by shard number, opened when first needed; the least recently used are closed."""

    def __init__(self, manifest: Manifest, *, data_directory: Path, sidecar_directory: Path, remote: RemoteSet | None) -> None:
        self._manifest = manifest
        self._data, self._directory = str(data_directory), str(sidecar_directory)
        self._named_in = os.path.join(self._directory, MANIFEST_NAME)
        self._follows = sidecar_directory != data_directory  # the user named these shards or their folder
        self._remote = remote
        self._fetching = threading.Lock()
        self._open: OrderedDict[int, Sidecar] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, shard: int) -> Sidecar:
        with self._lock:
            sidecar = self._open.get(shard)
            if sidecar is None:
                sidecar = self._open[shard] = self.opened(shard)
                if len(self._open) > MAX_OPEN_SIDECARS:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(shard)
            return sidecar

    def fetch(self, shards: NDArray[np.int64] | None = None) -> None:
        """Copy the sidecars of these shards, None for all, several at once if they lie in a store."""
        if self._remote is not None:
            numbers = range(len(self._manifest.shards)) if shards is None else np.unique(shards).tolist()
            with waiting(), self._fetching:  # so that a sidecar that two batches need is fetched once
                self._remote.fetch_sidecars(self._manifest.shards[number] for number in numbers if number not in self._open)

    def opened(self, shard: int) -> Sidecar:
        """Return one sidecar, opened for the caller alone and checked against the manifest."""
        about = self._manifest.shards[shard]
        if self._remote is not None:
            self._remote.fetch_sidecars([about])
        path_inside(self._data, about.name, named_in=self._named_in, follows=self._follows)
        try:
            return Sidecar(self._path(about), shard=about)
        except (FormatError, MissingDataError):
            if self._remote is None:
                raise
        self._remote.fetch_again(about)  # the local copy was damaged
        return Sidecar(self._path(about), shard=about)

    def refuse_claims(self) -> None:
        """Raise FormatError if a manifest counts more samples than its sidecars, by their sizes, have room for.

        Call it before allocating memory for the number of samples in the manifest.
        """
        self.fetch()
        for shard, about in enumerate(self._manifest.shards):
            path, num = self._path(about), about.num_samples
            try:
                nbytes = os.stat(path).st_size
            except OSError:
                self.opened(shard)  # raises what is wrong with it
                continue
            if num * ROW_NBYTES > nbytes:
                raise FormatError(f"{path}: too small for the {num} samples that the manifest counts; index or convert again")

    def _path(self, about: ShardInfo) -> Path:
        return Path(path_inside(self._directory, about.name + SIDECAR_SUFFIX, named_in=self._named_in))
