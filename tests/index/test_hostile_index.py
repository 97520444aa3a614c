"""Sidecars and manifests as no program writes them: refused when they are opened, by a FormatError that names the file."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.core import arrow_maps
from datapipe.errors import FormatError
from datapipe.index.manifest import Manifest, ShardInfo, read_manifest, write_manifest
from datapipe.index.open_sidecars import Sidecar
from datapipe.index.sample_index import SampleIndex
from datapipe.index.sidecar import SIDECAR_SUFFIX, FieldColumn, FieldExtent, SidecarRows, write_sidecar
from datapipe.opening.samples import open_index
from datapipe.peers.arrow import index_shard

NBYTES = 1000  # of the shard


def rows_of(num: int = 5, **changes: Any) -> SidecarRows:
    """Plausible rows, but for the last one."""
    rows = SidecarRows(("image",))
    for row in range(num):
        last = changes if row == num - 1 else {}
        extent = FieldExtent("jpeg", last.get("offset", row * 100), last.get("nbytes", 100), None)
        extents = {"image": extent}
        rows.append(id=row, key=b"k%d" % row, source=b"s", label=last.get("label", 0), size=(1, 1), extents=extents)
    return rows


def opened(path: Path, *, nbytes: int = NBYTES, num: int = 5) -> Sidecar:
    """As the index opens it for a dataset whose manifest was made to fit."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Sidecar(path, shard=ShardInfo("x.tar", num, nbytes, 0, num, index_sha256=digest))


def rewritten(path: Path, change: Callable[[pa.RecordBatch], list[pa.RecordBatch]], **options: Any) -> Path:
    """The sidecar at `path` with other record batches."""
    with pa.memory_map(str(path)) as source:
        data = pa.py_buffer(source.read())
    with pa.ipc.open_file(data) as reader:
        batch = reader.get_batch(0)
    batches = change(batch)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer,
    ):
        for one in batches:
            writer.write_batch(one)
    return path


# -- sidecars -------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_sidecar(tmp_path / "x.index.arrow", rows_of(), "x.tar")
    return tmp_path / "x.index.arrow"


def test_a_sound_one_opens(path: Path) -> None:
    assert opened(path, nbytes=500).num_samples == 5


@pytest.mark.parametrize(
    "change",
    [
        {"offset": NBYTES - 99},
        {"offset": -1},
        {"nbytes": -1},
        {"nbytes": NBYTES + 1},
        {"offset": (1 << 63) - 1},
        {"nbytes": (1 << 63) - 1},
        {"offset": (1 << 62), "nbytes": (1 << 62)},
    ],
    ids=str,
)
def test_extents_lie_within_the_shard(change: dict[str, int], path: Path) -> None:
    write_sidecar(path, rows_of(**change), "x.tar")
    with pytest.raises(FormatError, match=r"x\.index\.arrow: field 'image' of a sample reaches beyond the 1000 bytes"):
        opened(path)


@pytest.mark.parametrize("row", [-1, 5, 1 << 62])
def test_rows_lie_within_the_shard(row: int, path: Path) -> None:
    rows = SidecarRows((), row_groups=(0, 5))
    rows.add_column("image", FieldColumn(np.array([0, 1, 2, 3, row]), np.full(5, 70), column="c"))
    for number in range(5):
        rows.append(id=number, key=b"", source=b"", label=0, size=(0, 0), extents={})
    write_sidecar(path, rows, "x.parquet")
    with pytest.raises(FormatError, match="reaches beyond the rows"):
        opened(path)


def test_labels_are_class_numbers(path: Path) -> None:
    write_sidecar(path, rows_of(label=-2), "x.tar")
    with pytest.raises(FormatError, match="a label is -2"):
        opened(path)


