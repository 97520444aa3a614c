"""Columns of Parquet files as fields: of which kind, in which form, by bytes or by rows; and what is none."""

from __future__ import annotations

import datetime
import functools
import json
import logging
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixtures import convert, encode, jpeg, npy, picture, quick
from hypothesis import given
from hypothesis import strategies as st
from shard_values import is_by_rows, values_of

from datapipe.codecs.field_values import FieldKind, value_of
from datapipe.containers.formats import read_rows
from datapipe.containers.parquet.scanner import index_shard
from datapipe.errors import DecodeError, FormatError, IntegrityError
from datapipe.index.entries import RowGroup
from datapipe.opening.samples import open_index

NUM = 9
IMAGES = [jpeg(number, 20, 24) for number in range(NUM)]
MASKS = [encode(picture(number, 20, 24), "PNG", mode="P") for number in range(NUM)]
PLAIN = {"compression": "none", "use_dictionary": False}
PACKED = {"compression": "snappy", "row_group_size": 4}


def structs(images: list[bytes | None]) -> list[Any]:
    return [None if image is None else {"bytes": image, "path": "a.jpg"} for image in images]


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table({"image": structs([*IMAGES]), **columns}), path, **options)
    return path


def kinds(path: Path) -> dict[str, FieldKind]:
    _, fields = index_shard(path)
    return {field.name: field.kind for field in fields if field.name != "image"}


def load(path: Path, name: str) -> list[Any]:
    """The values of a field; for images and masks their bytes."""
    kind = kinds(path)[name]
    values = values_of(path, "parquet", name)
    return values if kind in (FieldKind.IMAGE, FieldKind.MASK) else [value_of(kind, value) for value in values]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.parquet"


