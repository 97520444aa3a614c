"""Datasets of HDF5 files as fields: of which kind, in which form, by bytes or by rows; and what is none."""

from __future__ import annotations

import functools
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fixtures import convert, encode, flip_bit, jpeg, npy, picture, quick
from hypothesis import given
from hypothesis import strategies as st
from shard_values import is_by_rows, values_of

from datapipe.codecs.field_values import FieldKind, value_of
from datapipe.containers.formats import read_rows
from datapipe.containers.hdf5.scanner import index_shard
from datapipe.errors import DecodeError, FormatError, IntegrityError
from datapipe.fetch.local import LocalFiles
from datapipe.index.entries import RowGroup
from datapipe.opening.samples import open_index

NUM = 9
ROWS = range(NUM)
IMAGES = [jpeg(number, 20, 24) for number in ROWS]
MASKS = [encode(picture(number, 20, 24), "PNG", mode="P") for number in ROWS]
PIXELS = np.stack([picture(number, 20, 24) for number in ROWS])
VLEN = h5py.vlen_dtype(np.uint8)


def put(file: h5py.File | h5py.Group, name: str, values: list[Any], dtype: Any, **options: Any) -> None:
    """A dataset of variable length."""
    dataset = file.create_dataset(name, (len(values),), dtype, **options)
    for row, value in enumerate(values):
        dataset[row] = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value


def write(path: Path, fill: Callable[[h5py.File], object], **options: Any) -> Path:
    with h5py.File(path, "w", **options) as file:
        put(file, "images", IMAGES, VLEN)
        fill(file)
    return path


def kinds(path: Path) -> dict[str, FieldKind]:
    _, fields = index_shard(path)
    return {field.name: field.kind for field in fields if field.name != "image"}


def load(path: Path, name: str) -> list[Any]:
    """The values of a field; for images and encoded masks their bytes."""
    kind = kinds(path)[name]
    values = values_of(path, "hdf5", name)
    is_encoded = kind is FieldKind.IMAGE or (kind is FieldKind.MASK and values[0][:6] != npy(0)[:6])
    return values if is_encoded else [value_of(kind, value) for value in values]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.h5"


# -- pixels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(20, 24, 3), (20, 24, 1), (20, 24)], ids=str)
@pytest.mark.parametrize("file_options", [{}, {"libver": "latest"}, {"userblock_size": 512}], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (4, 20, 24, 3), "compression": "gzip"}, {"chunks": (1, 20, 24, 3), "shuffle": True},
        {"chunks": (2, 7, 11, 2), "compression": "lzf"}, {"chunks": (50, 20, 24, 3), "maxshape": (None, 20, 24, 3)},
        {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True},
    ],
    ids=str,
)  # fmt: skip
def test_pixels_in_chunks(path: Path, shape: tuple[int, ...], options: dict[str, Any], file_options: dict[str, Any]) -> None:
    images = PIXELS[:, :, :, : (*shape, 1)[2]].reshape(NUM, *shape)
    for name in ("chunks", "maxshape"):
        if isinstance(options.get(name), tuple):
            last = (min(options[name][3], shape[2]),) if len(shape) == 3 else ()
            options = options | {name: options[name][:3] + last}
    with h5py.File(path, "w", **file_options) as file:
        file.create_dataset("x", data=images, **options)
        file["y"] = np.arange(NUM)
    assert is_by_rows(path, "hdf5")
    assert values_of(path, "hdf5") == [npy(image) for image in images]
    index = open_index(path)
    extents = index.look_up(np.arange(NUM)[::-1], "image").extents
    files = LocalFiles()
    assert [files.read(extents, row) for row in range(NUM)] == [npy(image) for image in images[::-1]]
    assert index.labels().tolist() == list(ROWS)


