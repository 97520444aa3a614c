"""The Parquet scanner against what pyarrow and Hugging Face's datasets write, and against what cannot be read or believed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixtures import CLASSES, convert, encode, entry_of, jpeg, listing, picture, quick
from hypothesis import given
from hypothesis import strategies as st
from shard_values import is_by_rows, values_of

from converters import Encode
from datapipe.codecs.field_values import NO_LABEL
from datapipe.containers.parquet.pages import Chunk, Page, UnaddressableError, byte_arrays, pages, plain_values
from datapipe.containers.parquet.scanner import index_shard
from datapipe.containers.parquet.thrift_compact import DamagedError
from datapipe.errors import FormatError, MissingDataError
from datapipe.opening.samples import open_index

IMAGES = [jpeg(number, 40 + number, 48) for number in range(30)] + [jpeg(99, 400, 500), encode(picture(5), "PNG")]
NUM = len(IMAGES)
PLAIN = {"compression": "none", "use_dictionary": False}


def structs(images: list[Any] = IMAGES, kind: pa.DataType | None = None) -> pa.Array:
    rows = [None if image is None else {"bytes": image, "path": f"{number}.jpg"} for number, image in enumerate(images)]
    return pa.array(rows, pa.struct([("bytes", kind or pa.binary()), ("path", pa.string())]))


def write(path: Path, columns: dict[str, Any], *, features: Any = None, **options: Any) -> Path:
    table = pa.table(columns)
    if features is not None:
        text = features if isinstance(features, bytes) else json.dumps({"info": {"features": features}}).encode()
        table = table.replace_schema_metadata({b"huggingface": text})
    pq.write_table(table, path, **(PLAIN | options))
    return path


def read(path: Path, field: str = "image") -> list[bytes]:
    return values_of(path, "parquet", field)


def in_pieces(path: Path) -> bool:
    """Whether every image lies in one piece of bytes."""
    return not is_by_rows(path, "parquet")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.parquet"


# -- files of other writers ------------------------------------------------------------------------

COLUMNS: dict[str, Callable[[list[bytes]], pa.Array]] = {
    "struct": structs,
    "struct of large bytes": lambda images: structs(images, pa.large_binary()),
    "bytes": lambda images: pa.array(images, pa.binary()),
    "large bytes": lambda images: pa.array(images, pa.large_binary()),
    "dictionary": lambda images: pa.array(images).dictionary_encode(),
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"data_page_version": "2.0"},
        {"row_group_size": 7},
        {"data_page_size": 10, "write_batch_size": 1},
        {"data_page_size": 3000, "write_batch_size": 2, "row_group_size": 9},
        {"write_page_index": True, "write_page_checksum": True},
        {"write_statistics": False, "version": "1.0"},
        {"compression": {"image.bytes": "none", "image": "none", "label": "gzip", "image.path": "zstd"}},
        {"use_dictionary": ["label", "image.path"]},
        {"store_schema": False},
    ],
    ids=str,
)
def test_images_are_found(path: Path, column: str, options: dict[str, Any]) -> None:
    write(path, {"label": list(range(NUM)), "image": COLUMNS[column](IMAGES), "text": ["x"] * NUM}, **options)
    rows, fields = index_shard(path)
    assert in_pieces(path)
    assert read(path) == IMAGES
    assert rows.labels == list(range(NUM))
    assert [field.name for field in fields] == ["image", "label", "text"]
    assert rows.keys[3] == (b"3.jpg" if "struct" in column else b"3")


def test_a_column_that_must_not_be_null(path: Path) -> None:
    """It has no levels."""
    schema = pa.schema([pa.field("image", pa.binary(), nullable=False)])
    for version in ("1.0", "2.0"):
        pq.write_table(pa.table([pa.array(IMAGES)], schema=schema), path, data_page_version=version, **PLAIN)
        assert read(path) == IMAGES


@quick
@given(
    images=st.lists(st.binary(max_size=400), min_size=1, max_size=40),
    page=st.integers(1, 2000),
    batch=st.integers(1, 20),
    group=st.integers(1, 50),
    version=st.sampled_from(["1.0", "2.0"]),
    column=st.sampled_from(list(COLUMNS)),
)
def test_agrees_with_pyarrow(
    images: list[bytes], page: int, batch: int, group: int, version: str, column: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"agrees-{os.getpid()}.parquet"
    options = {"data_page_size": page, "write_batch_size": batch, "row_group_size": group, "data_page_version": version}
    write(path, {"image": COLUMNS[column]([IMAGES[0], *images])}, **options)
    assert read(path) == [IMAGES[0], *images]


def test_compressed_pages_that_are_not_compressed(path: Path) -> None:
    """Version 2 marks pages that did not get smaller; where all are so marked, nothing hinders."""
    write(path, {"image": IMAGES}, compression="snappy", data_page_version="2.0")
    data = bytearray(path.read_bytes())
    group = pq.read_metadata(path).row_group(0).column(0)
    assert in_pieces(path) == (not any(page.header[8].get(7, True) for page in pages(data, chunk_of(group))))
    assert read(path) == IMAGES


def chunk_of(column: Any, *, max_level: int = 1) -> Chunk:
    start = column.data_page_offset
    return Chunk(start, start + column.total_compressed_size, column.num_values, max_level, column.compression != "UNCOMPRESSED")


def test_what_hugging_face_writes(path: Path, tmp_path: Path) -> None:
    """As it stands, with the settings of its own choice."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["ant", "bee"])})
    rows = {"picture": [{"bytes": image, "path": None} for image in IMAGES], "kind": [number % 2 for number in range(NUM)]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(path))
    index = open_index(path)
    assert read(path) == IMAGES
    assert in_pieces(path) or datasets.__version__.startswith("4.0")
    assert index.manifest.classes == ("ant", "bee")
    assert index.manifest.class_to_idx == {"ant": 0, "bee": 1}
    assert index.labels().tolist() == [number % 2 for number in range(NUM)]


