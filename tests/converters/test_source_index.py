"""Whatever the loader opens as a source: labels, names and fields kept, damage told, row groups spooled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixtures import flip_bit
from index_trees import hugging_face
from reading import converted, field_of, kinds_of, labels_of, skipping, sources_of
from source_trees import NUM, image, put
from trees import contents, make_tree

from converters import ConvertOptions, OnError, Part, Resize, Split, convert, preview
from datapipe import DataLoader, Images
from datapipe.codecs.probe import probe
from datapipe.containers.form import FieldChoice
from datapipe.errors import DecodeError, FormatError, IntegrityError, MissingDataError, OptionError
from datapipe.index.manifest import read_manifest
from datapipe.transforms import CenterCrop


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": pa.array([image(row) for row in range(4)], pa.binary()), **columns}), path, **options)
    return path


@pytest.mark.parametrize("to", ["webdataset", "hdf5", "parquet", "tfrecord"])
def test_a_set_of_ours_again_is_what_its_source_gives(tmp_path: Path, to: str) -> None:
    """Other shards, another format, another size or a split: the same files as from the folder, but for the manifest."""
    folder = make_tree(tmp_path / "folder")
    first = converted(folder, tmp_path / "first", to=to, seed=3)
    for options in ({"shard_nbytes": 9_000}, {"resize": Resize.parse("shorter:20")}, {"split": Split.parse_all("a=0.5,b=0.5")}):
        direct, again = tmp_path / "direct", tmp_path / "again"
        convert(ConvertOptions(folder, direct, num_workers=1, overwrite=True, **options))  # type: ignore[arg-type]
        convert(ConvertOptions(first, again, num_workers=1, overwrite=True, **options))  # type: ignore[arg-type]
        of_first, of_second = (
            {name: digest for name, digest in contents(path).items() if not name.endswith("dataset.json")}
            for path in (direct, again)
        )
        assert of_first == of_second


def test_the_manifest_names_where_it_came_from(tmp_path: Path) -> None:
    first = converted(make_tree(tmp_path / "folder"), tmp_path / "first", to="hdf5", shard_nbytes=9_000)
    second = converted(first, tmp_path / "second", to="parquet")
    moved = tmp_path / "elsewhere"
    second.rename(moved)
    third = read_manifest(converted(moved, tmp_path / "third"))
    was = read_manifest(first)
    assert read_manifest(first).made_from is None
    assert third.made_from is not None
    assert (third.made_from["container"], third.made_from["num_samples"]) == ("parquet", 24)
    before = third.made_from["made_from"]
    assert (before["container"], before["fingerprint"]) == ("hdf5", was.fingerprint)
    assert (before["files"], before["num_files"]) == ([was.shards[0].name, was.shards[-1].name], len(was.shards))
    assert before["options"]["shard_size"] == 9_000
    assert str(tmp_path) not in json.dumps(third.made_from)


def test_names_classes_and_ids_are_kept(tmp_path: Path) -> None:
    """Also of a set with gaps, where bad samples were left out: then the others move up."""
    folder = make_tree(tmp_path / "folder")
    put(folder / "class_0" / "img 3.jpg", b"bad")
    (folder / "empty").mkdir()
    first = converted(folder, tmp_path / "first", on_error=OnError.SKIP, shard_nbytes=9_000)
    second = converted(first, tmp_path / "second", to="tfrecord")
    assert sources_of(second) == sources_of(first)
    assert "class_0/img 3.jpg" not in sources_of(second)
    assert labels_of(second) == labels_of(first)
    assert read_manifest(second).classes == ("class_0", "class_1", "class_2", "empty")
    assert field_of(second, "image") == field_of(first, "image")


def test_a_damaged_field_is_a_bad_sample(tmp_path: Path) -> None:
    """By the checksums of what `convert` wrote."""
    first = converted(make_tree(tmp_path / "folder", num_classes=1), tmp_path / "first", seed=None)
    data = (first / "shard-000000.tar").read_bytes()
    place = data.index((tmp_path / "folder" / "class_0" / "img 2.jpg").read_bytes()) + 300
    flip_bit(first / "shard-000000.tar", place)
    reasons = skipping(first, tmp_path / "second")
    assert list(reasons) == ["class_0/img 2.jpg"]
    assert "'image': its bytes have the checksum" in reasons["class_0/img 2.jpg"]
    with pytest.raises(DecodeError, match="bad sample"):
        converted(first, tmp_path / "third")


def test_a_row_group_that_cannot_be_read(tmp_path: Path) -> None:
    """Its samples are bad, the others are not."""
    notes = [np.random.default_rng(row).bytes(2000).hex() for row in range(4)]
    options = {"compression": "gzip", "row_group_size": 2, "use_dictionary": False, "write_statistics": False}
    path = parquet(tmp_path / "in" / "x.parquet", {"note": notes}, **options)
    column = pq.ParquetFile(path).metadata.row_group(1).column(1)
    start = column.data_page_offset
    convert(ConvertOptions(path, tmp_path / "whole", num_workers=1))  # indexed while it is whole
    flip_bit(path, start + column.total_compressed_size // 2)
    reasons = skipping(path, tmp_path / "out")
    assert list(reasons) == ["x.parquet/2", "x.parquet/3"]
    assert all("'note'" in reason for reason in reasons.values())
    assert field_of(tmp_path / "out", "note") == [note.encode() for note in notes[:2]]


def test_a_row_without_a_value_is_a_bad_sample(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", {"note": ["a", None, "c", "d"], "label": pa.array([1, 1, None, 0])})
    reasons = skipping(path, tmp_path / "out")
    assert {name: reason.partition(";")[0] for name, reason in reasons.items()} == {
        "x.parquet/1": "field 'note': no value: null",
        "x.parquet/2": "has no label (has: image, note), which others have",
    }
    assert labels_of(tmp_path / "out") == [1, 0]


@pytest.mark.parametrize("to", ["webdataset", "hdf5", "parquet", "tfrecord"])
def test_a_label_that_is_null_is_none_and_minus_one_is_a_label(tmp_path: Path, to: str) -> None:
    """As test sets without labels have it. In place and converted."""
    path = parquet(tmp_path / "x.parquet", {"label": pa.array([1, None, -1, 0])})
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": False, "num_workers": 0}
    ((images, labels),) = DataLoader(path, on_error="skip", transform=[CenterCrop(8)], **settings)
    assert (len(images), labels.tolist()) == (3, [1, -1, 0])
    with pytest.raises(DecodeError, match=r"x\.parquet: sample 1 .*: its label is null; leave labels out with fields="):
        list(DataLoader(path, transform=[CenterCrop(8)], **settings))
    with pytest.raises(DecodeError, match="its label is null"):
        Images(path)[1]
    assert Images(path).targets == [1, -1, -1, 0]
    ((images,),) = DataLoader(Images(path, fields=["image"]), transform=[CenterCrop(8)], **settings)
    assert len(images) == 4
    reasons = skipping(path, tmp_path / "out", to=to)
    assert reasons == {"x.parquet/1": "has no label (has: image), which others have"}
    assert labels_of(tmp_path / "out") == [1, -1, 0]
    for path in [tmp_path / "out" / "dataset.json", *(tmp_path / "out").glob("*.index.arrow")]:
        path.unlink()  # the shards alone say the same
    assert sorted(labels_of(tmp_path / "out")) == [-1, 0, 1]


def test_a_column_is_made_the_label(tmp_path: Path) -> None:
    """Names are sorted; numbers stay; what is no class is a bad sample; the table's own label may be left out."""
    columns = {"kind": ["dog", "cat", "dog", "ant"], "number": pa.array([4, 0, 0, 9]), "label": pa.array([0, 1, 0, 1])}
    path = parquet(tmp_path / "x.parquet", columns)
    named = converted(path, tmp_path / "named", fields=(FieldChoice("kind", "label"), FieldChoice("number", "none")))
    assert (labels_of(named), read_manifest(named).classes) == ([2, 1, 2, 0], ("ant", "cat", "dog"))
    assert kinds_of(named) == {"image": "image", "label": "label"}
    numbered = converted(path, tmp_path / "numbered", fields=(FieldChoice("number", "label"),))
    assert (labels_of(numbered), read_manifest(numbered).classes) == ([4, 0, 0, 9], None)
    bare = converted(path, tmp_path / "bare", fields=(FieldChoice("label", "none"),))
    assert kinds_of(bare) == {"image": "image", "kind": "text", "number": "array"}
    broken = parquet(tmp_path / "y.parquet", {"score": [0.5, 1, 2, 3]})
    with pytest.raises(DecodeError, match=r"4 of 4 samples cannot be read: .*field 'score': is 0\.5, not a class"):
        converted(broken, tmp_path / "broken", fields=(FieldChoice("score", "label"),))


