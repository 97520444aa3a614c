"""Manifests, sidecars and the index over them: what was written comes back, damage is named."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures import OF_SAMPLES, quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.stored import prefixed
from datapipe.core import atomic
from datapipe.errors import DatapipeError, FormatError, MissingDataError, UnfinishedError
from datapipe.index.manifest import (
    BUILDING_NAME,
    MANIFEST_NAME,
    Manifest,
    ShardInfo,
    read_manifest,
    refuse_unfinished,
    write_manifest,
)
from datapipe.index.open_sidecars import Sidecar
from datapipe.index.sample_index import SampleIndex
from datapipe.index.sidecar import SIDECAR_SUFFIX, FieldColumn, FieldExtent, SidecarRows, write_sidecar
from datapipe.order.sample_order import Permutation

FIELDS = (FieldSpec("image", FieldKind.IMAGE), FieldSpec("label", FieldKind.LABEL))


def rows_of(ids: list[int]) -> SidecarRows:
    """Rows whose every value follows from the id."""
    rows = SidecarRows(("image", "label"))
    for sample in ids:
        image = FieldExtent("jpeg", sample * 1000, sample + 10, sample * 3)
        label = FieldExtent("cls", sample * 1000 + 500, 1, None)
        rows.append(
            id=sample,
            key=b"key-%d" % sample,
            source=b"src/\xff%d.jpg" % sample,
            label=sample % 7,
            size=(sample + 1, sample + 2),
            extents={"image": image, "label": label},
        )
    return rows


def put_before_images(rows: SidecarRows, prefix: bytes) -> None:
    extents = rows.extents["image"]
    offset, nbytes = (np.array([getattr(one, name) for one in extents], np.int64) for name in ("offset", "nbytes"))
    rows.columns["image"] = FieldColumn(offset, nbytes, prefix)


def make_dataset(
    directory: Path, slots_per_shard: list[int], *, skipped: set[int] = frozenset(), key: int | None = None
) -> Manifest:
    """A dataset without data: sidecars and manifest of shards with so many slots each, some slots left out."""
    num_slots = sum(slots_per_shard)
    permutation = Permutation(num_slots, key) if key is not None else None
    shards, first = [], 0
    for number, num in enumerate(slots_per_shard):
        slots = [slot for slot in range(first, first + num) if slot not in skipped]
        ids = slots if permutation is None else permutation(np.array(slots, np.int64)).tolist()
        name = f"s-{number}.tar"
        digest = write_sidecar(directory / (name + SIDECAR_SUFFIX), rows_of(ids), name)
        left_out = tuple(slot for slot in range(first, first + num) if slot in skipped)
        shards.append(ShardInfo(name, len(slots), 1 << 20, first, num, "ab" * 32, digest, left_out))
        first += num
    manifest = Manifest("tar", FIELDS, tuple(shards), ("a", "b"), {"a": 0, "b": 1}, key, (4, 5), {"to": "webdataset"})
    write_manifest(directory, manifest)
    return manifest


def open_dataset(directory: Path, **changes: Any) -> SampleIndex:
    return SampleIndex(read_manifest(directory), data_directory=directory, sidecar_directory=directory, **changes)


def without_digests(directory: Path) -> SampleIndex:
    """The dataset of an attacker who leaves out the hashes of its sidecars."""
    manifest = read_manifest(directory)
    shards = tuple(dataclasses.replace(shard, index_sha256="") for shard in manifest.shards)
    manifest = dataclasses.replace(manifest, shards=shards)
    return SampleIndex(manifest, data_directory=directory, sidecar_directory=directory)


# -- sidecars -------------------------------------------------------------------------------------


def test_a_sidecar_gives_back_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.index.arrow"
    write_sidecar(path, rows_of([5, 3, 9]), "x.tar")
    sidecar = Sidecar(path)
    assert (sidecar.num_samples, sidecar.field_names) == (3, ("image", "label"))
    assert sidecar.ids.tolist() == [5, 3, 9]
    assert sidecar.labels.tolist() == [5, 3, 2]
    assert (sidecar.heights.tolist(), sidecar.widths.tolist()) == ([6, 4, 10], [7, 5, 11])
    assert sidecar.offsets("image").tolist() == [5000, 3000, 9000]
    assert sidecar.nbytes("image").tolist() == [15, 13, 19]
    assert sidecar.crc32c("image").tolist() == [15, 9, 27]
    assert (sidecar.has_crc("image").tolist(), sidecar.has_crc("label").tolist()) == ([1, 1, 1], [0, 0, 0])
    assert [sidecar.key(row) for row in range(3)] == [b"key-5", b"key-3", b"key-9"]
    assert sidecar.source(1) == b"src/\xff3.jpg"
    assert sidecar.encoding("label", 2) == "cls"


def test_an_empty_sidecar(tmp_path: Path) -> None:
    path = tmp_path / "x.index.arrow"
    write_sidecar(path, rows_of([]), "x.tar")
    sidecar = Sidecar(path)
    assert (sidecar.num_samples, len(sidecar.offsets("image"))) == (0, 0)


def test_what_belongs_before_the_bytes_is_looked_up_with_them(tmp_path: Path) -> None:
    """For the fields and shards that have something: here the second shard's images."""
    manifest = make_dataset(tmp_path, [3, 2, 2])
    path = tmp_path / (manifest.shards[1].name + SIDECAR_SUFFIX)
    rows = rows_of([3, 4])
    put_before_images(rows, b"\x93NUMPY\0\n")
    write_sidecar(path, rows, manifest.shards[1].name)
    assert Sidecar(path).prefixes == {"image": b"\x93NUMPY\0\n"}
    head = prefixed(b"\x93NUMPY\0\n")
    index = without_digests(tmp_path)
    assert index.look_up(np.array([6, 4, 0, 3]), "image").extents.codecs == ["", head, "", head]
    assert index.look_up(np.array([6, 4]), "label").extents.codecs is None
    assert index.look_up(np.array([6, 0]), "image").extents.codecs is None