@pytest.mark.parametrize("encode_as", ["keep", "raw"])
def test_a_shard_of_a_converted_set_is_read_by_itself(folder: Path, tmp_path: Path, encode_as: str) -> None:
    """As one would find it without dataset.json and its index."""
    out = convert(folder, tmp_path / "out", to="parquet", encode=Encode(encode_as))
    whole, alone = open_index(out), open_index(out / "shard-000001.parquet")
    labels = [CLASSES.index(path.parent.name) for path in listing(folder)]
    assert alone.manifest.classes == CLASSES
    for row in range(len(alone)):
        sample = int(alone.describe(row).key)
        assert entry_of(alone, row) == entry_of(whole, sample)
        assert alone.labels()[row] == labels[sample]


# -- which column ---------------------------------------------------------------------------------


def test_of_several_columns_the_one_called_image_is_taken(path: Path) -> None:
    write(path, {"thumbnail": structs(IMAGES[::-1]), "image": IMAGES, "more": structs(IMAGES[::-1])})
    assert read(path) == IMAGES


def test_the_column_that_the_metadata_call_an_image_is_taken(path: Path) -> None:
    features = {"a": {"_type": "Image"}, "b": {"_type": "Value", "dtype": "binary"}}
    write(path, {"a": structs(IMAGES), "b": structs(IMAGES[::-1])}, features=features)
    assert read(path) == IMAGES


def test_the_only_column_of_images_is_taken_by_content(path: Path) -> None:
    write(path, {"a": [b"text"] * NUM, "b": IMAGES, "c": [b"\xff\xd8"] * NUM})
    assert read(path) == IMAGES


def test_columns_that_cannot_be_told_apart_are_named(path: Path) -> None:
    write(path, {"a": IMAGES, "b": IMAGES})
    with pytest.raises(FormatError, match=r"images in several columns \(a, b\).*name one of them 'image'"):
        index_shard(path)


