"""The TFRecord scanner against protobuf and another writer, and against malformed files."""

from __future__ import annotations

import contextlib
import gzip
import logging
import os
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures import encode, entry_of, jpeg, npy, quick
from hypothesis import given
from hypothesis import strategies as st
from tfrecord import example_pb2
from tfrecord.writer import TFRecordWriter

from datapipe.codecs.field_values import NO_LABEL, FieldKind, value_of
from datapipe.containers.tfrecord.example import parse_example
from datapipe.containers.tfrecord.layout import (
    dali_index,
    encode_example,
    encode_int,
    frame_head,
    frame_tail,
    mask,
    masked_crc32c,
)
from datapipe.containers.tfrecord.scanner import index_shard, scan_frames
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.sidecar import SidecarRows
from datapipe.opening.samples import open_index

IMAGE = b"\xff\xd8\xff not looked at \xff\xd9"
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.tuples(st.just("bytes"), st.lists(st.binary(max_size=300), max_size=4)),
    st.tuples(st.just("int64"), st.lists(INT64, max_size=4)),
    st.tuples(st.just("float"), st.lists(st.floats(width=32, allow_nan=False), max_size=4)),
)


def message(features: dict[str, tuple[str, list[Any]]]) -> example_pb2.Example:
    """The Example as protobuf makes it."""
    example = example_pb2.Example()
    example.features.SetInParent()
    for name, (kind, values) in features.items():
        getattr(example.features.feature[name], f"{kind}_list").value.extend(values)
    return example


def typed(value: bytes | int) -> tuple[str, list[Any]]:
    return ("int64" if isinstance(value, int) else "bytes", [value])


def example(**features: bytes | int | list[Any]) -> bytes:
    """A serialised Example; `__` stands for `/` in names."""
    spelled: dict[str, tuple[str, list[Any]]] = {}
    for name, value in features.items():
        if isinstance(value, list):
            kind = "bytes" if value and isinstance(value[0], bytes) else "float" if float in map(type, value) else "int64"
            spelled[name.replace("__", "/")] = (kind, value)
        else:
            spelled[name.replace("__", "/")] = typed(value)
    return bytes(message(spelled).SerializeToString(deterministic=True))


def frames(*examples: bytes) -> bytes:
    return b"".join(frame_head(len(data)) + data + frame_tail([data]) for data in examples)