def test_a_class_map_renumbers(tmp_path: Path) -> None:
    source = hugging_face(tmp_path / "in").source
    by_name = put(tmp_path / "map.json", json.dumps({"cat": 0, "bee": 1, "ant": 2}))
    out = converted(source, tmp_path / "out", class_map=by_name)
    assert labels_of(out) == [2 - row % 3 for row in range(NUM)]
    assert read_manifest(out).classes == ("cat", "bee", "ant")
    with pytest.raises(OptionError, match="has no index for class 'ant'"):
        converted(source, tmp_path / "no", class_map=put(tmp_path / "few.json", '{"cat": 0}'))


def test_choices_that_are_not_possible(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", {"note": ["a"] * 4, "other": ["b"] * 4})
    for fields, said in (
        ((FieldChoice("nota", "text"),), r"has no 'nota' \(has: image, note, other\)"),
        ((FieldChoice("image", "label"),), "holds image, not classes"),
        ((FieldChoice("note", "label"), FieldChoice("other", "label")), "both labels"),
        ((FieldChoice("note", "int"),), "not possible here"),
    ):
        with pytest.raises(OptionError, match=said):
            converted(path, tmp_path / "out", fields=fields)
    with pytest.raises(OptionError, match="has no label"):
        converted(path, tmp_path / "out", class_map=put(tmp_path / "map.json", '{"a": 0}'))


def test_what_is_no_such_file_is_refused_in_one_line(tmp_path: Path) -> None:
    for name in ("x.parquet", "x.h5", "x.arrow", "x.tfrecord"):
        path = put(tmp_path / name, b"nothing of the kind, but some bytes")
        with pytest.raises(FormatError) as raised:
            converted(path, tmp_path / "out")
        assert name in str(raised.value)
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "out").exists()
    with pytest.raises(MissingDataError, match="no file matches"):
        converted(tmp_path / "*.hdf5", tmp_path / "out")