ROWS = range(NUM)
COLUMNS: dict[str, tuple[Any, FieldKind, list[Any]]] = {  # name: column, kind, values
    "caption": ([f"a née {row}" for row in ROWS], FieldKind.TEXT, [f"a née {row}" for row in ROWS]),
    "note": (pa.array(["x"] * NUM, pa.large_string()), FieldKind.TEXT, ["x"] * NUM),
    "meta_json": (['{"a": [1]}'] * NUM, FieldKind.JSON, [{"a": [1]}] * NUM),
    "blob": ([b"\0" * row for row in ROWS], FieldKind.BYTES, [b"\0" * row for row in ROWS]),
    "blob2": (pa.array([b"y"] * NUM, pa.large_binary()), FieldKind.BYTES, [b"y"] * NUM),
    "twelve": (pa.array([b"x" * 12] * NUM, pa.binary(12)), FieldKind.BYTES, [b"x" * 12] * NUM),
    "half": (pa.array(np.arange(NUM, dtype=np.float16)), FieldKind.ARRAY, [np.float16(row) for row in ROWS]),
    "prompt": ([b"seen from afar"] * NUM, FieldKind.TEXT, ["seen from afar"] * NUM),
    "mask": (structs([*MASKS]), FieldKind.MASK, MASKS),
    "depth": (MASKS, FieldKind.IMAGE, MASKS),
    "boxes": ([npy(np.ones((row, 5))) for row in ROWS], FieldKind.ARRAY, [np.ones((row, 5)) for row in ROWS]),
    "score": ([row / 2 for row in ROWS], FieldKind.ARRAY, [np.float64(row / 2) for row in ROWS]),
    "small": (pa.array(ROWS, pa.uint8()), FieldKind.ARRAY, [np.uint8(row) for row in ROWS]),
    "single": (pa.array(ROWS, pa.float32()), FieldKind.ARRAY, [np.float32(row) for row in ROWS]),
    "is_good": ([row % 2 == 0 for row in ROWS], FieldKind.ARRAY, [np.bool_(row % 2 == 0) for row in ROWS]),
    "tags": (pa.array([list(range(row)) for row in ROWS], pa.list_(pa.int32())), FieldKind.ARRAY, [
        np.arange(row, dtype=np.int32) for row in ROWS
    ]),
    "flags": ([[True, False]] * NUM, FieldKind.ARRAY, [np.array([True, False])] * NUM),
    "gaps": ([[1.0, None]] * NUM, FieldKind.ARRAY, [np.array([1.0, np.nan])] * NUM),
    "vector": (pa.array([[row, 1] for row in ROWS], pa.list_(pa.float32(), 2)), FieldKind.ARRAY, [
        np.array([row, 1], np.float32) for row in ROWS
    ]),
    "corners": (pa.array([[[row, 1]] * row for row in ROWS], pa.list_(pa.list_(pa.int16(), 2))), FieldKind.ARRAY, [
        np.array([[row, 1]] * row, np.int16).reshape(-1, 2) for row in ROWS
    ]),
    "words": ([["a", "b"][: row % 3] for row in ROWS], FieldKind.JSON, [["a", "b"][: row % 3] for row in ROWS]),
    "polygons": ([[[1.5], [2.0, 3.0]]] * NUM, FieldKind.JSON, [[[1.5], [2.0, 3.0]]] * NUM),
    "objects": ([[{"box": [1, row], "name": None}] for row in ROWS], FieldKind.JSON, [
        [{"box": [1, row], "name": None}] for row in ROWS
    ]),
    "info": ([{"w": row, "deep": {"ok": True}} for row in ROWS], FieldKind.JSON,
             [{"w": row, "deep": {"ok": True}} for row in ROWS]),
    "maybe": ([None, {"w": 1}] * (NUM // 2) + [None], FieldKind.JSON, [None, {"w": 1}] * (NUM // 2) + [None]),
    "city": (pa.array(["Ulm", "Bonn", "Ulm"] * 3).dictionary_encode(), FieldKind.TEXT, ["Ulm", "Bonn", "Ulm"] * 3),
}  # fmt: skip
IN_PIECES = (
    "caption",
    "note",
    "meta_json",
    "blob",
    "blob2",
    "prompt",
    "mask",
    "depth",
    "boxes",
    "city",
)  # where nothing is packed


@pytest.fixture
def _indexed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One field is asked for after the other, of a file that stays the same."""
    once = functools.cache(index_shard)
    monkeypatch.setattr("datapipe.containers.parquet.scanner.index_shard", once)
    monkeypatch.setitem(globals(), "index_shard", once)


@pytest.mark.usefixtures("_indexed_once")
@pytest.mark.parametrize("options", [PLAIN, PACKED, {"compression": "zstd", "data_page_version": "2.0"}], ids=str)
def test_columns_are_fields(path: Path, options: dict[str, Any]) -> None:
    write(path, {name: column for name, (column, _, _) in COLUMNS.items()}, **options)
    assert kinds(path) == {name: kind for name, (_, kind, _) in COLUMNS.items()}, "in the file's order"
    assert not index_shard(path)[0].unread
    for name, (_, _, expected) in COLUMNS.items():
        assert is_by_rows(path, "parquet", name) == (options is not PLAIN or name not in IN_PIECES), name
        found = load(path, name)
        for value, wanted in zip(found, expected, strict=True):
            assert np.array_equal(value, wanted, equal_nan=name == "gaps") if isinstance(wanted, np.ndarray) else value == wanted
            assert getattr(value, "dtype", None) == getattr(wanted, "dtype", None), name


@pytest.mark.nightly
@quick
@given(
    texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=40),
    options=st.fixed_dictionaries({
        "compression": st.sampled_from(["none", "snappy", "gzip", "brotli", "zstd", "lz4"]),
        "use_dictionary": st.booleans(),
        "row_group_size": st.integers(1, 50),
        "data_page_size": st.integers(30, 300),
        "write_batch_size": st.integers(1, 10),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "write_page_checksum": st.booleans(),
    }),
)  # fmt: skip
def test_agrees_with_pyarrow(texts: list[str], options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / f"fields-{os.getpid()}.parquet"
    images = [IMAGES[len(text) % NUM] for text in texts]
    lists = [list(map(ord, text)) for text in texts]
    columns = {"image": structs([*images]), "caption": texts, "codes": pa.array(lists, pa.list_(pa.int32()))}
    pq.write_table(pa.table(columns), path, **options)
    assert values_of(path, "parquet") == images
    assert load(path, "caption") == texts
    assert [value.tolist() for value in load(path, "codes")] == lists


@pytest.mark.parametrize("options", [PLAIN, PACKED], ids=str)
def test_null_is_no_value(path: Path, options: dict[str, Any]) -> None:
    """But in JSON. A sample of which something is missing is a bad one, if that is wanted."""
    columns = {"caption": ["a", None] * 4 + ["b"], "n": [1, None] * 4 + [2], "gaps": [[1, None]] * NUM}
    write(path, columns, **options)
    rows, _ = index_shard(path)
    group = RowGroup("parquet", str(path), "caption", 0, 0, rows.row_groups[1])
    assert rows.columns["caption"].column == "caption"
    assert read_rows(group)[0] == b"a"
    for name in columns:
        found = read_rows(RowGroup("parquet", str(path), name, 0, 0, rows.row_groups[1]))
        with pytest.raises(DecodeError, match=r"null|NoneType"):
            found[1]


def test_a_missing_image_is_a_bad_sample(path: Path) -> None:
    """And the other values need not be refused; but then the column is not contiguous."""
    pq.write_table(pa.table({"image": structs([*IMAGES[:4], None, *IMAGES[4:]])}), path, **PLAIN)
    assert is_by_rows(path, "parquet")
    found = read_rows(RowGroup("parquet", str(path), "image.bytes", 0, 0, NUM + 1))
    assert [found[row] for row in (0, 3, 5, NUM)] == [IMAGES[0], IMAGES[3], IMAGES[4], IMAGES[-1]]
    with pytest.raises(DecodeError, match="no value: null"):
        found[4]


def test_what_is_no_field_is_left_out_naming_it(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    day = datetime.datetime(2020, 1, 1)
    columns = {
        "when": [day] * NUM,
        "price": [Decimal("1.5")] * NUM,
        "images": [structs([b"x"])] * NUM,
        "map": pa.array([[("a", 1)]] * NUM, pa.map_(pa.string(), pa.int32())),
        "caption": ["a"] * NUM,
    }
    write(path, columns, **PACKED)
    rows, fields = index_shard(path)
    assert [field.name for field in fields] == ["image", "caption"]
    assert rows.unread.keys() == columns.keys() - {"caption"}
    assert "timestamp" in rows.unread["when"]
    with caplog.at_level(logging.INFO):
        open_index(path)
    assert all(f"'{name}'" in caplog.text for name in rows.unread)


def test_names_become_fields(path: Path) -> None:
    """Those of every format: short, lower-case; none that is taken, or means something else."""
    names = ["Caption Text", "a,b", "a.b", "label", "key", "id", "x" * 50, "image.size"]
    write(path, {name: ["a"] * NUM for name in names}, **PACKED)
    found = kinds(path)
    assert list(found) == ["caption_text", "a_b", "a_b_2", "label_", "id_", "x" * 32, "image_size"]
    assert all(load(path, name) == ["a"] * NUM for name in found)
    assert open_index(path).look_up(np.arange(NUM), "a_b_2").extents.codecs is not None


def test_columns_that_cannot_be_told_apart_are_left_out(path: Path) -> None:
    write(path, {"a": [{"b": 1}] * NUM, "a.b": [2] * NUM}, **PACKED)
    rows, fields = index_shard(path)
    assert "have this name" in rows.unread["a"]
    assert [field.name for field in fields] == ["image"]


@pytest.mark.parametrize("encode_as", ["plain", "packed"])
def test_what_hugging_face_writes(path: Path, encode_as: str) -> None:
    """Features that are Arrow extension types, among others."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({
        "image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"]), "caption": datasets.Value("string"),
        "grid": datasets.Array2D((2, 3), "float32"), "objects": datasets.List({"id": datasets.Value("int64")}),
    })  # fmt: skip
    rows = {
        "image": structs([*IMAGES]), "label": [0] * NUM, "caption": ["x"] * NUM,
        "grid": [np.full((2, 3), row, np.float32) for row in ROWS], "objects": [[{"id": row}] for row in ROWS],
    }  # fmt: skip
    made = datasets.Dataset.from_dict(rows, features=features)
    if encode_as == "plain":
        made.to_parquet(str(path))
    else:
        pq.write_table(made.data.table, path, **PACKED)
    assert values_of(path, "parquet") == IMAGES
    assert [field.name for field in index_shard(path)[1]] == ["image", "label", "caption", "grid", "objects"]
    assert load(path, "caption") == ["x"] * NUM
    assert [np.array(value).tolist() for value in load(path, "grid")] == [[[row] * 3] * 2 for row in ROWS]
    assert load(path, "objects") == [[{"id": row}] for row in ROWS]