def test_pandas_is_left_alone(tmp_path: Path) -> None:
    """pyarrow imports it at many occasions where it is installed: 50 MB for each process that converts or loads."""
    write_sidecar(tmp_path / "x.index.arrow", rows_of([5, 3]), "x.tar")
    program = f"""
import sys
from pathlib import Path
from converters.writers import TARGETS, StoredField, StoredSample
from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD
from datapipe.index.open_sidecars import Sidecar
from datapipe.index.sidecar import write_sidecar
assert Sidecar(Path({str(tmp_path / "x.index.arrow")!r})).offsets("image").tolist() == [5000, 3000]
for name in {OF_SAMPLES!r}:
    writer = TARGETS[name].open_shard(Path({str(tmp_path)!r}) / name, fields=(IMAGE_FIELD, LABEL_FIELD), classes=("a",))
    writer.append(StoredSample(0, b"a.jpg", 0, (1, 1), {{"image": StoredField("jpeg", b"x")}}))
    write_sidecar(Path({str(tmp_path)!r}) / (name + ".index"), writer.finish().rows, name)
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).resolve().parents[2])


def test_a_prefix_that_is_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.index.arrow"
    rows = rows_of([3])
    put_before_images(rows, b"some bytes")
    write_sidecar(path, rows, "x.tar")
    path.write_bytes(path.read_bytes().replace(b"some bytes".hex().encode(), b"zz" * 10))
    with pytest.raises(FormatError, match=r"x\.index\.arrow: a prefix is not hexadecimal"):
        Sidecar(path)


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    first = write_sidecar(tmp_path / "1", rows_of([1, 2]), "x.tar")
    assert write_sidecar(tmp_path / "2", rows_of([1, 2]), "x.tar") == first
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert write_sidecar(tmp_path / "3", rows_of([2, 1]), "x.tar") != first


def test_a_missing_sidecar_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"x\.index\.arrow: index is missing"):
        Sidecar(tmp_path / "x.index.arrow")


@quick
@given(data=st.data())
def test_a_damaged_sidecar_is_named(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Cut anywhere, it does not open; what does open after a change has the right number of rows."""
    path = tmp_path_factory.getbasetemp() / "damaged.index.arrow"
    write_sidecar(path, rows_of(list(range(20))), "x.tar")
    contents = path.read_bytes()
    path.write_bytes(contents[: data.draw(st.integers(0, len(contents) - 1))])
    with pytest.raises(FormatError, match=r"damaged\.index\.arrow"):
        Sidecar(path)


