"""What every writer promises of the fields of a sample, and what stock readers make of them."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from trees import encoded_image

from converters import options
from converters.writers import TARGETS, StoredField, StoredSample, Target, WrittenShard, suffix_of
from converters.writers.hdf5 import lay_out
from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD, NO_LABEL, FieldKind, FieldSpec
from datapipe.containers.field_names import checked_fields, is_field_name
from datapipe.containers.hdf5 import DATA_START
from datapipe.containers.parquet.pages import Chunk, pages
from datapipe.containers.tar.layout import field_of_suffix, suffix_of_bytes
from datapipe.errors import DecodeError, FormatError, OptionError
from datapipe.index.open_sidecars import Sidecar
from datapipe.index.sidecar import write_sidecar

NUM = 7
MANY = (
    IMAGE_FIELD,
    LABEL_FIELD,
    FieldSpec("mask", FieldKind.MASK),
    FieldSpec("caption", FieldKind.TEXT),
    FieldSpec("boxes", FieldKind.BOXES),
    FieldSpec("json", FieldKind.JSON),
    FieldSpec("raw_bytes", FieldKind.BYTES),
)


def boxes_of(number: int) -> np.ndarray:
    return np.arange(number * 4, dtype=np.float32).reshape(number, 4)


def npy(array: np.ndarray) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


def sample(number: int) -> StoredSample:
    fields = {
        "image": StoredField("jpeg", encoded_image(number, size=(20 + number, 30))),
        "mask": StoredField("png", encoded_image(number, size=(20 + number, 30), form="PNG", mode="L")),
        "caption": StoredField("text", f"Bild Nº {number}, schön\n".encode()),
        "boxes": StoredField("npy", npy(boxes_of(number))),
        "json": StoredField("json", json.dumps({"number": number}).encode()),
        "raw_bytes": StoredField("bytes", bytes(number * 100)),  # none at all in the first
    }
    return StoredSample(number + 40, b"k/%d" % number, number % 3, (20 + number, 30), fields)


def write(target: Target, path: Path, fields: tuple[FieldSpec, ...] = MANY, num: int = NUM) -> WrittenShard:
    writer = target.open_shard(path, fields=fields)
    for number in range(num):
        writer.append(sample(number))
    return writer.finish()


@pytest.mark.parametrize(
    "fields",
    [MANY, MANY[:2], MANY[:1], MANY[1:], MANY[3:4], MANY[1:2], MANY[::-1]],
    ids=lambda fields: "-".join(field.name for field in fields),
)
def test_every_field_lies_where_its_row_says(target: Target, tmp_path: Path, fields: tuple[FieldSpec, ...]) -> None:
    written = write(target, tmp_path / "x", fields)
    data = (tmp_path / "x").read_bytes()
    assert written.nbytes == len(data)
    assert written.rows.field_names == tuple(field.name for field in fields)
    assert written.rows.ids == list(range(40, 40 + NUM))
    assert written.rows.keys == [b"%09d" % number for number in range(40, 40 + NUM)]
    for name, extents in written.rows.extents.items():
        for number, extent in enumerate(extents):
            found = data[extent.offset : extent.offset + extent.nbytes]
            assert crc32c(found) == extent.crc32c
            if name != "label":
                stored = sample(number).fields[name]
                assert (found, extent.encoding) == (stored.data, stored.encoding)
    spans = sorted((extent.offset, extent.nbytes) for extents in written.rows.extents.values() for extent in extents)
    assert all(a + nbytes <= b for (a, nbytes), (b, _) in itertools.pairwise(spans)), "extents overlap"


def test_the_same_samples_give_the_same_bytes(target: Target, tmp_path: Path) -> None:
    one, two = (write(target, tmp_path / name) for name in "ab")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (one.sha256, one.companions) == (two.sha256, two.companions)


def test_what_lies_beside_can_be_made_again_from_the_shard(target: Target, tmp_path: Path) -> None:
    written = write(target, tmp_path / "x")
    write_sidecar(tmp_path / "x.index", written.rows, "x")
    assert target.companions(tmp_path / "x", Sidecar(tmp_path / "x.index")) == written.companions
    assert tuple(written.companions) == target.companion_suffixes


def test_a_shard_without_samples(target: Target, tmp_path: Path) -> None:
    """All of them were bad."""
    written = write(target, tmp_path / "x", MANY, num=0)
    assert len(written.rows) == 0
    assert written.nbytes == (tmp_path / "x").stat().st_size
    write_sidecar(tmp_path / "x.index", written.rows, "x")
    assert target.companions(tmp_path / "x", Sidecar(tmp_path / "x.index")) == written.companions


def test_abandoned_shards_leave_nothing_beside(target: Target, tmp_path: Path) -> None:
    writer = target.open_shard(tmp_path / "x", fields=MANY)
    writer.append(sample(1))
    writer.abandon()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_targets_are_those_of_the_options_and_the_command_line() -> None:
    assert set(options.TARGETS) == set(TARGETS)
    assert len({target.container for target in TARGETS.values()}) == len({target.suffix for target in TARGETS.values()}) == 5


@pytest.mark.parametrize("name", ["", "Mask", "a.b", "a/b", "key", "cls", "size", "jpg", "npy", "1st", "_x", "x" * 40, "ä"])
def test_names_that_a_format_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="not a name that every format can hold"):
        checked_fields([IMAGE_FIELD, FieldSpec(name, FieldKind.BYTES)])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([], "one or more"),
        ([IMAGE_FIELD, IMAGE_FIELD], "with different names"),
        ([FieldSpec("label", FieldKind.TEXT)], "labels, and nothing else"),
        ([FieldSpec("class", FieldKind.LABEL)], "labels, and nothing else"),
        ([FieldSpec("image", FieldKind.MASK)], "a field named 'image' must be an image"),
    ],
)
def test_fields_that_make_no_set_are_refused(fields: list[FieldSpec], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        checked_fields(fields)


# -- stock readers --------------------------------------------------------------------------------


def assert_are_samples(found: dict[str, list[Any]]) -> None:
    """By field: what a reader made of it, sample by sample."""
    for number in range(NUM):
        stored = sample(number)
        for name, values in found.items():
            expected = stored.label if name == "label" else stored.fields[name].data
            assert values[number] == expected, name


def test_webdataset_decodes_further_fields(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    write(TARGETS["webdataset"], tmp_path / "x.tar")
    dataset = webdataset.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False)
    raw = list(dataset)
    assert_are_samples(
        {
            "image": [one["jpg"] for one in raw],
            "mask": [one["mask.png"] for one in raw],
            "caption": [one["caption.txt"] for one in raw],
            "json": [one["json"] for one in raw],
            "raw_bytes": [one["raw_bytes"] for one in raw],
        }
    )
    for number, one in enumerate(dataset.decode("pil")):
        assert one["jpg"].size == one["mask.png"].size == (30, 20 + number)
        assert one["cls"] == number % 3
        assert one["caption.txt"] == f"Bild Nº {number}, schön\n"
        assert np.array_equal(one["boxes.npy"], boxes_of(number))
        assert one["json"] == {"number": number}


def test_h5py_reads_further_fields(tmp_path: Path) -> None:
    write(TARGETS["hdf5"], tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        found: dict[str, list[Any]] = {"label": file["label"][:].tolist()}
        for name in ("image", "mask", "caption", "boxes", "json", "raw_bytes"):
            data, offsets = file[name]["data"], file[name]["offsets"][:]
            found[name] = [data[offsets[i] : offsets[i + 1]].tobytes() for i in range(NUM)]
        assert_are_samples(found)
        assert file["key"][:].tolist() == [b"%09d" % number for number in range(40, 40 + NUM)]
        assert file["size"][:].tolist() == [[20 + number, 30] for number in range(NUM)]


def test_tfrecord_reads_further_fields(tmp_path: Path) -> None:
    from tfrecord.reader import tfrecord_loader

    write(TARGETS["tfrecord"], tmp_path / "x.tfrecord")
    raw = list(tfrecord_loader(str(tmp_path / "x.tfrecord"), None))
    assert_are_samples(
        {
            "image": [one["image/encoded"] for one in raw],
            "label": [one["image/class/label"][0] for one in raw],
            **{name: [one[name] for one in raw] for name in ("mask", "caption", "boxes", "json")},
        }
    )
    assert [one["__key__"] for one in raw] == [b"%09d" % number for number in range(40, 40 + NUM)]
    assert [one["image/height"][0] for one in raw] == [20 + number for number in range(NUM)]
    assert {(one["image/width"][0], one["image/format"]) for one in raw} == {(30, b"jpeg")}


def test_pyarrow_reads_further_fields(tmp_path: Path) -> None:
    write(TARGETS["parquet"], tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    texts = {name: [text.encode() for text in table[name].to_pylist()] for name in ("caption", "json")}
    images = {name: [image["bytes"] for image in table[name].to_pylist()] for name in ("image", "mask")}
    others = {name: table[name].to_pylist() for name in ("label", "boxes", "raw_bytes")}
    assert_are_samples({**texts, **images, **others})
    assert table["key"].to_pylist() == [f"{number:09d}" for number in range(40, 40 + NUM)]
    assert [image["path"] for image in table["image"].to_pylist()] == [f"{number}.jpg" for number in range(NUM)]
    assert [image["path"] for image in table["mask"].to_pylist()] == [f"{number}.png" for number in range(NUM)]
    assert table.column_names == [*(field.name for field in MANY), "key"]


def test_hugging_face_decodes_further_fields(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    writer = TARGETS["parquet"].open_shard(tmp_path / "x.parquet", fields=MANY, classes=("ant", "bee", "cat"))
    for number in range(NUM):
        writer.append(sample(number))
    writer.finish()
    dataset = datasets.Dataset.from_parquet(str(tmp_path / "x.parquet"), cache_dir=str(tmp_path / "cache"))
    assert dataset.features["label"].names == ["ant", "bee", "cat"]
    for number, one in enumerate(dataset):
        assert one["image"].size == one["mask"].size == (30, 20 + number)
        assert (one["image"].format, one["mask"].mode) == ("JPEG", "L")
        assert one["label"] == number % 3
        assert one["caption"] == f"Bild Nº {number}, schön\n"
        assert np.array_equal(np.load(io.BytesIO(one["boxes"])), boxes_of(number))
        assert json.loads(one["json"]) == {"number": number}
        assert one["raw_bytes"] == bytes(number * 100)


def test_hugging_face_hands_out_raw_images_undecoded(tmp_path: Path) -> None:
    """Image could not decode them."""
    datasets = pytest.importorskip("datasets")
    writer = TARGETS["parquet"].open_shard(tmp_path / "x.parquet", fields=MANY[:1])
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    writer.append(StoredSample(0, b"a/b.c.jpg", NO_LABEL, (4, 5), {"image": StoredField("npy", npy(pixels))}))
    writer.finish()
    dataset = datasets.Dataset.from_parquet(str(tmp_path / "x.parquet"), cache_dir=str(tmp_path / "cache"))
    assert np.array_equal(np.load(io.BytesIO(dataset[0]["image"]["bytes"])), pixels)
    assert dataset[0]["image"]["path"] == "b.c.npy"


@pytest.mark.parametrize(
    ("source", "path"),
    [
        (b"k/cat.JPEG", "cat.jpg"),
        (b"no suffix", "no suffix.jpg"),
        (b"k/\xff\n.png", "\\xff\n.jpg"),
        ("k/ä.jpeg".encode(), "ä.jpg"),
        (b"", "000000040.jpg"),
        (b"k/.jpg", ".jpg.jpg"),
    ],
)
def test_paths_are_file_names_with_the_right_suffix(tmp_path: Path, source: bytes, path: str) -> None:
    writer = TARGETS["parquet"].open_shard(tmp_path / "x", fields=MANY[:1])
    writer.append(StoredSample(40, source, NO_LABEL, (1, 1), {"image": StoredField("jpeg", b"x")}))
    writer.finish()
    assert pq.read_table(tmp_path / "x")["image"].to_pylist() == [{"bytes": b"x", "path": path}]


def test_row_groups_bound_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one begins before a row group outgrows its limit; a sample that does alone has one of its own."""
    monkeypatch.setattr("datapipe.containers.parquet.ROW_GROUP_NBYTES", 20_000)
    writer = TARGETS["parquet"].open_shard(tmp_path / "x", fields=MANY[:2])
    sizes = [9_000, 9_000, 9_000, 50_000, 1_000, 1_000, 9_000, 9_000]
    for number, nbytes in enumerate(sizes):
        writer.append(StoredSample(number, b"", number, (1, 1), {"image": StoredField("jpeg", bytes([number]) * nbytes)}))
    written = writer.finish()
    metadata = pq.read_metadata(tmp_path / "x")
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [2, 1, 1, 3, 1]
    assert [extent.nbytes for extent in written.rows.extents["image"]] == sizes
    assert pq.read_table(tmp_path / "x")["label"].to_pylist() == list(range(8))