def test_row_groups_are_whole_chunks_of_a_few_megabytes(path: Path) -> None:
    """8 MB, and at most 1,024 rows; but never less than a chunk."""
    for num, shape, chunk, run in ((40, (400, 500, 3), 2, 12), (3000, (8, 8), 30, 1020), (3000, (8, 8), 2500, 2500)):
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=np.zeros((num, *shape), np.uint8), chunks=(chunk, *shape), compression="gzip")
        rows, _ = index_shard(path)
        assert rows.row_groups == (*range(0, num, run), num)


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"compression": "lzf", "shuffle": True}, {"shuffle": True}])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_compressed_references_do_not_hide_the_images(path: Path, options: dict[str, Any], chunk: int) -> None:
    """HDF5 compresses the references of variable-length data, not the data."""
    with h5py.File(path, "w") as file:
        put(file, "images", IMAGES, VLEN, chunks=(chunk,), maxshape=(None,), **options)
        put(file, "caption", [f"née {row}" for row in ROWS], h5py.string_dtype(), chunks=(chunk,), maxshape=(None,), **options)
    assert not is_by_rows(path, "hdf5")
    assert values_of(path, "hdf5") == IMAGES
    assert load(path, "caption") == [f"née {row}" for row in ROWS]


# -- further fields -------------------------------------------------------------------------------


def fill(file: h5py.File, **options: Any) -> None:
    put(file, "caption", [f"a née {row}" for row in ROWS], h5py.string_dtype(), **options)
    file.create_dataset("city", data=np.array([b"x" * row for row in ROWS]), **options)
    put(file, "meta_json", [json.dumps({"row": row}) for row in ROWS], h5py.string_dtype("ascii"), **options)
    put(file, "mask", MASKS, VLEN, **options)
    put(file, "blob", [bytes([1]) * row for row in ROWS], VLEN, **options)
    put(file, "points", [np.arange(row, dtype=np.float32) for row in ROWS], h5py.vlen_dtype(np.float32), **options)
    for name, array in ARRAYS.items():
        file.create_dataset(name, data=array, **(options | ({"chunks": (2, *array.shape[1:])} if options else {})))


ARRAYS = {
    "bbox": np.arange(NUM * 4.0).reshape(NUM, 4),
    "big": np.arange(NUM * 2).reshape(NUM, 2).astype(">f4"),
    "flag": np.arange(NUM) % 2 == 0,
    "half": np.arange(NUM).astype(np.float16),
    "seg": np.arange(NUM * 480, dtype=np.uint8).reshape(NUM, 20, 24),
    "volume": np.arange(NUM * 2 * 3 * 4, dtype=np.int16).reshape(NUM, 2, 3, 4),
}
KINDS = dict.fromkeys(ARRAYS, FieldKind.ARRAY) | {
    "seg": FieldKind.MASK, "caption": FieldKind.TEXT, "city": FieldKind.TEXT, "meta_json": FieldKind.JSON, "mask": FieldKind.MASK,
    "blob": FieldKind.BYTES, "points": FieldKind.ARRAY,
}  # fmt: skip