def test_arrow_files_of_others_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    path = tmp_path / "x.arrow"
    with pa.ipc.new_file(str(path), pa.schema([("id", pa.int64())])) as writer:
        writer.write_table(pa.table({"id": [1]}))
    with pytest.raises(FormatError, match="not a datapipe index"):
        Sidecar(path)


# -- manifests ------------------------------------------------------------------------------------


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    manifest = make_dataset(tmp_path, [3, 4], skipped={1, 5}, key=8)
    assert read_manifest(tmp_path) == manifest
    assert (manifest.num_samples, manifest.num_slots) == (5, 7)


def test_an_unfinished_directory_is_refused_first(tmp_path: Path) -> None:
    make_dataset(tmp_path, [3])
    refuse_unfinished(tmp_path)
    (tmp_path / BUILDING_NAME).mkdir()
    for read in (read_manifest, refuse_unfinished):
        with pytest.raises(UnfinishedError, match="unfinished"):
            read(tmp_path)


def test_no_manifest_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"no dataset\.json; is this a converted dataset"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"3", b"null", b'"x"', b"{}", b'{"version": 2}', b'{"version": 1}', b"\xff\xfe"]
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(text)
    with pytest.raises(FormatError, match=r"dataset\.json"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["../x.tar", "/etc/passwd", "", ".", ".."])
def test_shards_outside_the_directory_are_refused(tmp_path: Path, name: str) -> None:
    value = make_dataset(tmp_path, [3]).to_json()
    value["shards"][0]["name"] = name
    with pytest.raises(FormatError, match="leaves the directory"):
        Manifest.from_json(json.loads(json.dumps(value)), "dataset.json")


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in _places(child, (*path, key)))]


def _refusal(value: Any, directory: Path) -> str | None:
    """Why this is no manifest, or None. Anything but a FormatError is raised."""
    try:
        manifest = Manifest.from_json(value, "dataset.json")
        assert isinstance(manifest.fingerprint, str)
        SampleIndex(manifest, data_directory=directory, sidecar_directory=directory)
    except FormatError as exc:
        return str(exc)
    return None


def test_any_wrong_value_in_a_manifest_is_a_format_error(tmp_path: Path) -> None:
    """Every value of it dropped, or replaced by one of another type."""
    whole = json.loads(json.dumps(make_dataset(tmp_path, [3, 4], skipped={1}).to_json()))
    places = [place for place in _places(whole) if place and place[0] != "options"]
    assert len(places) > 30
    num_refused = 0
    for place in places:
        for change in ("drop", None, "x", 17, 1.5, [], {}, True):
            value = copy.deepcopy(whole)
            target = value
            for key in place[:-1]:
                target = target[key]
            if change == "drop":
                del target[place[-1]]
            else:
                target[place[-1]] = change
            reason = _refusal(value, tmp_path)
            assert reason is None or "dataset.json" in reason, f"{place} = {change!r}: {reason}"
            num_refused += reason is not None
    assert num_refused > len(places) * 4


def test_fingerprints_follow_contents_only(tmp_path: Path) -> None:
    base = make_dataset(tmp_path, [3, 4], key=8).to_json()

    def fingerprint(**changes: Any) -> str:
        value = copy.deepcopy(base)
        value["shards"][0].update(changes)
        first = value["shards"][0]
        first["skipped"] = list(range(first["num_samples"], first["num_slots"]))
        value["num_samples"] = sum(shard["num_samples"] for shard in value["shards"])
        return Manifest.from_json(json.loads(json.dumps(value)), "x").fingerprint

    same = fingerprint()
    assert fingerprint(index_sha256="ff") == same, "of converted shards the bytes say all"
    others = [
        fingerprint(name="b.tar"),
        fingerprint(num_samples=2),
        fingerprint(nbytes=1),
        fingerprint(sha256="cd"),
    ]
    assert len({same, *others}) == 5
    assert fingerprint(mtime_ns=1) == same, "copies of shards on several nodes are one dataset"
    base["options"] = {"encode": "jpeg:90"}
    assert fingerprint() == same