def shard(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(data)
    return path


# -- the format -----------------------------------------------------------------------------------


@quick
@given(st.dictionaries(NAMES, st.one_of(st.binary(max_size=300), INT64), max_size=8))
def test_examples_are_protobufs_byte_for_byte(features: dict[str, bytes | int]) -> None:
    encoded = encode_example(features)
    data = b"".join(encoded.parts)
    one_by_one = [message({name: typed(features[name])}).features.SerializeToString() for name in sorted(features)]
    body = b"".join(one_by_one)
    assert data == b"\x0a" + encode_int(len(body)) + body
    assert example_pb2.Example.FromString(data) == message({name: typed(value) for name, value in features.items()})
    assert encoded.nbytes == len(data)
    for name, value in features.items():
        offset, nbytes = encoded.extents[name]
        assert data[offset : offset + nbytes] == (encode_int(value) if isinstance(value, int) else value)


@quick
@given(st.dictionaries(NAMES, VALUES, max_size=6), st.binary(max_size=5))
def test_finds_in_protobufs_bytes_what_was_put_in(features: dict[str, tuple[str, list[Any]]], before: bytes) -> None:
    data = bytes(message(features).SerializeToString())
    found = parse_example(before + data + b"behind", len(before), len(data), "x")
    assert found.keys() == features.keys()
    for name, (kind, values) in features.items():
        feature = found[name]
        assert feature.kind == kind
        assert feature.num_values == min(len(values), 2)
        if kind == "float":
            piece = (before + data)[feature.offset : feature.offset + feature.nbytes]
            assert struct.unpack(f"<{len(values)}f", piece) == tuple(values)
        elif values and kind == "bytes":
            assert (before + data)[feature.offset : feature.offset + feature.nbytes] == values[0]
        elif values:
            assert feature.value == values[0]


def test_integers_that_are_not_packed() -> None:
    """As proto2 writers make them: a field for each."""
    lists = {"none": b"", "one": b"\x08\x2a", "several": b"\x08\x2a\x08\x01", "empty, packed": b"\x0a\x00"}
    for name, data in lists.items():
        feature = b"\x1a" + bytes([len(data)]) + data
        entry = b"\x0a\x01x\x12" + bytes([len(feature)]) + feature
        features = b"\x0a" + bytes([len(entry)]) + entry
        found = parse_example(b"\x0a" + bytes([len(features)]) + features, 0, len(features) + 2, "x")["x"]
        assert (found.kind, found.num_values) == ("int64", {"one": 1, "several": 2}.get(name, 0))
        assert found.value == (42 if found.num_values else 0)


def test_frames_are_those_of_another_writer(tmp_path: Path) -> None:
    images = [jpeg(number) for number in range(3)]
    writer = TFRecordWriter(str(tmp_path / "theirs"))
    for number, image in enumerate(images):
        writer.write({"image/encoded": (image, "byte"), "label": (number, "int")})
    writer.close()
    theirs = (tmp_path / "theirs").read_bytes()
    found = list(scan_frames(tmp_path / "theirs"))
    assert theirs == b"".join(frames(theirs[start + 12 : start + nbytes - 4]) for start, nbytes in found)
    rows, _ = index_shard(tmp_path / "theirs")
    assert rows.labels == [0, 1, 2]
    assert [value_in(tmp_path / "theirs", rows, "image", row) for row in range(3)] == images


def test_masks() -> None:
    """The example in TensorFlow's own test of crc32c: the mask changes a checksum, and is a rotation and a sum."""
    assert mask(0) == 0xA282EAD8
    assert mask(0x8000) == 0xA282EAD9
    assert mask(1) == (0x20000 + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crc32c(b"123456789") == mask(0xE3069283)  # the check value of CRC-32C


def test_dali_index() -> None:
    assert dali_index([(0, 20), (20, 31)]) == b"0 20\n20 31\n"


# -- which features -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "image", "label"),
    [
        ({"image__encoded": IMAGE, "image__class__label": 7, "label": 3}, IMAGE, 7),
        ({"image": IMAGE, "label": 3, "thumbnail": b"\xff\xd8\xff"}, IMAGE, 3),
        ({"image__encoded": b"no magic, but named so", "other": IMAGE}, b"no magic, but named so", None),
        ({"x": b"text", "jpg": IMAGE, "n": [1, 2], "f": [0.5], "several": [IMAGE, IMAGE]}, IMAGE, None),
        ({"image": IMAGE, "label": -1}, IMAGE, -1),  # TFDS's unlabelled test sets
        ({"image": IMAGE, "label": 2**62}, IMAGE, 2**62),
    ],
)
def test_features_are_found(features: dict[str, Any], image: bytes, label: int | None, tmp_path: Path) -> None:
    path = shard(tmp_path, frames(example(**features), example(**features)))
    rows, fields = index_shard(path)
    assert len(rows) == 2
    assert [field.name for field in fields][: 1 if label is None else 2] == (["image"] if label is None else ["image", "label"])
    assert rows.labels == [NO_LABEL if label is None else label] * 2
    for row in range(2):
        assert value_in(path, rows, "image", row) == image
        assert label is None or value_in(path, rows, "label", row) == encode_int(label)


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ({"a": IMAGE, "b": IMAGE, "label": 1}, r"2 features hold images \(a, b\).*\(has: a, b, label\)"),
        ({"a": b"text", "label": 1}, r"no feature holds an encoded image; looked for .*\(has: a, label\)"),
        ({"several": [IMAGE, IMAGE]}, "no feature holds an encoded image"),
        ({"image__encoded": [IMAGE, IMAGE]}, "feature 'image/encoded' holds several bytes values, expected one"),
        ({}, r"no feature holds an encoded image.*\(has: none\)"),
        ({"image": IMAGE, "label": -2}, "label is -2, expected a class number"),
    ],
)
def test_what_cannot_be_told_is_said_naming_the_features(features: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=rf"x\.tfrecord: sample 0: {said}"):
        index_shard(shard(tmp_path, frames(example(**features))))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"image": IMAGE}, r"no feature 'label' \(has: image\), unlike the samples before it"),
        ({"image": IMAGE, "label": b"cat"}, "'label' holds one bytes value, expected one value of type int64"),
        ({"image": IMAGE, "label": [1, 2]}, "'label' holds several int64 values"),
        ({"image": IMAGE, "label": [0.5]}, "'label' holds floats"),
        ({"label": 3}, r"no feature 'image' \(has: label\)"),
        ({"image": 3, "label": 3}, "'image' holds one int64 value, expected one value of type bytes"),
    ],
)
def test_samples_unlike_the_first_are_refused(second: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=rf"sample 1: .*{said}"):
        index_shard(shard(tmp_path, frames(example(image=IMAGE, label=3), example(**second))))