@pytest.fixture
def _indexed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One field is asked for after the other, of a file that stays the same."""
    once = functools.cache(index_shard)
    monkeypatch.setattr("datapipe.containers.hdf5.scanner.index_shard", once)
    monkeypatch.setitem(globals(), "index_shard", once)


@pytest.mark.usefixtures("_indexed_once")
@pytest.mark.parametrize("options", [{}, {"chunks": (4,), "compression": "gzip"}, {"chunks": (2,)}], ids=str)
@pytest.mark.parametrize("file_options", [{}, {"libver": "latest"}, {"userblock_size": 512}], ids=str)
def test_datasets_are_fields(path: Path, options: dict[str, Any], file_options: dict[str, Any]) -> None:
    write(path, lambda file: fill(file, **options), **file_options)
    assert kinds(path) == KINDS
    assert load(path, "caption") == [f"a née {row}" for row in ROWS]
    assert load(path, "city") == ["x" * row for row in ROWS]
    assert load(path, "meta_json") == [{"row": row} for row in ROWS]
    assert load(path, "mask") == MASKS
    assert load(path, "blob") == [bytes([1]) * row for row in ROWS]
    assert [value.tolist() for value in load(path, "points")] == [list(range(row)) for row in ROWS]
    assert load(path, "points")[3].dtype == np.float32
    for name, array in ARRAYS.items():
        for found, expected in zip(load(path, name), array, strict=True):
            assert np.array_equal(found, expected)
            assert found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
    by_rows = {name for name in KINDS if is_by_rows(path, "hdf5", name)}
    assert by_rows == ({"points"} if not options else {"points", "city", *ARRAYS})
    index = open_index(path)
    assert (index.row_grouping(["image", "caption", "blob"]) is None) == (not by_rows & {"image", "caption", "blob"})


def test_names_are_told_from_the_images_place(path: Path) -> None:
    with h5py.File(path, "w") as file:
        put(file, "train/images", IMAGES, VLEN)
        file["train/labels"] = np.arange(NUM)
        file["train/bbox"] = np.zeros((NUM, 4))
        file["test/bbox"] = np.zeros((NUM, 4))
        file["Mean Color"] = np.zeros((NUM, 3))
        file["key"] = np.array([b"%d" % row for row in ROWS])
        file["size"] = np.zeros((NUM, 2))
        file["classes"] = np.zeros(3)
    assert list(kinds(path)) == ["label", "mean_color", "size_", "test_bbox", "bbox"]
    assert index_shard(path)[0].keys[3] == b"3"


def test_what_is_no_field_is_left_out_naming_it(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def strange(file: h5py.File) -> None:
        file["table"] = np.zeros(NUM, [("a", "i4")])
        file["links"] = np.array([file["images"].ref] * NUM, h5py.ref_dtype)
        file.create_dataset("unwritten", (NUM, 3), "f4")
        file.create_dataset("half_written", (NUM, 3), "f4", chunks=(1, 3), compression="gzip")[2] = 1
        file.create_dataset("elsewhere", (NUM,), np.uint8, external=[(str(path.with_name("y")), 0, NUM)])
        file["three"] = np.zeros(3, [("a", "i4")])
        file["bbox"] = np.zeros((NUM, 4))

    write(path, strange)
    rows, fields = index_shard(path)
    assert [field.name for field in fields] == ["image", "bbox"]
    assert rows.unread.keys() == {"table", "links", "unwritten", "half_written", "elsewhere"}
    with caplog.at_level(logging.INFO):
        open_index(path)
    assert all(f"'{name}'" in caplog.text for name in rows.unread)


def test_a_filter_that_is_not_installed_is_said(path: Path) -> None:
    """Of LZ4, say. Here its number is put where lzf's was."""
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=np.zeros_like(PIXELS), chunks=(4, 20, 24, 3), compression="lzf")
    data = bytearray(path.read_bytes())
    at = data.index(b"lzf\0") - 8
    assert data[at : at + 2] == (32000).to_bytes(2, "little")
    data[at : at + 2] = (32004).to_bytes(2, "little")
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"'images' has values behind filter 32004 \(lzf\), which is not installed"):
        index_shard(path)


def test_a_shard_of_our_own_without_its_manifest(tmp_path: Path) -> None:
    """All its fields come back, by bytes, and of the same kinds."""
    source = tmp_path / "source"
    (source / "imgs").mkdir(parents=True)
    for row in ROWS:
        (source / "imgs" / f"{row}.jpg").write_bytes(IMAGES[row])
        (source / "imgs" / f"{row}.caption").write_text(f"caption {row}")
        (source / "imgs" / f"{row}.json").write_text(json.dumps({"row": row}))
    out = convert(source, tmp_path / "out", to="hdf5", form="pairs")
    whole = open_index(out)
    (out / "dataset.json").unlink()
    alone = open_index(out / "shard-000000.h5")
    assert {spec.name: spec.kind for spec in alone.manifest.fields} == {spec.name: spec.kind for spec in whole.manifest.fields}
    assert alone.row_grouping([spec.name for spec in alone.manifest.fields]) is None