@pytest.mark.parametrize(
    ("columns", "features"),
    [
        ({"label": list(range(NUM))}, None),
        ({"kind": list(range(NUM)), "targets": list(range(NUM))}, None),
        ({"n": [0] * NUM, "kind": list(range(NUM))}, {"kind": {"_type": "ClassLabel", "names": list(map(str, range(NUM)))}}),
        ({"label": pa.array(range(NUM), pa.uint8())}, None),
        ({"y": pa.array(range(NUM), pa.int32())}, None),
        ({"Label": list(range(NUM))}, None),
        ({"Y": list(range(NUM)), "Class": [0] * NUM}, None),
        ({"LABEL": [0] * NUM, "label": list(range(NUM))}, None),
    ],
)
def test_labels_by_name_or_metadata(path: Path, columns: dict[str, Any], features: Any) -> None:
    write(path, {"image": IMAGES, **columns}, features=features, use_dictionary=["label"], row_group_size=5)
    rows, fields = index_shard(path)
    assert rows.labels == list(range(NUM))
    assert [field.name for field in fields][1] == "label"


def test_a_sample_without_a_label(path: Path) -> None:
    write(path, {"image": IMAGES, "label": [None, -1, *range(2, NUM)]})
    assert index_shard(path)[0].labels == [NO_LABEL, -1, *range(2, NUM)]