@pytest.mark.parametrize("label", [b"cat", [1, 2], [0.5]])
def test_labels_that_are_no_integers_are_left_out_and_said(label: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rows, fields = index_shard(shard(tmp_path, frames(example(image=IMAGE, label=label))))
    assert "label" not in {field.name for field in fields}
    assert set(rows.labels) == {NO_LABEL}
    assert "'label' is no single integer" in caplog.text


@pytest.mark.parametrize("name", ["__key__", "image/filename", "tfds_id"])
def test_samples_are_called_by_what_names_them(name: str, tmp_path: Path) -> None:
    data = message({"image": ("bytes", [IMAGE]), name: ("bytes", [b"dir/a.jpg"])}).SerializeToString()
    shard(tmp_path, frames(bytes(data), example(image=IMAGE)))
    index = open_index(tmp_path)
    assert [index.describe(sample).key for sample in range(2)] == [b"dir/a.jpg", b"1"]
    assert entry_of(index, 0)[2] == len(IMAGE)


def value_in(path: Path, rows: SidecarRows, name: str, row: int) -> bytes:
    """The bytes as they are read: after the prefix."""
    column = rows.columns[name]
    return column.prefix + path.read_bytes()[column.offset[row] : column.offset[row] + column.nbytes[row]]


def test_further_features_are_fields(tmp_path: Path) -> None:
    """By what their names say, else by what the bytes begin as; floats of one number in all samples are arrays."""
    mask, array, labels = encode(np.zeros((4, 5), np.uint8), "PNG"), npy(np.arange(3.0)), npy(np.zeros((4, 5), np.int32))
    features = {
        "image__encoded": IMAGE, "image__class__label": 3, "image__format": b"jpeg", "image__height": 4, "image__width": 5,
        "image__class__text": b"cat", "caption": b"BM is how bitmaps begin, and texts", "meta_json": b"{}", "mask": mask,
        "depth": mask, "vector": array, "seg__labels": labels, "audio": b"RIFF", "embedding": [0.5, 1.5], "score": [2.0],
        "count": 7, "counts": [1, 2], "several": [b"a", b"b"], "Weird Näme!": b"x", "image__key__sha256": b"0" * 64,
    }  # fmt: skip
    path = shard(tmp_path, frames(*[example(**features)] * 3))
    rows, fields = index_shard(path)
    assert {spec.name: spec.kind.value for spec in fields} == {
        "image": "image", "label": "label", "image_class_text": "text", "caption": "text", "meta_json": "json", "mask": "mask",
        "depth": "image", "vector": "array", "seg_labels": "mask", "audio": "bytes", "embedding": "array", "score": "array",
        "weird_n_me": "bytes", "image_key_sha256": "bytes",
    }  # fmt: skip
    assert [spec.name for spec in fields][:2] == ["image", "label"]
    assert rows.unread == {"count": "integers", "counts": "integers", "several": "several values"}
    assert rows.lacking == {}
    assert value_in(path, rows, "mask", 2) == mask
    assert value_in(path, rows, "caption", 1) == features["caption"]
    for name, expected in (("embedding", [0.5, 1.5]), ("score", [2.0])):
        found = value_of(FieldKind.ARRAY, value_in(path, rows, name, 1))
        assert (found.dtype, found.tolist()) == (np.float32, expected)


def test_features_of_some_samples_are_counted(tmp_path: Path) -> None:
    some = {"text": b"hello", "x": [0.5], "y": [1.0, 2.0], "z": b"bytes"}
    others = {"y": [1.0], "z": [0.25]}
    rows, fields = index_shard(shard(tmp_path, frames(*(example(image=IMAGE, **more) for more in (some, others, {})))))
    assert [spec.name for spec in fields] == ["image"]
    assert rows.lacking == {"text": 2, "x": 2, "z": 2, "z_2": 2}
    assert rows.unread == {"y": "floats, of different numbers per sample"}


def test_names_that_would_be_one_are_told_apart(tmp_path: Path) -> None:
    _, fields = index_shard(
        shard(tmp_path, frames(example(image=IMAGE, **{"a b": b"1", "a__b": b"2", "a_b": b"3", "label": b"no"})))
    )
    assert [spec.name for spec in fields] == ["image", "a_b", "a_b_2", "a_b_3", "label_"]


def test_a_mask_beside_the_image_is_no_second_image(tmp_path: Path) -> None:
    rows, fields = index_shard(
        path := shard(tmp_path, frames(example(jpg=IMAGE, mask=encode(np.zeros((2, 3), np.uint8), "PNG"))))
    )
    assert [(spec.name, spec.kind) for spec in fields] == [("image", FieldKind.IMAGE), ("mask", FieldKind.MASK)]
    assert value_in(path, rows, "image", 0) == IMAGE


def test_floats_that_are_not_packed(tmp_path: Path) -> None:
    """As proto2 writers make them: one is in one piece, several are not."""
    one, two = b"\x0d" + struct.pack("<f", 0.5), b"\x0d" + struct.pack("<f", 0.5) + b"\x0d" + struct.pack("<f", 1.5)
    for data, num in ((b"", 0), (one, 1), (two, 2), (b"\x0a\x00", 0), (b"\x0a\x04" + one[1:] + one, 2), (b"\x0a\x03abc", 2)):
        feature = b"\x12" + bytes([len(data)]) + data
        entry = b"\x0a\x01x\x12" + bytes([len(feature)]) + feature
        features = b"\x0a" + bytes([len(entry)]) + entry
        message = b"\x0a" + bytes([len(features)]) + features
        found = parse_example(message, 0, len(message), "x")["x"]
        assert (found.kind, found.num_values) == ("float", num)
        assert message[found.offset : found.offset + found.nbytes] == (one[1:] if num == 1 else b"")
    for data in (b"\x0a\x09abc", b"\x08\x01", b"\x0a"):
        feature = b"\x12" + bytes([len(data)]) + data
        entry = b"\x0a\x01x\x12" + bytes([len(feature)]) + feature
        features = b"\x0a" + bytes([len(entry)]) + entry
        with pytest.raises(FormatError, match=r"not a tf\.train\.Example"):
            parse_example(b"\x0a" + bytes([len(features)]) + features, 0, len(features) + 2, "x")


# -- what a path may be ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a.tfrecord", "a.tfrecords", "set-train.tfrecord-00000-of-00002", "train-00000-of-00002", "a.tfrecord.1"]
)
def test_names_of_shards(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(frames(example(image=IMAGE)))
    for beside in ("a.tfrecord.idx", "a.idx", "features.json", "dataset_info.json", "._a.tfrecord", "a.tfrecord.json"):
        (tmp_path / beside).write_bytes(b"{}")
    assert len(open_index(tmp_path)) == len(open_index(tmp_path / name)) == len(open_index(f"{tmp_path}/*a*{name[-3:]}")) == 1


def test_shards_of_several_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(frames(example(image=IMAGE)))
    (tmp_path / "b.tar").write_bytes(bytes(1024))
    with pytest.raises(OptionError, match=r"may be several things, say which: --from tar \(.*\); or --from tfrecord \("):
        open_index(tmp_path)
    assert len(open_index(f"{tmp_path}/*.tfrecord")) == 1


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"gone\.tfrecord"):
        index_shard(tmp_path / "gone.tfrecord")