# -- the index ------------------------------------------------------------------------------------


@quick
@given(
    slots=st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(lambda s: sum(s) > 0),
    key=st.none() | st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_every_id_is_found_wherever_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, slots: list[int], key: int | None, data: st.DataObject
) -> None:
    """Shards of any size, some empty; shuffled writing; samples left out anywhere."""
    directory = tmp_path_factory.mktemp("d")
    num_slots = sum(slots)
    skipped = set(data.draw(st.sets(st.integers(0, num_slots - 1), max_size=num_slots - 1)))
    make_dataset(directory, slots, skipped=skipped, key=key)
    index = open_dataset(directory)
    missing = skipped if key is None else set(Permutation(num_slots, key)(np.array(sorted(skipped), np.int64)).tolist())
    expected = sorted(set(range(num_slots)) - missing)
    ids = index.ids(np.arange(len(index)))
    assert ids.tolist() == expected
    entries = index.look_up(ids[::-1], "image")
    assert entries.extents.offset.tolist() == [sample * 1000 for sample in expected[::-1]]
    assert entries.extents.crc32c.tolist() == [sample * 3 for sample in expected[::-1]]
    assert entries.labels.tolist() == [sample % 7 for sample in expected[::-1]]
    assert index.labels().tolist() == [sample % 7 for sample in expected]
    assert [index.describe(sample).key for sample in expected] == [b"key-%d" % sample for sample in expected]


def test_few_sidecars_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.index.open_sidecars.MAX_OPEN_SIDECARS", 3)
    make_dataset(tmp_path, [1] * 10)
    index = open_dataset(tmp_path)
    for sample in [*range(10), *range(10)]:
        assert index.look_up(np.array([sample]), "image").labels.tolist() == [sample % 7]
    assert len(index._sidecars._open) == 3


def test_a_sidecar_of_another_shard_is_refused(tmp_path: Path) -> None:
    """Fewer rows than the manifest says: an error that names the file, not an IndexError in mid-epoch."""
    make_dataset(tmp_path, [5, 5])
    write_sidecar(tmp_path / f"s-1.tar{SIDECAR_SUFFIX}", rows_of([5, 6]), "s-1.tar")
    with pytest.raises(FormatError, match=r"s-1\.tar\.index\.arrow: differs from what was written"):
        open_dataset(tmp_path).look_up(np.array([9]), "image")
    index = without_digests(tmp_path)
    with pytest.raises(FormatError, match=r"s-1\.tar\.index\.arrow: .*2 samples.* 5"):
        index.look_up(np.array([9]), "image")


def test_an_index_of_many_shards_opens_none(tmp_path: Path) -> None:
    shards = tuple(ShardInfo(f"s-{n}.tar", 5000, 1, n * 5000, 5000) for n in range(2000))
    index = SampleIndex(Manifest("tar", FIELDS, shards, permutation_key=1), data_directory=tmp_path, sidecar_directory=tmp_path)
    assert len(index) == 10_000_000
    assert len(pickle.dumps(index)) < 500_000
    with pytest.raises(MissingDataError):
        index.look_up(np.array([17]), "image")


def test_positions_out_of_range_are_refused(tmp_path: Path) -> None:
    make_dataset(tmp_path, [5])
    for positions in ([5], [-1], [0, 99]):
        with pytest.raises(DatapipeError, match="beyond the dataset's 5 samples"):
            open_dataset(tmp_path).ids(np.array(positions))


# -- atomic files ---------------------------------------------------------------------------------


def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    atomic.write_json(path, {"a": 1})

    def interrupted() -> None:
        with atomic.atomic_writer(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert json.loads(path.read_bytes()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_names_that_are_not_utf_8_are_written(tmp_path: Path) -> None:
    name = b"\xff.jpg".decode(errors="surrogateescape")
    atomic.write_json(tmp_path / "x.json", {name: "日本"})
    assert json.loads((tmp_path / "x.json").read_bytes()) == {name: "日本"}


def test_moving_replaces(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"new")
    (tmp_path / "b").write_bytes(b"old")
    atomic.move(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"new"
    assert not (tmp_path / "a").exists()