def test_a_shard_of_our_own_without_its_manifest(tmp_path: Path) -> None:
    """All its fields come back, by bytes."""
    source = tmp_path / "source"
    (source / "imgs").mkdir(parents=True)
    for row in ROWS:
        (source / "imgs" / f"{row}.jpg").write_bytes(IMAGES[row])
        (source / "imgs" / f"{row}.txt").write_text(f"caption {row}")
        (source / "imgs" / f"{row}.json").write_text(json.dumps({"row": row}))
    out = convert(source, tmp_path / "out", to="parquet", form="pairs")
    whole = open_index(out)
    (out / "dataset.json").unlink()
    alone = open_index(out / "shard-000000.parquet")
    assert {spec.name: spec.kind for spec in alone.manifest.fields} == {spec.name: spec.kind for spec in whole.manifest.fields}
    for spec in alone.manifest.fields:
        extents = alone.look_up(np.arange(len(alone)), spec.name).extents
        assert extents.codecs is None
    assert alone.row_grouping([spec.name for spec in alone.manifest.fields]) is None


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_byte_arrays_that_are_encoded_as_differences(path: Path, encoding: str, compression: str) -> None:
    """As DuckDB, Spark and parquet-mr write them in version 2; pyarrow reads no such column as dictionaries."""
    table = pa.table(
        {"image": IMAGES, "label": [*ROWS], "key": [f"k{row}" for row in ROWS], "caption": [f"c{row}" for row in ROWS]}
    )
    encodings = {"image": encoding, "key": encoding, "caption": encoding, "label": "DELTA_BINARY_PACKED"}
    options = {"use_dictionary": False, "compression": compression, "row_group_size": 4}
    pq.write_table(table, path, column_encoding=encodings, **options)  # type: ignore[arg-type]
    rows, _ = index_shard(path)
    assert values_of(path, "parquet") == IMAGES
    assert load(path, "caption") == [f"c{row}" for row in ROWS]
    assert (rows.labels, rows.keys, rows.unread) == ([*ROWS], [b"k%d" % row for row in ROWS], {})


