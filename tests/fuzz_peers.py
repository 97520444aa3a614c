"""Damaged shards of other loaders, for `fuzz.py`: LitData's chunks and index, FFCV's files, Lance's versions."""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from fixtures import litdata_config, packed, picture

from datapipe.containers.formats import take_rows
from datapipe.errors import DatapipeError
from datapipe.peers import beton
from datapipe.peers.lance import library
from datapipe.peers.lance import scanner as lance_scanner
from datapipe.peers.litdata import index_file as litdata_index
from datapipe.peers.litdata import scanner as litdata
from datapipe.peers.litdata.framed import unframed
from datapipe.peers.mds import index_file as mds_index

_FORMATS = {
    "image": "jpeg", "class": "int", "filename": "str", "raw": "pil", "t": "tensor", "n": "numpy", "v": "no_header_tensor:0",
    "w": "no_header_numpy:1", "b": "bytes", "ok": "bool", "j": "json",
}  # fmt: skip
_PIL = struct.pack("<III", 2, 3, 1) + b"L" + bytes(6)
_TENSOR = struct.pack(">IIII", 0, 2, 1, 2) + bytes(8)
_ARRAY = struct.pack("<IIII", 4, 2, 1, 2) + bytes(2)


def litdata_chunks() -> list[bytes]:
    values = [
        (_jpeg(number), bytes(8), b"k%d" % number, _PIL, _TENSOR, _ARRAY, bytes(8), bytes(4), b"ab", b"\1", b"{}")
        for number in range(3)
    ]
    return [packed(values, [True] * len(_FORMATS))]


def look_at_chunk(data: bytes, scratch: Path) -> object:
    folder = scratch.with_name("litdata-of-fuzz")
    if not folder.exists():
        folder.mkdir()
        (folder / "index.json").write_text(json.dumps({"chunks": [], "config": litdata_config(_FORMATS)}))
    (folder / "chunk-0-0.bin").write_bytes(data)
    rows, _ = litdata.index_shard(folder / "chunk-0-0.bin")
    for column in rows.columns.values():
        assert 0 <= column.offset.min() <= (column.offset + column.nbytes).max() <= len(data)
    return rows


def framed_chunks() -> list[bytes]:
    items = [b"a" * 40, b"b" * 3, b"", b"c" * 90]
    bounds = np.cumsum([0, *map(len, items)]).astype("<u4")
    frames = [(0, 2, b"".join(items[:2])), (2, 2, b"".join(items[2:]))]
    packed_frames = [bytes(pa.compress(data, codec="zstd", asbytes=True)) for _, _, data in frames]
    place = 24 + len(bounds.tobytes()) + 24 * len(frames)
    heads = b""
    for (first, num, data), stored in zip(frames, packed_frames, strict=True):
        heads += struct.pack("<IIQII", first, num, place, len(stored), len(data))
        place += len(stored)
    head = struct.pack("<8sHHIII", b"LDFZ01\0\0", 1, 0, len(items), 2, len(frames))
    return [head + bounds.tobytes() + heads + b"".join(packed_frames)]


def look_at_framed(data: bytes, scratch: Path) -> object:
    scratch.write_bytes(data)
    return sum(map(len, unframed(scratch)))


def list_files() -> list[bytes]:
    raw = {"basename": "shard.00000.mds", "bytes": 12, "hashes": {}}
    shards = [{"version": 2, "format": "mds", "samples": 3, "raw_data": raw, "zip_data": raw, "compression": "zstd:7"}]
    chunks = [{"filename": "chunk-0-0.bin", "chunk_bytes": 7, "chunk_size": 3, "dim": None}]
    litdata_text = json.dumps({"chunks": chunks, "config": litdata_config(_FORMATS)})
    return [json.dumps({"version": 2, "shards": shards}).encode(), litdata_text.encode()]