def test_pages_are_as_the_documents_say(tmp_path: Path) -> None:
    """An image above 8 KiB has a page of its own, images have no statistics, and pages are indexed."""
    writer = TARGETS["parquet"].open_shard(tmp_path / "x", fields=MANY[:2])
    for number in range(3000):
        image = bytes(10_000 if number % 2 else 100)
        writer.append(StoredSample(number, b"", number, (1, 1), {"image": StoredField("jpeg", image)}))
    writer.finish()
    group = pq.read_metadata(tmp_path / "x").row_group(0)
    column = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
    assert {column[name].compression for name in column} == {"UNCOMPRESSED"}
    assert not any(column[name].has_dictionary_page for name in column)
    assert [column[name].is_stats_set for name in ("image.bytes", "label", "key")] == [False, True, False]
    assert all(column[name].has_offset_index for name in column)
    data, num_pages = (tmp_path / "x").read_bytes(), {}
    for name, found in column.items():
        chunk = Chunk(found.data_page_offset, found.data_page_offset + found.total_compressed_size, 3000, 2, False)
        num_pages[name] = len(list(pages(data, chunk)))
    assert num_pages["image.bytes"] == 1500
    assert num_pages["label"] == 3


@pytest.mark.parametrize(("field", "data"), [("caption", b"\xff"), ("json", b'"\xc3"')])
def test_texts_that_are_no_text_are_refused(tmp_path: Path, field: str, data: bytes) -> None:
    one = sample(0)
    spoiled = StoredSample(one.id, one.source, one.label, one.size, {**one.fields, field: StoredField("text", data)})
    writer = TARGETS["parquet"].open_shard(tmp_path / "x", fields=MANY)
    writer.check(one)
    with pytest.raises(DecodeError, match=rf"field '{field}' is not UTF-8"):
        writer.check(spoiled)