@pytest.mark.parametrize("labels", [["cat"] * NUM, [0.5] * NUM, [[1, 2]] * NUM])
def test_labels_that_are_none_are_left_out_and_said(path: Path, labels: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    write(path, {"image": IMAGES, "label": labels})
    with caplog.at_level(logging.WARNING):
        rows, fields = index_shard(path)
    assert set(rows.labels) == {NO_LABEL}
    assert [field.name for field in fields] == ["image", "label_"], "what it holds can be had as a further field"
    assert isinstance(labels[0], list) or "'label' holds no class numbers" in caplog.text


@pytest.mark.parametrize(
    ("labels", "names", "said"),
    [
        ([-2] * NUM, None, "a label is -2"),
        ([3] * NUM, ["a", "b"], "a label is 3, its metadata name 2 classes"),
        (pa.array([2**64 - 1] * NUM, pa.uint64()), None, r"x\.parquet: "),
    ],
)
def test_labels_that_cannot_be_are_refused(path: Path, labels: Any, names: list[str] | None, said: str) -> None:
    features = {"label": {"_type": "ClassLabel", "names": names}} if names else None
    write(path, {"image": IMAGES, "label": labels}, features=features)
    with pytest.raises(FormatError, match=said):
        index_shard(path)


@pytest.mark.parametrize("text", [b"{", b"[1]", b'{"info": 3}', b'{"info": {"features": {"a": 1}}}', b"[" * 100_000, b"\xff"])
def test_metadata_that_do_not_parse_are_no_obstacle(path: Path, text: bytes) -> None:
    write(path, {"image": IMAGES, "label": [0] * NUM}, features=text)
    assert read(path) == IMAGES
    assert index_shard(path)[0].classes is None


def test_names_of_samples(path: Path) -> None:
    write(path, {"image": structs(), "file_name": [f"{row:03d}" for row in range(NUM)]}, compression={"file_name": "zstd"})
    assert index_shard(path)[0].keys == [b"%03d" % row for row in range(NUM)]
    write(path, {"image": structs(), "file_name": ["x" * 2000, *"y" * (NUM - 1)]})
    assert index_shard(path)[0].keys[:2] == [b"0.jpg", b"1.jpg"]
    write(path, {"image": structs(), "file_name": [None, *"y" * (NUM - 1)]})
    assert index_shard(path)[0].keys[:2] == [b"0.jpg", b"1.jpg"]


def test_shards_that_name_other_classes_are_refused(tmp_path: Path) -> None:
    for number, names in enumerate((["a", "b"], ["b", "a"])):
        features = {"label": {"_type": "ClassLabel", "names": names}}
        write(tmp_path / f"{number}.parquet", {"image": IMAGES, "label": [0] * NUM}, features=features)
    with pytest.raises(FormatError, match=r"1\.parquet: names other classes than the shards before it"):
        open_index(tmp_path)


# -- what cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"image": [IMAGES[:2]] * 3}, {}, "no images that can be read"),
        ({"images": [[{"bytes": b"x"}]] * 3}, {}, "no images that can be read"),
        ({"a": structs(), "b": structs()}, {"compression": {"a.bytes": "snappy"}}, r"several columns \(a.bytes, b.bytes\)"),
        ({"text": ["a"], "number": [1]}, {}, r"no images that can be read \(has: text BYTE_ARRAY, number INT64\)"),
        ({f"c{number}": [1] for number in range(20)}, {}, "c11 INT64, and 8 more"),
        ({"image": pa.array([], pa.binary())}, {}, "no samples"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said_naming_what_is_there(
    path: Path, columns: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    write(path, columns, **options)
    with pytest.raises(FormatError, match=rf"x\.parquet: .*{said}") as caught:
        index_shard(path)
    assert any(text in str(caught.value) for text in ("no samples", "write such a one", "name one of them 'image'"))


@pytest.mark.parametrize("names", [("train", "test"), ("train", "validation"), ("Training", "val")])
def test_sets_in_one_directory_are_told_apart(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        write(tmp_path / f"{name}-00000-of-00001.parquet", {"image": IMAGES})
    with pytest.raises(FormatError, match=rf"holds shards of {names[0]}, {names[1]}; open one .*/{names[0]}-\*'"):
        open_index(tmp_path)
    assert len(open_index(f"{tmp_path}/{names[1]}-*")) == NUM


def test_images_that_are_paths_alone_are_said(path: Path) -> None:
    images = [{"bytes": None, "path": f"{row}.jpg"} for row in range(3)]
    write(path, {"image": pa.array(images, structs().type), "label": [0, 1, 2]}, compression="snappy")
    with pytest.raises(FormatError, match=r"x\.parquet: column 'image' holds no bytes, at most the paths of files: write"):
        index_shard(path)


def test_images_of_one_length(path: Path) -> None:
    """A binary column of fixed size, filled up with zeros."""
    nbytes = max(map(len, IMAGES))
    images = [image.ljust(nbytes, b"\0") for image in IMAGES]
    write(path, {"image": pa.array(images, pa.binary(nbytes))})
    assert read(path) == images


# -- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"", b"hello", b"PAR1", b"PAR1" * 2, b"PAR1" + b"\xff" * 4 + b"PAR1", b"PAR1" + bytes(5000) + b"\0\x10\0\0PAR1",
        b"PARE" * 9,
    ],
    ids=["nothing", "text", "magic", "magic twice", "long footer", "footer of zeros", "encrypted"],
)  # fmt: skip
def test_what_is_no_parquet_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"x\.parquet: (empty file|not a Parquet file)"):
        index_shard(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"gone\.parquet"):
        index_shard(tmp_path / "gone.parquet")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_cut_file_is_refused(path: Path, share: float) -> None:
    data = write(path, {"image": IMAGES}).read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(FormatError, match=r"x\.parquet: not a Parquet file, or damaged"):
        index_shard(path)


def test_bytes_taken_out_of_the_middle_are_noticed(path: Path) -> None:
    data = write(path, {"image": IMAGES}).read_bytes()
    path.write_bytes(data[:3000] + data[3001:])
    with pytest.raises(FormatError, match=r"x\.parquet: (damaged|not a Parquet file)"):
        index_shard(path)


def test_lengths_that_lie_are_refused(path: Path) -> None:
    data = bytearray(write(path, {"image": IMAGES}).read_bytes())
    at = data.index(IMAGES[3]) - 4
    for value, said in (
        (len(IMAGES[3]) + 1, "reaches beyond its page|ends at|are left"),
        (0xFFFFFFFF, "reaches beyond its page"),
    ):
        struct.pack_into("<I", data, at, value)
        path.write_bytes(data)
        with pytest.raises(FormatError, match=f"damaged: .*({said})"):
            index_shard(path)


# -- pages by hand --------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def number(value: int) -> bytes:
    """A field of type i32 that follows the one before it."""
    return b"\x15" + varint(value << 1 if value >= 0 else (-value << 1) - 1)


def page(
    body: bytes,
    *,
    num: int,
    kind: int = 0,
    nbytes: int | None = None,
    encoding: int = 0,
    levels: int = 3,
    whole: int | None = None,
) -> bytes:
    """A data page of version 1: sizes, its header as field 5, `body`."""
    sizes = number(kind) + number(len(body) if whole is None else whole) + number(len(body) if nbytes is None else nbytes)
    return sizes + b"\x2c" + number(num) + number(encoding) + number(levels) + number(3) + b"\0\0" + body


def values(*items: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def walk(data: bytes, *, num: int, max_level: int = 0, end: int | None = None) -> list[bytes]:
    chunk = Chunk(0, len(data) if end is None else end, num, max_level, is_compressed=False)
    return [data[at : at + size] for found in plain_values(data, chunk) for at, size in byte_arrays(data, found)]


def test_pages_one_behind_the_other() -> None:
    assert walk(page(values(b"a", b"bc"), num=2) + page(values(b""), num=1) + page(b"", num=0), num=3) == [b"a", b"bc", b""]
    assert list(pages(b"", Chunk(0, 0, 0, 0, False))) == []


def test_pages_that_hold_no_values_are_passed_over() -> None:
    dictionary = number(2) + number(3) + number(3) + b"\x4c" + number(1) + number(0) + b"\0\0" + b"xyz"
    assert walk(dictionary + page(values(b"a"), num=1), num=1) == [b"a"]


def runs(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    ("levels", "max_level", "num"),
    [
        (runs(varint(5 << 1), b"\1"), 1, 5),
        (runs(varint(2 << 1), b"\1", varint(3 << 1), b"\1"), 1, 5),
        (runs(varint(1 << 1 | 1), b"\x1f"), 1, 5),  # eight bit-packed levels, of which three fill up
        (runs(varint(1 << 1 | 1), b"\xff", varint(1 << 1), b"\1"), 1, 9),
        (runs(varint(2 << 1 | 1), b"\xaa\xaa\xaa\xaa"), 2, 16),
        (runs(varint(0), b"\0", varint(5 << 1), b"\3"), 3, 5),
        (runs(varint(40_000 << 1 | 1), b"\xff" * 40_000), 1, 320_000),
    ],
)
def test_levels_in_every_form(levels: bytes, max_level: int, num: int) -> None:
    assert walk(page(levels + bytes(4 * num), num=num), num=num, max_level=max_level) == [b""] * num


@pytest.mark.parametrize(
    ("levels", "max_level"),
    [
        (runs(varint(5 << 1), b"\0"), 1),
        (runs(varint(5 << 1), b"\1"), 2),
        (runs(varint(1 << 1 | 1), b"\x0f"), 1),
        (runs(varint(4 << 1), b"\1", varint(1 << 1), b"\0"), 1),
    ],
)
def test_nulls_are_refused(levels: bytes, max_level: int) -> None:
    with pytest.raises(UnaddressableError, match=r"null in one of the rows \d to 4"):
        walk(page(levels + bytes(20), num=5), num=5, max_level=max_level)


GOOD = page(values(b"a", b"bc"), num=2)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (GOOD[:1], "cut"),
        (GOOD[:-1], "reaches beyond its column"),
        (page(values(b"a"), num=2), "values in the pages is not 2|ends at"),
        (page(values(b"a", b"bc") + b"x", num=2), "are left"),
        (page(values(b"a", b"bc", b""), num=2), "are left"),
        (page(values(b"a", b"bc", b""), num=3), "values in the pages is not 2"),
        (page(b"\xff\xff\xff\xff", num=2), "reaches beyond its page"),
        (page(values(b"a", b"bc"), num=2, nbytes=2**31 - 1), "reaches beyond its column"),
        (page(values(b"a", b"bc"), num=2, nbytes=-1), "field 3 of a header is -1"),
        (page(values(b"a", b"bc"), num=2, whole=100), "two sizes"),
        (page(values(b"a", b"bc"), num=-2), "field 1 of a header is -2"),
        (page(values(b"a", b"bc"), num=2, kind=9), "a page of kind 9"),
        (page(values(b"a", b"bc"), num=2, kind=3), "without the part that belongs to its kind"),
        (b"\x15" + b"\xff" * 20, "without an end"),
        (b"\x19\xfc" + bytes(50), "a value of type 9 at byte 1, expected a number"),  # a list
        (b"\x49\xfc\xff\xff\xff\x0f" + bytes(50), "a list at byte 6 is longer"),
        (b"\x4b\xff\xff\xff\xff\x0f\x55" + bytes(50), "cut"),  # a map of numbers
        (b"\x38\xff\xff\xff\xff\x0f" + bytes(50), "beyond its enclosing structure"),  # a string
        (b"\x9c" + b"\x1c" * 50, "a value of type 12"),  # structs in structs
        (b"\x99" + b"\x19" * 50, "a value of type 9"),  # lists in lists
        (b"\x9d" + bytes(9), "beyond its enclosing structure"),  # half of a UUID
        (b"\x9e" + bytes(50), "a value of type 14"),
        (b"\x58" + bytes(50), "expected a struct"),
        (b"\x17" + bytes(50), "expected a number or a string"),
        (b"\x91" * 80, "more than 64 fields"),
        (b"\0", "field 1 of a header is None"),
    ],
)
def test_pages_that_no_writer_makes(data: bytes, said: str) -> None:
    with pytest.raises(DamagedError, match=said):
        walk(data, num=2)


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (b"\1\0", "ends within its levels"),
        (struct.pack("<I", 1000), "reach beyond their page"),
        (runs(), "cut at byte"),
        (runs(varint(3 << 1 | 1)), "end too early"),
        (runs(varint(3 << 1)), "end too early"),
        (runs(varint(2 << 1), b"\1"), "cut at byte"),
        (runs(b"\xff" * 12), "without an end"),
    ],
)
def test_levels_that_no_writer_makes(levels: bytes, said: str) -> None:
    with pytest.raises(DamagedError, match=said):
        walk(page(levels, num=5), num=5, max_level=1)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (page(values(b"a", b"bc"), num=2, encoding=8), "dictionary-encoded"),
        (page(values(b"a", b"bc"), num=2, encoding=2), "dictionary-encoded"),
        (page(values(b"a", b"bc"), num=2, encoding=9), r"encoded \(kind 9\)"),
    ],
)
def test_encodings_that_hide_the_bytes(data: bytes, said: str) -> None:
    with pytest.raises(UnaddressableError, match=said):
        walk(data, num=2)
    with pytest.raises(UnaddressableError, match="from before 2013"):
        walk(page(runs(varint(2 << 1), b"\1") + values(b"", b""), num=2, levels=4), num=2, max_level=1)