# -- damage ---------------------------------------------------------------------------------------

WHOLE = frames(*(example(image=IMAGE * 5, label=number) for number in range(3)))
FRAME = len(WHOLE) // 3


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty file"),
        (gzip.compress(WHOLE), r"compressed \(gzip\).*`gunzip < OLD > NEW`"),
        (zlib.compress(WHOLE), r"compressed \(zlib\).*without compression"),
        (bytes(100), "not a TFRecord"),
        (b"hello", "cut within the head of a frame at byte 0"),
        (b"PK\x03\x04" * 30, "not a TFRecord"),
        (struct.pack("<QI", 2**63, 0) + bytes(40), "not a TFRecord"),
        (frame_head(2**63) + bytes(40), r"reaches to 9223372036854775824, the file ends at 52: it was cut"),
        (WHOLE + struct.pack("<QI", 2**40, 7), "the length at byte .* does not fit its checksum"),
        (frames(b"\x0a\xff\xff\xff\xff\x0f"), r"not a tf\.train\.Example \(a length beyond the end\)"),
        (frames(b"\xff" * 30), r"not a tf\.train\.Example \(a number without an end\)"),
        (frames(b"\x12\x00"), r"not a tf\.train\.Example \(field 2 in it; a SequenceExample\?\)"),
        (frames(b"\x08\x01"), r"not a tf\.train\.Example \(wire type 0\)"),
    ],
    ids=["nothing", "gzip", "zlib", "zeros", "text", "zip", "long length", "longer than the file", "another length behind",
         "length inside", "endless number", "sequence", "another wire type"],
)  # fmt: skip
def test_what_is_no_tfrecord_is_refused(data: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=rf"x\.tfrecord: .*{said}"):
        index_shard(shard(tmp_path, data))