def _replaced(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    place = batch.schema.get_field_index(name)
    schema = batch.schema.set(place, pa.field(name, column.type))
    return pa.RecordBatch.from_arrays([*batch.columns[:place], column, *batch.columns[place + 1 :]], schema=schema)


def _strings(ends: list[int], data: bytes = b"abcde", kind: Any = None) -> pa.Array:
    buffers = [None, pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind or pa.binary(), len(ends) - 1, buffers)


WRONG_BATCHES: dict[str, tuple[Callable[[pa.RecordBatch], list[pa.RecordBatch]], str]] = {
    "texts that go backwards": (lambda batch: [_replaced(batch, "source", _strings([0, 5, 1, 3, 4, 5]))], "damaged"),
    "no UTF-8": (
        lambda batch: [_replaced(batch, "image.encoding", _strings([0, 1, 2, 3, 4, 5], b"\xff" * 5, pa.string()))],
        "damaged",
    ),
    "another type": (lambda batch: [_replaced(batch, "label", pa.array([0] * 5, pa.int32()))], "its columns are not those"),
    "texts for numbers": (lambda batch: [_replaced(batch, "id", pa.array(["0"] * 5))], "its columns are not those"),
    "missing values": (lambda batch: [_replaced(batch, "label", pa.array([0, 1, None, 3, 4], pa.int64()))], "has null values"),
    "a column less": (lambda batch: [batch.drop_columns(["width"])], "its columns are not those"),
    "a column more": (lambda batch: [batch.append_column("more", pa.array([0] * 5))], "its columns are not those"),
    "a column twice": (lambda batch: [batch.append_column("id", batch.column(0))], "its columns are not those"),
    "batches": (lambda batch: [batch.slice(0, 2), batch.slice(2)], "2 record batches"),
    "fewer rows": (lambda batch: [batch.slice(0, 4)], "has 4 samples, the manifest says 5"),
    "other fields": (
        lambda batch: [batch.replace_schema_metadata({**batch.schema.metadata, b"datapipe.fields": b"x"})],
        "its columns are not those",
    ),
    "fields in no UTF-8": (
        lambda batch: [batch.replace_schema_metadata({**batch.schema.metadata, b"datapipe.fields": b"\xff"})],
        "damaged",
    ),
    "no fields": (lambda batch: [batch.replace_schema_metadata({b"datapipe.index.sidecar": b"1"})], "damaged"),
    "deep row groups": (
        lambda batch: [batch.replace_schema_metadata({**batch.schema.metadata, b"datapipe.index.row_groups": b"[" * 100_000})],
        "row groups are not a list of rows",
    ),
    "large row groups": (
        lambda batch: [batch.replace_schema_metadata({**batch.schema.metadata, b"datapipe.index.row_groups": b"[0,9e999,1]"})],
        "row groups",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_BATCHES)
def test_other_tables_are_refused(wrong: str, path: Path) -> None:
    """Whoever wrote it also made the hash of it."""
    change, said = WRONG_BATCHES[wrong]
    with pytest.raises(FormatError, match=rf"x\.index\.arrow: .*{said}"):
        opened(rewritten(path, change))


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_nothing_is_decompressed(codec: str, path: Path) -> None:
    """A megabyte may become a terabyte."""
    with pytest.raises(FormatError, match=r"x\.index\.arrow: .*compressed"):
        opened(rewritten(path, lambda batch: [batch], compression=codec))


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
@pytest.mark.parametrize("is_file", [False, True])
def test_compressed_batches_of_others_are_refused_unread(
    codec: str | None, is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.arrow"
    table = pa.table({"image": [b"\xff\xd8\xff" + bytes(5000)] * 3, "text": pa.array(["a", "b", "a"]).dictionary_encode()})
    options = pa.ipc.IpcWriteOptions(compression=codec)
    new = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    if codec is None:
        assert len(index_shard(path)[0]) == 3
        return
    monkeypatch.setattr(pa.ipc, "open_stream", None)  # it is not even asked
    with pytest.raises(FormatError, match=r"x\.arrow: .*its batches are compressed"):
        index_shard(path)


ENDS = np.arange(6, dtype=np.int32)  # of five texts of one byte
WRONG_ENDS = {
    "beyond the buffer": [0, 1, 2, 3, 4, 1 << 30],
    "far beyond the buffer": [1 << 30, (1 << 30) + 1, (1 << 30) + 2, (1 << 30) + 3, (1 << 30) + 4, (1 << 30) + 5],
    "before the buffer": [-9, 1, 2, 3, 4, 5],
    "backwards": [0, 5, 1, 3, 4, 5],
}


def with_ends(path: Path, ends: list[int]) -> None:
    """Other places for the texts of an Arrow file, in which the right ones come once: pyarrow does not write them."""
    data = path.read_bytes()
    assert data.count(ENDS.tobytes()) == 1
    path.write_bytes(data.replace(ENDS.tobytes(), np.array(ends, np.int32).tobytes()))


@pytest.mark.parametrize("ends", WRONG_ENDS)
def test_texts_lie_in_their_buffer(ends: str, path: Path) -> None:
    """Reading an extent outside would read foreign memory, or crash."""
    with_ends(path, WRONG_ENDS[ends])
    with pytest.raises(FormatError, match=r"x\.index\.arrow: not an Arrow file, or damaged"):
        opened(path)


@pytest.mark.parametrize("ends", WRONG_ENDS)
@pytest.mark.parametrize("is_file", [False, True])
def test_texts_in_arrow_files_of_others_lie_in_their_buffer(ends: str, is_file: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    table = pa.table({"image": [b"\xff\xd8\xff"] * 5, "file_name": list("abcde")})
    new = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table)
    with_ends(path, WRONG_ENDS[ends])
    with pytest.raises(FormatError, match=r"x\.arrow: not an Arrow file, or damaged"):
        open_index(path)


def test_an_empty_file_is_no_index(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(FormatError, match=r"x\.index\.arrow"):
        Sidecar(path)


def test_no_descriptor_stays_open(path: Path, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    kept = [Sidecar(path) for _ in range(20)]
    data = [arrow_maps.map_file(path) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before
    path.unlink()
    assert all(sidecar.key(1) == b"k1" for sidecar in kept), "the maps are still there"
    assert len({bytes(one) for one in data}) == 1


# -- manifests ------------------------------------------------------------------------------------


def manifest_of(slots: list[int]) -> dict[str, Any]:
    shards, first = [], 0
    for number, num in enumerate(slots):
        shards.append(ShardInfo(f"s-{number}.tar", num, NBYTES, first, num))
        first += num
    fields = (FieldSpec("image", FieldKind.IMAGE), FieldSpec("label", FieldKind.LABEL))
    value: dict[str, Any] = json.loads(json.dumps(Manifest("tar", fields, tuple(shards), ("a",), {"a": 0}, 3).to_json()))
    return value


HUGE = (1 << 63, 1 << 64, 10**400, -1)
CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "overlapping slots": lambda value: value["shards"][1].update(first_slot=2),
    "slots that leave a gap": lambda value: value["shards"][1].update(first_slot=4),
    "slots from 1": lambda value: value["shards"][0].update(first_slot=1),
    "fewer samples than slots": lambda value: value["shards"][0].update(num_slots=4),
    "skipped slots of others": lambda value: value["shards"][0].update(skipped=[5], num_samples=2),
    "a slot skipped twice": lambda value: value["shards"][0].update(skipped=[1, 1], num_samples=1),
    "skipped slots that descend": lambda value: value["shards"][0].update(skipped=[2, 1], num_samples=1),
    "a name twice": lambda value: value["shards"][1].update(name="s-0.tar"),
    "a field twice": lambda value: value["fields"].append(value["fields"][0]),
    "a field without a name": lambda value: value["fields"][0].update(name=""),
    "a kind that is none": lambda value: value["fields"][0].update(kind="secret"),
    "NUL in a name": lambda value: value["shards"][0].update(name="a\0"),
    "an unknown member": lambda value: value.update(more=1),
    "an unknown member of a shard": lambda value: value["shards"][0].update(more=1),
    "a checksum of something else": lambda value: value.update(checksum="ab" * 32),
    "a checksum that is none": lambda value: value.update(checksum="x"),
    "a key of 65 bits": lambda value: value.update(permutation_key=1 << 64),
    "a negative key": lambda value: value.update(permutation_key=-1),
    "more slots than a dataset can have": lambda value: value["shards"][1].update(num_slots=1 << 61, num_samples=1 << 61),
    "a size of nothing": lambda value: value.update(image_size=[0, 5]),
    "a size of three": lambda value: value.update(image_size=[1, 2, 3]),
    "classes that are numbers": lambda value: value.update(classes=[1]),
    "labels that are none": lambda value: value.update(class_to_idx={"a": -1}),
    **{
        f"{name} {number:.3g}" if number < 1 << 65 else f"{name} 10^400": (
            lambda value, name=name, number=number: value["shards"][0].update({name: number})
        )
        for name in ("num_samples", "nbytes", "first_slot", "num_slots")
        for number in HUGE
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_no_program_wrote_is_refused(change: str, tmp_path: Path) -> None:
    value = manifest_of([3, 4])
    assert Manifest.from_json(copy.deepcopy(value), "dataset.json").num_samples == 7
    CHANGES[change](value)
    value["num_samples"] = sum(shard["num_samples"] for shard in value["shards"])
    (tmp_path / "dataset.json").write_text(json.dumps(value))
    with pytest.raises(FormatError, match=r"dataset\.json: "):
        open_index(tmp_path)


@pytest.mark.parametrize("text", [b"[" * 200_000, b'{"version": ' + b'{"a":' * 200_000, b'{"version": ' + b"1" * 10_000 + b"}"])
def test_deep_and_long_json_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_bytes(text)
    with pytest.raises(FormatError, match=r"dataset\.json: not JSON"):
        open_index(tmp_path)


def test_nested_options_are_no_way_around(tmp_path: Path) -> None:
    """Options are any JSON; too deep for the checksum, they are refused too."""
    value = json.dumps({**manifest_of([3]), "options": {"a": 1}, "checksum": "ab" * 32})
    (tmp_path / "dataset.json").write_text(value.replace("1}", "[" * 900 + "]" * 900 + "}", 1))
    with pytest.raises(FormatError, match=r"dataset\.json: "):
        read_manifest(tmp_path)


def test_spaces_and_order_do_not_change_the_checksum(tmp_path: Path) -> None:
    """It is of what the manifest says; other names than UTF-8 ones too."""
    written = Manifest("tar", (FieldSpec("image", FieldKind.IMAGE),), (), ("\udcff", "é"), {"\udcff": 0, "é": 1})
    write_manifest(tmp_path, written)
    value = json.loads((tmp_path / "dataset.json").read_bytes())
    assert len(value["checksum"]) == 64
    (tmp_path / "dataset.json").write_text(json.dumps(dict(reversed(value.items()))))
    assert read_manifest(tmp_path) == written
    (tmp_path / "dataset.json").write_text(json.dumps({**value, "options": {"to": "x"}}))
    with pytest.raises(FormatError, match=r"dataset\.json: differs from what was written \(its checksum\)"):
        read_manifest(tmp_path)


def test_claims_of_many_samples_take_no_memory(tmp_path: Path) -> None:
    write_sidecar(tmp_path / f"s-0.tar{SIDECAR_SUFFIX}", rows_of(), "s-0.tar")
    value = manifest_of([1 << 39])
    (tmp_path / "dataset.json").write_text(json.dumps(value))
    index = open_index(tmp_path)
    assert len(index) == 1 << 39
    for ask in (index.labels, lambda: index.look_up(np.array([3]), "image")):
        with pytest.raises(FormatError, match=r"s-0\.tar\.index\.arrow: "):
            ask()
    grouped = SampleIndex(
        Manifest.from_json({**value, "container": "parquet", "has_row_groups": True}, "x"),
        data_directory=tmp_path,
        sidecar_directory=tmp_path,
    )
    with pytest.raises(FormatError, match="too small for the 549755813888 samples"):
        grouped.row_grouping(["image"])