def test_a_page_is_a_value() -> None:
    assert next(pages(GOOD, Chunk(0, len(GOOD), 2, 0, False))) == Page(0, len(GOOD) - 11, len(GOOD), 11, {
        1: 0, 2: 11, 3: 11, 5: {1: 2, 2: 0, 3: 3},
    })  # fmt: skip


# -- footers by hand ------------------------------------------------------------------------------


def struct_of(fields: dict[int, Any]) -> bytes:
    """Thrift's compact form of a struct: of numbers, strings, structs (dict) and lists of structs, by field number."""
    out = b""
    for field, value in fields.items():
        kind, body = 6, b""
        if isinstance(value, bytes):
            kind, body = 8, varint(len(value)) + value
        elif isinstance(value, dict):
            kind, body = 12, struct_of(value)
        elif isinstance(value, list):
            kind, body = 9, b"\xfc" + varint(len(value)) + b"".join(map(struct_of, value))
        else:
            body = varint(value << 1 if value >= 0 else (-value << 1) - 1)
        out += bytes([kind]) + varint(field << 1) + body
    return out + b"\0"


def by_hand(change: Callable[[dict[int, Any]], object] = lambda footer: None, *, num_groups: int = 1) -> bytes:
    """A file of one column that must not be null, two images in each row group; `change` changes the footer's fields."""
    body = b"PAR1" + page(values(*IMAGES[:2]), num=2) * num_groups
    nbytes = (len(body) - 4) // num_groups
    groups = [{1: [{3: {4: 0, 5: 2, 7: nbytes, 9: 4 + nbytes * number}}], 3: 2} for number in range(num_groups)]
    schema = [{4: b"root", 5: 1}, {1: 6, 3: 0, 4: b"image"}]
    footer: dict[int, Any] = {2: schema, 3: 2 * num_groups, 4: groups}
    change(footer)
    data = struct_of(footer)
    return body + data + struct.pack("<I", len(data)) + b"PAR1"