@pytest.mark.parametrize("stop", [FRAME + 5, FRAME + 12, FRAME + 40, 2 * FRAME - 1, 3 * FRAME - 1])
def test_a_cut_is_an_error(stop: int, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"cut"):
        index_shard(shard(tmp_path, WHOLE[:stop]))


@pytest.mark.parametrize("at", range(12))
def test_a_damaged_head_is_an_error(at: int, tmp_path: Path) -> None:
    damaged = bytearray(WHOLE)
    damaged[FRAME + at] ^= 0x11
    with pytest.raises(FormatError, match=f"length at byte {FRAME} does not fit its checksum: damaged"):
        index_shard(shard(tmp_path, bytes(damaged)))


@pytest.mark.nightly
def test_memory_does_not_follow_what_the_bytes_claim(tmp_path: Path) -> None:
    """A name of 50 MB, and a map of millions of features."""
    name = b"\x0a" + _long(50_000_000) + b"a" * 50_000_000
    entry = b"\x0a" + _long(len(name)) + name
    long_name = b"\x0a" + _long(len(entry)) + entry
    features = b"".join(b"\x0a\x06\x0a\x04" + b"%04x" % number for number in range(20_000))
    many = b"\x0a" + _long(len(features)) + features
    for data, said in ((long_name, "name of 50000000 bytes"), (many, "more than 10000 features")):
        path = shard(tmp_path, frames(data))
        tracemalloc.start()
        with pytest.raises(FormatError, match=said):
            index_shard(path)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
        tracemalloc.stop()


def _long(number: int) -> bytes:
    return encode_int(number)


@pytest.mark.parametrize("mend", [False, True], ids=["as it is", "checksums mended"])
@quick
@given(data=st.data())
def test_damage_raises_nothing_but_format_errors(
    mend: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bytes set, dropped or repeated; with lengths and their checksums made right again so that deeper checks are reached."""
    examples = [bytearray(example(image=IMAGE, label=number, x=[1, 2], y=[0.5], z=b"?")) for number in range(3)]
    whole = bytearray(frames(*map(bytes, examples)))
    for _ in range(data.draw(st.integers(1, 4))):
        target = examples[data.draw(st.integers(0, 2))] if mend else whole
        at = data.draw(st.integers(0, max(0, len(target) - 1)))
        change = data.draw(st.sampled_from(["set", "drop", "again", "cut"]))
        if change == "set" and target:
            target[at] = data.draw(st.sampled_from(b"\0\x0a\x12\x1a\x7f\x80\xff") | st.integers(0, 255))
        elif change == "drop":
            del target[at : at + data.draw(st.integers(1, 9))]
        elif change == "again":
            target[at:at] = target[at : at + data.draw(st.integers(1, 9))]
        else:
            del target[at:]
    damaged = frames(*map(bytes, examples)) if mend else bytes(whole)
    path = tmp_path_factory.getbasetemp() / f"fuzz-{os.getpid()}.tfrecord"
    path.write_bytes(damaged)
    with contextlib.suppress(FormatError):
        rows, _ = index_shard(path)
        assert len(rows) > 0
        for extent in (extent for extents in rows.extents.values() for extent in extents):
            assert 0 <= extent.offset <= extent.offset + extent.nbytes <= len(damaged)