def test_spooled_values_are_written_once(tmp_path: Path) -> None:
    """A run that goes on finds them; one whose spool is lost makes them again; a changed one is named."""
    source, out = hugging_face(tmp_path / "in").source, tmp_path / "out"
    reference = converted(source, tmp_path / "reference", shard_nbytes=5_000)
    spool = out / ".building" / "spool"
    options = ConvertOptions(source, out, shard_nbytes=5_000, num_workers=1)
    convert(ConvertOptions(source, out, shard_nbytes=5_000, num_workers=1, part=Part(1, 2)))
    files = {path: path.stat().st_ino for path in spool.iterdir()}
    assert len(files) == 2
    convert(ConvertOptions(source, out, shard_nbytes=5_000, num_workers=1, part=Part(1, 2)))
    assert {path: path.stat().st_ino for path in spool.iterdir()} == files
    first = next(iter(files))
    status = first.stat()
    data = bytearray(first.read_bytes())
    data[:] = bytes(len(data))
    first.write_bytes(data)
    os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(DecodeError, match="have the checksum"):
        convert(options)
    first.unlink()
    convert(options)
    assert contents(out) == contents(reference)
    assert not spool.exists()


def test_a_preview_writes_nothing(tmp_path: Path) -> None:
    source = hugging_face(tmp_path / "in").source
    shown = preview(ConvertOptions(source, tmp_path / "out"))
    assert shown.num_classes == 3
    assert dict(shown.fields) == {"image": "image", "caption": "text", "score": "array", "tags": "array", "label": "label"}
    assert not (tmp_path / "out").exists()


def test_pixels_that_change_size(tmp_path: Path) -> None:
    """Arrays of pixels are images: they are resized and encoded as any."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["image"] = np.random.default_rng(0).integers(0, 255, (3, 40, 60, 3), dtype=np.uint8)
    out = converted(tmp_path / "x.h5", tmp_path / "out", resize=Resize.parse("shorter:20"))
    assert [probe(data)[:3] for data in field_of(out, "image")] == [("jpeg", 20, 30)] * 3


def test_a_shard_that_changed_since_it_was_indexed(tmp_path: Path) -> None:
    """Of our own sets: their sizes are in the manifest."""
    first = converted(make_tree(tmp_path / "folder"), tmp_path / "first")
    with (first / "shard-000000.tar").open("ab") as file:
        file.write(b"x")
    with pytest.raises(IntegrityError, match=r"shard-000000\.tar: has \d+ bytes, its manifest says \d+"):
        converted(first, tmp_path / "second")
