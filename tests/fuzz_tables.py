"""What `fuzz` looks at of tables: Parquet footers, Arrow and Feather files, CSV, recipes of columns."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import tempfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from parquet_footers import I16, I32, I64, Struct, footer_of, with_footer

from converters.tables import SourceFile
from converters.tables.quoting import last_row_end, open_quote
from converters.tables.text_rows import CsvSource, blocks_of
from datapipe.columns.recipe import Columns
from datapipe.containers.tables.files import null_counts, open_table
from datapipe.containers.tables.rows import GroupReader
from datapipe.errors import DatapipeError
from datapipe.peers import arrow

NUMBERS = (-1, 0, 1, 2, 7, 100, 1 << 16, 1 << 22, (1 << 31) - 1, 1 << 31, 10**9, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63))
VALUES = (None, -1, 0, 1.5, True, "x", "", [], {}, 10**400, 1 << 63, -1e308, float("nan"), [[]], {"a": 1})
MOST_READ = 1 << 23  # rows; more are not claimed by files of this size


def table() -> pa.Table:
    """A small table with columns of many kinds."""
    num, rng = 64, np.random.default_rng(0)
    return pa.table(
        {
            "a": rng.standard_normal(num),
            "n": pa.array([None if row % 5 == 0 else row for row in range(num)], pa.int32()),
            "text": [f"t{row % 7}" for row in range(num)],
            "kind": pa.array([f"k{row % 3}" for row in range(num)]).dictionary_encode(),
            "list": [[row] * (row % 3) for row in range(num)],
            "inner": pa.array([{"x": row, "y": None} for row in range(num)], pa.struct([("x", pa.int64()), ("y", pa.float32())])),
            "flag": [row % 2 == 0 for row in range(num)],
            "label": np.zeros(num, np.int64),
        }
    )


def parquet_files() -> list[bytes]:
    files = []
    for options in (
        {"compression": "none", "use_dictionary": False},
        {"row_group_size": 20, "write_page_index": True, "write_page_checksum": True},
        {"compression": "zstd", "data_page_version": "2.0", "row_group_size": 40},
        {"compression": "gzip", "data_page_size": 64, "write_batch_size": 4, "store_schema": False, "write_statistics": False},
    ):
        sink = io.BytesIO()
        pq.write_table(table(), sink, **options)
        files.append(sink.getvalue())
    return files


def arrow_files() -> list[bytes]:
    images = pa.table({"image": [b"\xff\xd8\xff" + bytes(row) for row in range(6)], "label": [0, 1] * 3, "key": list("abcdef")})
    files = []
    for source in (table(), images):
        for writer_of in (pa.ipc.new_file, pa.ipc.new_stream):
            for compression in (None, "lz4", "zstd"):
                sink = io.BytesIO()
                options = pa.ipc.IpcWriteOptions(compression=compression)
                with writer_of(sink, source.schema, options=options) as writer:
                    writer.write_table(source, max_chunksize=20)
                files.append(sink.getvalue())
    return files


def look_at_parquet(data: bytes, scratch: Path) -> object:
    return _look(data, scratch.with_suffix(".parquet"))


def look_at_arrow(data: bytes, scratch: Path) -> object:
    """As a table, and as shards of images."""
    path = scratch.with_suffix(".arrow")
    path.write_bytes(data)
    with contextlib.suppress(DatapipeError):
        return arrow.index_shard(path)
    return _look(data, path)


def _look(data: bytes, path: Path) -> object:
    path.write_bytes(data)
    index = open_table(path)
    assert 0 < len(index) <= MOST_READ, f"{len(index)} rows are believed"
    with contextlib.suppress(DatapipeError):
        null_counts(index.files[0])
    reader = GroupReader([column.name for column in index.columns])
    for number in range(index.num_groups):
        group = index.group(number)
        with contextlib.suppress(DatapipeError):
            found = reader.read(group)
            assert all(len(array.to_pylist()) == group.num_rows for array in found.values())  # follows every offset
    return index


def tamper_footer(data: bytearray) -> None:
    """Replace some numbers of the footer, and write it as a sound one; nothing where it does not parse."""
    try:
        footer = footer_of(bytes(data))
    except (IndexError, ValueError, RecursionError, MemoryError, TypeError):
        return
    rng = random.Random(zlib.crc32(data))
    places = list(_numbers(footer))
    for _ in range(rng.choice((1, 1, 2, 3))):
        if places:
            holder, number, kind = rng.choice(places)
            value = rng.choice(NUMBERS)
            holder.fields[number] = (kind, value)
    with contextlib.suppress(TypeError, ValueError, IndexError, AttributeError):  # of kinds that only damage makes
        data[:] = with_footer(bytes(data), footer)


def _numbers(struct: Struct) -> Iterator[tuple[Struct, int, int]]:
    for number, (kind, value) in struct.fields.items():
        if kind in (I16, I32, I64):
            yield struct, number, kind
        inner = value[1] if isinstance(value, tuple) and isinstance(value[1], list) else [value]
        for one in inner:
            if isinstance(one, Struct):
                yield from _numbers(one)


def csv_files() -> list[bytes]:
    return [
        b'a,b\n1,x\n2,"y, ""z""\n"\n,\n',
        b'\xef\xbb\xbf"a ""1""",b,c\r\n5" pipe,"",1\r\n\r\n"one\r\ntwo","3""",""""\r\n' * 3,
        b'"a\nb",c\r1,"x\ry"\r2,\r',
        b"a,b\n" + b'"\xc3\xa9",1.5\n' * 9,
    ]