# -- lists, read here -----------------------------------------------------------------------------


@pytest.mark.nightly
@quick
@given(
    lists=st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40), min_size=1, max_size=30),
    chunk=st.none() | st.integers(1, 40),
    packed=st.booleans(),
)
def test_agrees_with_h5py(
    lists: list[list[int]], chunk: int | None, packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"lists-{os.getpid()}.h5"
    options = {} if chunk is None else {"chunks": (chunk,), "maxshape": (None,)} | ({"compression": "lzf"} if packed else {})
    with h5py.File(path, "w") as file:
        put(file, "images", [IMAGES[0]] * len(lists), VLEN)
        put(file, "boxes", [np.array(one, np.int32) for one in lists], h5py.vlen_dtype(np.int32), **options)
    rows, _ = index_shard(path)
    assert [value.tolist() for value in load(path, "boxes")] == lists
    with h5py.File(path) as file:
        assert [value.tolist() for value in file["boxes"]] == lists
    middle = len(lists) // 2
    found = read_rows(RowGroup("hdf5", str(path), "boxes", 0, middle, len(lists)))
    assert [value_of(FieldKind.ARRAY, found[row]).tolist() for row in range(len(lists) - middle)] == lists[middle:]
    with pytest.raises(DecodeError, match="no row"):
        found[len(lists)]
    assert rows.row_groups[-1] == len(lists)


# -- damage, threads ------------------------------------------------------------------------------


def compressed(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=PIXELS, chunks=(3, 20, 24, 3), compression="gzip")
    return path


def test_a_chunk_that_does_not_decompress_is_damage(path: Path) -> None:
    with h5py.File(compressed(path)) as file:
        chunk = file["images"].id.get_chunk_info(1)
    for offset in range(20, 200, 7):
        flip_bit(path, chunk.byte_offset + offset)
    assert read_rows(RowGroup("hdf5", str(path), "images", 0, 0, 3))[2] == npy(PIXELS[2])
    with pytest.raises(IntegrityError, match=r"x\.h5: 'images' of rows 3 to 5 cannot be read \(.*damaged, or changed"):
        read_rows(RowGroup("hdf5", str(path), "images", 1, 3, 6))


@pytest.mark.parametrize("change", ["cut", "other", "fewer", "gone"])
def test_a_shard_that_changed_meanwhile_is_damage(path: Path, change: str) -> None:
    group = RowGroup("hdf5", str(compressed(path)), "images", 2, 6, 9)
    assert read_rows(group)[2] == npy(PIXELS[8])
    if change == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        with h5py.File(path, "w") as file:
            if change == "fewer":
                file["images"] = PIXELS[:8]
            elif change == "other":
                file["images/data"] = np.zeros(9)
    with pytest.raises(IntegrityError, match="damaged, or changed since it was indexed"):
        read_rows(group)


def test_more_samples_than_bytes_are_not_believed(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("images", (10**9, 8, 8), np.uint8, chunks=(4 * 10**6, 8, 8), compression="gzip")
    with pytest.raises(FormatError, match="more samples than the file has bytes"):
        index_shard(path)


def test_threads_read_at_once(path: Path) -> None:
    index, files = open_index(compressed(path)), LocalFiles()
    extents = index.look_up(np.arange(NUM), "image").extents
    wrong: list[str] = []

    def work(seed: int) -> None:
        for row in np.random.default_rng(seed).integers(0, NUM, 60).tolist():
            found = {files.read(extents, row), LocalFiles().read(extents, row)}
            wrong.extend([f"row {row}"] if found != {npy(PIXELS[row])} else [])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