def look_at_list(data: bytes, scratch: Path) -> object:
    folder = scratch.with_name("lists-of-fuzz")
    folder.mkdir(exist_ok=True)
    (folder / "index.json").write_bytes(data)
    litdata_index._leaves_in.cache_clear()
    mds_index.listed_shards(data, "x")
    if litdata_index.listed_shards(data, "x") is None:
        return None
    return litdata_index.leaves_beside(str(folder / "chunk-0-0.bin"))


def lance_manifests() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [_lance_dataset(Path(folder) / "x.lance").read_bytes()]


def _lance_dataset(place: Path) -> Path:
    """Write a dataset of three rows; return the manifest of its version, which names its file as any other one's does."""
    import lance

    columns = {"image": [_jpeg(number) for number in range(3)], "label": [0, 1, 0], "text": ["a", "b", "c"]}
    lance.write_dataset(pa.table(columns), str(place))
    (data,) = (place / "data").iterdir()
    manifest = next((place / "_versions").glob("*.manifest"))
    name = data.with_stem("0" * len(data.stem)).name
    manifest.write_bytes(manifest.read_bytes().replace(data.name.encode(), name.encode()))
    data.rename(data.with_name(name))
    return manifest


def look_at_manifest(data: bytes, scratch: Path) -> object:
    """Read what a version says: the library trusts the files that hold the values, so these are well."""
    place = scratch.with_name("of-fuzz.lance")
    manifest = next((place / "_versions").glob("*.manifest"), None) or _lance_dataset(place)
    manifest.write_bytes(data)
    library._open.clear()
    rows, _ = lance_scanner.index_shard(manifest)
    for column in rows.columns.values():
        assert column.column is not None
        with contextlib.suppress(DatapipeError):
            take_rows("lance", str(manifest), column.column, range(min(len(rows), 8)))
    return rows


def beton_files() -> list[bytes]:
    kinds = {"image": beton._IMAGE, "label": beton._INT, "j": beton._JSON, "b": beton._BYTES, "a": beton._NDARRAY}
    arrays = np.array([2, *[0] * 31, 14], "<u8").tobytes() + b'[["", "<f4"]] '
    samples = [
        (
            (number % 2, 8, 6, picture(number, 6, 8).tobytes() if number % 2 else _jpeg(number)),
            number,
            b'{"a": 1}\0',
            b"xyz",
            bytes(8),
        )
        for number in range(3)
    ]
    return [beton_file(kinds, samples, {"a": arrays})]


def beton_file(
    kinds: Mapping[str, int], samples: Sequence[Sequence[Any]], arguments: Mapping[str, bytes] = MappingProxyType({})
) -> bytes:
    """A file as FFCV writes it, with pages as large as need be. `kinds`: of the fields; an image is (mode, w, h, bytes)."""
    fields = b"".join(
        bytes([kind]) + name.encode().ljust(16, b"\0") + arguments.get(name, b"").ljust(1024, b"\0")
        for name, kind in kinds.items()
    )
    record = np.dtype([(name, beton._PARTS[kind]) for name, kind in kinds.items()], align=True)
    records, pages, table = np.zeros(len(samples), record), bytearray(), []
    begin = 24 + len(fields) + records.nbytes

    def put(sample: int, data: bytes) -> int:
        table.append((sample, begin + len(pages), len(data)))
        pages.extend(data)
        return table[-1][1]

    for number, sample in enumerate(samples):
        for (name, kind), value in zip(kinds.items(), sample, strict=True):
            if kind == beton._IMAGE:
                records[number][name] = (*value[:3], put(number, value[3]))
            elif kind in (beton._BYTES, beton._JSON):
                records[number][name] = (put(number, value), len(value))
            else:
                records[number][name] = put(number, value) if isinstance(value, bytes) else value
    header = struct.pack("<HHIQQ", 2, len(kinds), 1 << 21, len(samples), begin + len(pages))
    return header + fields + records.tobytes() + bytes(pages) + np.array(table, beton._ALLOCATION).tobytes()


def _jpeg(number: int) -> bytes:
    from fixtures import encode

    return encode(picture(number, 6, 8), "JPEG")