def look_at_csv(data: bytes, scratch: Path) -> object:
    """In blocks: its rows are those that Arrow finds in the whole."""
    path = scratch.with_suffix(".csv")
    path.write_bytes(data)
    source = CsvSource([SourceFile(str(path), len(data), 0)], delimiter=",")
    whole = next(source.blocks(), None)
    if whole is None:
        return source
    columns = {name: list[Any]() for name in source.parse(whole, {}, {}).columns}
    bad = list[str]()
    for block in blocks_of(
        str(path), 0, start=whole.start, line=whole.line, delimiter=",", block_nbytes=1 + zlib.crc32(data) % 40
    ):
        parsed = source.parse(block, {}, {})
        assert len(source.lines_of(block)) == parsed.num_seen
        bad += [row.text for row in parsed.bad]
        for name, column in parsed.columns.items():
            columns[name] += column.to_pylist()
    rows = data[whole.start :]
    if open_quote(rows, ",") is not None:
        rows, _ = rows[: last_row_end(rows, ",")], bad.pop()
    if _is_text(rows):
        assert (columns, bad) == read_by_arrow(rows, ",", list(columns)), "other rows than Arrow's"
    return source


def read_by_arrow(rows: bytes, delimiter: str, names: list[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the values that Arrow finds in rows of CSV which it reads at once, and the texts of those that it refuses."""
    bad = list[str]()
    if not rows:
        return {name: [] for name in names}, bad

    def refuse(row: Any) -> str:
        bad.append(str(row.text)[:200])
        return "skip"

    table = pa.csv.read_csv(
        pa.BufferReader(b"\n" + rows),  # it skips a byte order mark
        pa.csv.ReadOptions(use_threads=False, column_names=names, block_size=len(rows) + 2),
        pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse),
        pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return table.to_pydict(), bad


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def scatter_quotes(data: bytearray) -> None:
    """Put quotes and what is around them in places."""
    rng = random.Random(zlib.crc32(data))
    for _ in range(rng.choice((1, 2, 5, 20))):
        place = rng.randrange(len(data) + 1)
        data[place : place + rng.choice((0, 1))] = rng.choice((b'"', b'""', b'",', b',"', b'\n"', b'"\n', b"\r", b",", b"\n"))


@lru_cache
def _recipe() -> tuple[bytes, dict[str, bytes]]:
    """A fitted recipe, and its vocabularies by name."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        pq.write_table(table(), place / "t.parquet")
        operations = {
            "n": [Columns.FillMissing("mean", indicator=True), Columns.Clip(-5, 5), Columns.Normalize()],
            "text": Columns.Categorify(max_size=5),
            "a": Columns.Bucketize((0.0, 1.0)),
            "list": [Columns.PadList(2), Columns.Log1p()],
        }
        Columns(operations).fit(place / "t.parquet").save(place / "r.json")
        kept = {path.name: path.read_bytes() for path in (place / "r.json.vocabularies").iterdir()}
        return (place / "r.json").read_bytes(), kept


def recipe_files() -> list[bytes]:
    return [_recipe()[0]]


def look_at_recipe(data: bytes, scratch: Path) -> object:
    path = scratch.with_suffix(".json")
    path.write_bytes(data)
    directory = Path(f"{path}.vocabularies")
    directory.mkdir(exist_ok=True)
    for name, contents in _recipe()[1].items():
        (directory / name).write_bytes(contents)
    recipe = Columns.load(path)
    recipe.describe()
    for name in ("n", "text", "a", "list"):
        with contextlib.suppress(DatapipeError):
            recipe.num_ids(name)
    return recipe


def tamper_recipe(data: bytearray) -> None:
    tamper_json(data, _recipe()[0])


def tamper_json(data: bytearray, sound: bytes) -> None:
    """Replace some values of a JSON document; of the sound one where this does not parse."""
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError):
        document = json.loads(sound)
    tamper(document, random.Random(zlib.crc32(data)))
    data[:] = json.dumps(document).encode()


def tamper(document: Any, rng: random.Random) -> None:
    """Replace some values within it."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(document))
        if places:
            holder, key = rng.choice(places)
            holder[key] = copy.deepcopy(rng.choice(VALUES))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)