def test_a_footer_by_hand_is_read(path: Path) -> None:
    path.write_bytes(by_hand(num_groups=3))
    assert read(path) == IMAGES[:2] * 3


def column_of(footer: dict[int, Any]) -> dict[int, Any]:
    """The metadata of the last row group's column."""
    found: dict[int, Any] = footer[4][-1][1][0][3]
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda footer: column_of(footer).update({9: 4}), "row group 1 overlaps the data before it"),
        (lambda footer: column_of(footer).update({9: 2**62}), "reaches beyond the end: the file was cut"),
        (lambda footer: column_of(footer).update({7: 2**62}), "reaches beyond the end: the file was cut"),
        (lambda footer: column_of(footer).update({9: -1}), "field 9 of a header is -1"),
        (lambda footer: column_of(footer).update({5: 3}), "has 3 values for 2 rows"),
        (lambda footer: column_of(footer).update({5: 2**40}) or footer[4][-1].update({3: 2**40}), "groups of 1099511627778"),
        (lambda footer: column_of(footer).update({4: 99}), r"compressed \(codec 99\)"),
        (lambda footer: column_of(footer).update({4: b"x"}), "field 4 of a header is b'x'"),
        (lambda footer: footer[4][-1][1].clear(), "row group 1 is missing"),
        (lambda footer: footer[4][-1][1][0].clear(), "row group 1 has no metadata"),
        (lambda footer: footer[4][-1][1][0].update({1: b"/etc/passwd"}), "lies in another file, b'/etc/passwd'"),
        (lambda footer: footer.update({4: b"x"}), "expected a struct"),
        (lambda footer: footer.update({4: {}}), "field 4 of the footer is no list"),
        (lambda footer: footer.update({2: []}), "schema has 0 elements"),
        (lambda footer: footer.update({2: [{}] * 20_000}), "schema has 20000 elements"),
        (lambda footer: footer.update({2: [{5: 1}] * 100}), "its schema is cut, or too deep"),
        (lambda footer: footer.update({2: [{5: 2**40}, {1: 6}]}), "its schema is cut, or too deep"),
        (lambda footer: footer.update({2: [{5: 1}, {1: 6, 4: 3}]}), "an element called 3"),
        (lambda footer: footer.update({2: [{5: 1}, {1: b"x"}]}), "field 1 of a header is b'x'"),
        (lambda footer: footer.update({4: [{}] * 1_100_000}), "more than 1048576 structs"),
        (lambda footer: footer.update({3: -5}), "field 3 of a header is -5"),
    ],
)  # fmt: skip
def test_footers_that_no_writer_makes(path: Path, change: Callable[[dict[int, Any]], object], said: str) -> None:
    path.write_bytes(by_hand(change, num_groups=2))
    with pytest.raises(FormatError, match=rf"x\.parquet: .*{said}"):
        index_shard(path)