def test_fields_that_no_page_could_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TARGETS["parquet"].open_shard(tmp_path / "x", fields=MANY)
    writer.check(sample(0))
    monkeypatch.setattr("datapipe.containers.parquet.MAX_FIELD_NBYTES", 500)
    with pytest.raises(DecodeError, match=r"field 'image' of \d+ bytes exceeds the 500 of a page"):
        writer.check(sample(0))


def test_what_reads_back_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A future version of pyarrow, or a disk that does not keep what it is given."""
    checksums = itertools.count()  # never the same twice
    monkeypatch.setattr("converters.writers.parquet.crc32c", lambda data: next(checksums))
    with pytest.raises(FormatError, match="field 'image' differs when read back; pyarrow"):
        write(TARGETS["parquet"], tmp_path / "x")


def test_sets_without_labels_or_images(tmp_path: Path) -> None:
    from tfrecord.reader import tfrecord_loader

    captions = (FieldSpec("caption", FieldKind.TEXT), LABEL_FIELD)
    write(TARGETS["tfrecord"], tmp_path / "x.tfrecord", captions)
    first = next(iter(tfrecord_loader(str(tmp_path / "x.tfrecord"), None)))
    assert set(first) == {"__key__", "caption", "label"}
    writer = TARGETS["hdf5"].open_shard(tmp_path / "x.h5", fields=captions[:1])
    writer.append(StoredSample(0, b"", NO_LABEL, (0, 0), {"caption": StoredField("text", b"hello")}))
    writer.finish()
    with h5py.File(tmp_path / "x.h5") as file:
        assert set(file) == {"caption", "key", "size"}
    write(TARGETS["parquet"], tmp_path / "x.parquet", captions[:1])
    assert pq.read_schema(tmp_path / "x.parquet").names == ["caption", "key"]


def test_examples_that_protobuf_could_not_parse_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TARGETS["tfrecord"].open_shard(tmp_path / "x", fields=MANY)
    writer.check(sample(0))
    monkeypatch.setattr("datapipe.containers.tfrecord.layout.MAX_EXAMPLE_NBYTES", 1000)
    with pytest.raises(DecodeError, match=r"\d+ bytes of fields exceed the 1000 of a tf\.train\.Example.*webdataset or hdf5"):
        writer.check(sample(0))


def test_members_that_no_plain_header_could_tell_the_size_of_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TARGETS["webdataset"].open_shard(tmp_path / "x", fields=MANY)
    writer.check(sample(0))
    monkeypatch.setattr("datapipe.containers.tar.layout.MAX_MEMBER_NBYTES", 500)
    with pytest.raises(DecodeError, match=r"field 'image' of \d+ bytes exceeds the 500 of a tar"):
        writer.check(sample(0))


@given(st.from_regex("[a-z][a-z0-9_]{0,31}", fullmatch=True) | st.sampled_from(["mp4", "bin", "txt", "json", "jpeg", "caption"]))
def test_bytes_are_called_by_their_name_and_read_back_as_bytes(name: str) -> None:
    suffix = suffix_of_bytes(name)
    assert suffix in (name, f"{name}.bin")
    if is_field_name(name) and name not in ("image", "label"):
        assert field_of_suffix(suffix, b"") == FieldSpec(name, FieldKind.BYTES)


def test_names_of_bytes() -> None:
    assert [suffix_of_bytes(name) for name in ("mp4", "clip", "json", "bin")] == ["mp4", "clip", "json.bin", "bin"]


def test_no_field_is_called_as_images_are() -> None:
    for encoding in ("jpeg", "png", "webp", "bmp", "gif", "tiff", "pnm", "npy"):
        assert not is_field_name(suffix_of(encoding))


def test_bytes_besides_the_fields(target: Target, tmp_path: Path) -> None:
    """As docs/formats.md says."""
    num, image = 500, bytes(1000)
    writer = target.open_shard(tmp_path / "x", fields=MANY[:2])
    for number in range(num):
        writer.append(StoredSample(number, b"", 7, (300, 400), {"image": StoredField("jpeg", image)}))
    overhead = writer.finish().nbytes - num * len(image)
    low, high = {
        "tar": (1300, 2300),
        "hdf5": (33, 33 + 20_000 / num),
        "parquet": (45, 130 + 5_000 / num),
        "tfrecord": (150, 185),
    }[target.container]
    assert low * num <= overhead <= high * num


def test_the_layout_of_a_terabyte_takes_no_memory_for_it() -> None:
    """HDF5 writes around the data; the data themselves are never in memory."""
    offsets = {"image": np.array([0, 10**12]), "mask": np.array([0, 10**11])}
    layout = lay_out(offsets, labels=np.zeros(1, np.int64), keys=[b"0"], sizes=np.ones((1, 2), np.int32), pixels=None)
    assert sum(len(data) for _, data in layout.pieces) < 50_000
    assert layout.data_offsets["image"] == DATA_START
    assert layout.data_offsets["mask"] >= DATA_START + 10**12
    data_spans = [(layout.data_offsets[name], ends[-1]) for name, ends in offsets.items()]
    for at, piece in layout.pieces:
        assert all(at + len(piece) <= start or at >= start + nbytes for start, nbytes in data_spans)


@pytest.mark.parametrize("name", ["a", "b"])
def test_pixels_are_an_array_under_any_name_of_the_file(tmp_path: Path, name: str) -> None:
    """Where all images are raw and of one size; in a renamed file too."""
    arrays = [np.full((5, 6, 3), number, np.uint8) for number in range(NUM)]
    writer = TARGETS["hdf5"].open_shard(tmp_path / "a", fields=MANY[:1])
    for number, array in enumerate(arrays):
        writer.append(StoredSample(number, b"", NO_LABEL, (5, 6), {"image": StoredField("npy", npy(array))}))
    writer.finish()
    (tmp_path / "a").rename(tmp_path / name)
    with h5py.File(tmp_path / name) as file:
        assert file["image/pixels"].shape == (NUM, 5, 6, 3)
        assert np.array_equal(file["image/pixels"][3], arrays[3])
        assert np.array_equal(file["image/pixels"][2:5, 1:, ::2], np.stack(arrays)[2:5, 1:, ::2])


def test_pixels_of_several_sizes_are_no_array(tmp_path: Path) -> None:
    writer = TARGETS["hdf5"].open_shard(tmp_path / "a", fields=MANY[:1])
    for height in (3, 4):
        image = StoredField("npy", npy(np.zeros((height, 6, 3), np.uint8)))
        writer.append(StoredSample(height, b"", NO_LABEL, (height, 6), {"image": image}))
    writer.finish()
    with h5py.File(tmp_path / "a") as file:
        assert set(file["image"]) == {"data", "offsets"}