# -- damage ---------------------------------------------------------------------------------------


def test_a_page_that_fails_its_checksum_is_damage(path: Path) -> None:
    write(path, {}, compression="none", use_dictionary=True, write_page_checksum=True)
    column = pq.read_metadata(path).row_group(0).column(0)
    rows, _ = index_shard(path)
    data = bytearray(path.read_bytes())
    start = column.dictionary_page_offset + 60 + len(IMAGES[0]) // 2  # within the first image
    data[start] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"x\.parquet: 'image\.bytes' of rows 0 to 8 cannot be read"):
        read_rows(RowGroup("parquet", str(path), "image.bytes", 0, 0, NUM))
    assert rows.columns["image"].column == "image.bytes"


def test_a_damaged_column_is_left_out_and_said(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(path, {"caption": ["a" * 90] * NUM}, compression="none", use_dictionary=True, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[pq.read_metadata(path).row_group(0).column(2).dictionary_page_offset + 60] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        _, fields = index_shard(path)
    assert [field.name for field in fields] == ["image"]
    assert "left out: 'caption', which is damaged or" in caplog.text


def test_a_page_that_claims_to_be_large_is_not_decompressed(path: Path) -> None:
    """One of 2 KB that would have 100 MB; written by its own header, in as many bytes as the truth."""
    image = b"\xff\xd8\xff" + bytes(70_000_000)
    pq.write_table(pa.table({"image": [image]}), path, compression="zstd", use_dictionary=False, write_statistics=False)
    assert path.stat().st_size < 20_000
    with pytest.raises(FormatError, match=r"a page of column 'image' claims 700\d{5} bytes uncompressed"):
        index_shard(path)


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_shard_that_was_cut_meanwhile_is_damage(path: Path, share: float) -> None:
    write(path, {}, **PACKED)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(IntegrityError, match="damaged, or changed since it was indexed"):
        read_rows(RowGroup("parquet", str(path), "image.bytes", 0, 0, 4))


def test_rows_that_no_bytes_stand_for_are_not_believed(path: Path) -> None:
    """A file of 1 KB that tells of 10 million rows, all null."""
    pq.write_table(pa.table({"image": pa.nulls(10_000_000, pa.binary())}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    with pytest.raises(FormatError, match="it tells of 10000000 rows"):
        index_shard(path)


def test_values_that_repeat_the_ones_before_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a few KB, each value of which is the one before: here 75 MB, and as easily as many GB."""
    monkeypatch.setattr("datapipe.containers.parquet.rows._MAX_REPEATED", 1 << 20)
    num = 1500
    columns = {"image": [IMAGES[0]] * num, "caption": ["x" * 50_000] * num}
    pq.write_table(pa.table(columns), path, use_dictionary=False, column_encoding={"caption": "DELTA_BYTE_ARRAY"})
    index_shard(path)
    with pytest.raises(IntegrityError, match="of column 'caption' claim to hold more than 7"):
        read_rows(RowGroup("parquet", str(path), "caption", 0, 0, num))