def test_a_damaged_footer_does_not_end_the_process(path: Path) -> None:
    """pyarrow's access to a codec that it does not know would."""
    write(path, {"image": IMAGES, "label": [0] * NUM})
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    codec = footer.index(b"label", footer.index(b"image", footer.index(b"label"))) + 5  # of the second column's metadata
    assert footer[codec : codec + 2] == b"\x15\0"
    data[len(data) - 8 - length + codec + 1] = 0x7E
    path.write_bytes(data)
    accepts_any_codec = int(pa.__version__.split(".")[0]) < 22  # as if it were none
    refused = contextlib.suppress(FormatError) if accepts_any_codec else pytest.raises(FormatError, match=r"x\.parquet: damaged")
    with refused:
        index_shard(path)


def test_memory_does_not_follow_what_the_bytes_claim(path: Path) -> None:
    """Levels that claim 2^60 values, values of 4 GB."""
    for data in (page(runs(varint(2**61), b"\1"), num=2**31 - 1), page(b"\xfe\xff\xff\xff", num=2**31 - 1)):
        tracemalloc.start()
        with pytest.raises(DamagedError):
            walk(data, num=2**31 - 1, max_level=int(len(data) > 25))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()


def test_a_page_of_labels_that_claims_to_be_large_is_not_decompressed(path: Path) -> None:
    num = 20_000
    columns = {"image": [b"\xff\xd8\xff"] * num, "label": [0] * num}
    write(path, columns, compression={"label": "zstd"}, data_page_size=10_000_000, write_batch_size=num)
    column = pq.read_metadata(path).row_group(0).column(1)
    data, start = bytearray(path.read_bytes()), column.data_page_offset
    truth = number(0) + number(next(pages(data, chunk_of(column))).uncompressed_nbytes)
    lie = number(0) + number(1_000_000)
    assert data[start : start + len(truth)] == truth
    assert len(lie) == len(truth)
    data[start : start + len(truth)] = lie
    path.write_bytes(data)
    with pytest.raises(FormatError, match="column 'label' claims to be larger than its rows"):
        index_shard(path)


@pytest.mark.daily(1)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@quick
@given(data=st.data())
def test_damage_raises_nothing_but_format_errors(
    version: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bytes set, dropped or repeated, most of them where headers, levels, lengths and the footer are."""
    path = tmp_path_factory.getbasetemp() / f"fuzz-{os.getpid()}.parquet"
    columns = {"image": structs([b"\xff\xd8\xff" + bytes(9)] * 4), "label": list(range(4))}
    write(path, columns, data_page_version=version, data_page_size=20, write_batch_size=2, row_group_size=3)
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        change = data.draw(st.sampled_from(["set", "set", "set", "drop", "again", "cut"]))
        if change == "set":
            damaged[at] = data.draw(st.sampled_from(b"\0\x01\x0a\x15\x1c\x7f\x80\xff") | st.integers(0, 255))
        elif change == "drop":
            del damaged[at : at + data.draw(st.integers(1, 9))]
        elif change == "again":
            damaged[at:at] = damaged[at : at + data.draw(st.integers(1, 9))]
        else:
            del damaged[at:]
        if not damaged:
            break
    path.write_bytes(damaged)
    with contextlib.suppress(FormatError):
        rows, _ = index_shard(path)
        images = rows.columns["image"]
        if images.column is None:
            assert 0 <= images.offset.min() <= (images.offset + images.nbytes).max() <= len(damaged)
