"""The HDF5 scanner against what h5py writes, and against what cannot be read or should not be believed."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fixtures import CLASSES, convert, encode, entry_of, jpeg, listing, picture, quick
from hypothesis import given
from hypothesis import strategies as st
from shard_values import values_of

from converters import Encode
from datapipe.codecs.decode import open_decoder
from datapipe.codecs.field_values import NO_LABEL
from datapipe.codecs.probe import probe
from datapipe.containers.hdf5.scanner import index_shard
from datapipe.errors import FormatError, MissingDataError
from datapipe.fetch.local import LocalFiles
from datapipe.opening.samples import open_index

# Small ones share a heap collection, large ones have one each.
IMAGES = [jpeg(number, 40 + number, 48) for number in range(30)] + [jpeg(99, 400, 500), encode(picture(5), "PNG")]
VLEN = h5py.vlen_dtype(np.uint8)


def as_arrays(images: list[bytes]) -> list[np.ndarray]:
    return [np.frombuffer(image, np.uint8) for image in images]


def write_vlen(file: h5py.File, name: str = "images", images: list[bytes] = IMAGES, **options: Any) -> None:
    dataset = file.create_dataset(name, (len(images),), VLEN, **options)
    for row, image in enumerate(as_arrays(images)):
        dataset[row] = image


def write_blobs(file: h5py.File, name: str = "image", images: list[bytes] = IMAGES) -> None:
    file[f"{name}/data"] = np.concatenate(as_arrays(images))
    file[f"{name}/offsets"] = np.cumsum([0, *map(len, images)])


def read(path: Path, field: str = "image") -> list[bytes]:
    return values_of(path, "hdf5", field)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.h5"


# -- what h5py writes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "file_options"),
    [
        ({}, {}),
        ({"chunks": (7,), "maxshape": (None,)}, {}),
        ({}, {"libver": "latest"}),
        ({"chunks": (5,)}, {"libver": "latest"}),
        ({}, {"userblock_size": 1024}),
        ({"chunks": (4,)}, {"userblock_size": 512}),
        ({}, {"fs_strategy": "page"}),
    ],
)
def test_variable_length_images(path: Path, options: dict[str, Any], file_options: dict[str, Any]) -> None:
    with h5py.File(path, "w", **file_options) as file:
        write_vlen(file, **options)
    assert read(path) == IMAGES


def test_elements_that_were_written_anew_or_never(path: Path) -> None:
    with h5py.File(path, "w") as file:
        write_vlen(file)
        file["images"][3] = np.frombuffer(IMAGES[30], np.uint8)
    with h5py.File(path, "a") as file:
        file["images"][4] = np.frombuffer(IMAGES[0], np.uint8)
        file["images"][5] = np.empty(0, np.uint8)
    assert read(path) == [*IMAGES[:3], IMAGES[30], IMAGES[0], b"", *IMAGES[6:]]


@quick
@given(images=st.lists(st.binary(max_size=6000), min_size=1, max_size=12))
def test_agrees_with_h5py(images: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / f"agrees-{os.getpid()}.h5"
    images = [IMAGES[0], *images]
    with h5py.File(path, "w") as file:
        write_vlen(file, images=images)
    assert read(path) == images


def test_our_own_layout(path: Path) -> None:
    with h5py.File(path, "w") as file:
        write_blobs(file)
    assert read(path) == IMAGES


@pytest.mark.parametrize("encode_as", ["keep", "raw"])
def test_a_shard_of_a_converted_set_is_read_by_itself(folder: Path, tmp_path: Path, encode_as: str) -> None:
    """As one would find it without dataset.json and its index."""
    out = convert(folder, tmp_path / "out", to="hdf5", encode=Encode(encode_as))
    shard = out / "shard-000001.h5"
    whole, alone = open_index(out), open_index(shard)
    labels = [CLASSES.index(path.parent.name) for path in listing(folder)]
    for row in range(len(alone)):
        sample = int(alone.describe(row).key)
        assert entry_of(alone, row) == entry_of(whole, sample)
        assert alone.labels()[row] == labels[sample]


@pytest.mark.parametrize("shape", [(8, 10, 3), (8, 10, 1), (8, 10)], ids=str)
@pytest.mark.parametrize(
    ("options", "file_options"),
    [
        ({}, {}),
        ({"chunks": True, "maxshape": True}, {}),
        ({"chunks": True}, {"libver": "latest"}),
        ({}, {"userblock_size": 1024}),
        ({"chunks": True}, {"userblock_size": 512}),
    ],
)
def test_arrays_of_pixels(path: Path, shape: tuple[int, ...], options: dict[str, Any], file_options: dict[str, Any]) -> None:
    """In one piece, or in chunks of one image, however they are indexed."""
    images = np.stack([picture(number, *shape[:2])[:, :, : (*shape, 1)[2]].reshape(shape) for number in range(7)])
    if "chunks" in options:
        options = options | {"chunks": (1, *shape)}
    if "maxshape" in options:
        options = options | {"maxshape": (None, *shape)}
    with h5py.File(path, "w", **file_options) as file:
        dataset = file.create_dataset("x", images.shape, np.uint8, **options)
        for row in (3, 0, 6, 1, 2, 5, 4):
            dataset[row] = images[row]
        file["y"] = np.arange(7)
    index, files, decoder = open_index(path), LocalFiles(), open_decoder()
    assert index.labels().tolist() == list(range(7))
    extents = index.look_up(np.arange(7)[::-1], "image").extents
    for row, expected in enumerate(images[::-1]):
        data = files.read(extents, row)
        assert np.array_equal(np.load(io.BytesIO(data)), expected)
        rgb = np.broadcast_to(expected.reshape(*shape[:2], -1), (*shape[:2], 3))
        assert np.array_equal(decoder(data, probe(data)), rgb)


def test_a_cut_array_of_pixels_is_refused(path: Path) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        file["labels"] = np.zeros(6, int)
        file["images"] = np.zeros((6, 80, 80, 3), np.uint8)
    with path.open("r+b") as plain:
        plain.truncate(path.stat().st_size - 10_000)
    with pytest.raises(FormatError, match=r"cut|truncated"):
        index_shard(path)


@pytest.mark.parametrize("name", ["label", "labels", "target", "targets", "y", "Label", "TARGETS", "Y"])
@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"dtype": np.uint8}])
def test_labels_by_name(path: Path, name: str, options: dict[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        write_vlen(file, "train/images")
        file.create_dataset(f"train/{name}", data=np.arange(len(IMAGES)), **options)
        file["label" if name != "label" else "y"] = np.zeros(len(IMAGES), int)  # beside the images comes first
    rows, fields = index_shard(path)
    assert rows.labels == list(range(len(IMAGES)))
    assert [field.name for field in fields] == ["image", "label", "label_" if name != "label" else "y"]


def test_labels_may_be_a_column(path: Path) -> None:
    with h5py.File(path, "w") as file:
        write_vlen(file)
        file["y"] = np.arange(len(IMAGES))[:, None]
    assert index_shard(path)[0].labels == list(range(len(IMAGES)))


@pytest.mark.parametrize(
    "labels", [np.arange(3), np.zeros((len(IMAGES), 10), int), np.zeros(len(IMAGES)), [b"cat"] * len(IMAGES)]
)
def test_labels_that_are_none_are_left_out_and_said(path: Path, labels: Any, caplog: pytest.LogCaptureFixture) -> None:
    with h5py.File(path, "w") as file:
        write_vlen(file)
        file["labels"] = labels
    with caplog.at_level(logging.WARNING):
        rows, fields = index_shard(path)
    assert set(rows.labels) == {NO_LABEL}
    assert [field.name for field in fields] == ["image", *(["labels"] if len(labels) == len(IMAGES) else [])]
    assert "'labels' holds no class numbers of 32 images" in caplog.text


def test_negative_labels_are_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        write_vlen(file)
        file["labels"] = np.full(len(IMAGES), -7)
    with pytest.raises(FormatError, match="a label is -7"):
        index_shard(path)


def test_of_several_places_the_one_called_image_is_taken(path: Path) -> None:
    with h5py.File(path, "w") as file:
        write_vlen(file, "thumbnails", IMAGES[::-1])
        write_blobs(file, "image")
    assert read(path) == IMAGES
    with h5py.File(path, "w") as file:
        write_vlen(file, "a")
        write_vlen(file, "b")
    with pytest.raises(FormatError, match=r"images in several places \(a, b\).*name one of them 'image'"):
        index_shard(path)


# -- what cannot be read --------------------------------------------------------------------------


def pixels(shape: tuple[int, ...] = (6, 8, 8, 3), **options: Any) -> Callable[[h5py.File], None]:
    return lambda file: file.create_dataset("images", data=np.zeros(shape, np.uint8), **options) and None


def some_chunks(**options: Any) -> Callable[[h5py.File], None]:
    def write(file: h5py.File) -> None:
        file.create_dataset("images", (6, 8, 8, 3), np.uint8, chunks=(1, 8, 8, 3), **options)[4] = 1

    return write


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (pixels((6, 3, 8, 8)), r"no images that can be read \(has: images \(6, 3, 8, 8\) uint8\)"),
        (pixels((480, 640, 3)), r"no images that can be read \(has: images \(480, 640, 3\) uint8\)"),
        (pixels((0, 8, 8, 3)), r"values of shape \(0, 8, 8, 3\), which has none"),
        (pixels((6, 0, 8, 3)), "which has none"),
        (some_chunks(), "'images' has values that were never written, of sample 0"),
        (some_chunks(compression="gzip"), "'images' has values that were never written, in 5 of 6 chunks"),
        (lambda file: file.create_dataset("images", (6, 8, 8, 3), np.uint8), "values that were never written"),
        (lambda file: file.create_dataset("images", (5,), VLEN), "no images that can be read"),
        (lambda file: write_vlen(file, images=[b"text"] * 3), r"no images that can be read \(has: images \(3,\) object\)"),
        (lambda file: file.create_dataset("x", data=np.zeros(3)), r"no images that can be read \(has: x \(3,\) float64\)"),
        (lambda file: None, r"no images that can be read \(has: no datasets\)"),
        (lambda file: [file.create_dataset(f"a{n}", data=0) for n in range(20)], r"a9 \(\) int64, and 8 more|, and 8 more"),
    ],
)
def test_what_cannot_be_read_is_said_naming_what_is_there(path: Path, write: Callable[[h5py.File], Any], said: str) -> None:
    with h5py.File(path, "w") as file:
        write(file)
    with pytest.raises(FormatError, match=rf"x\.h5: .*{said}") as caught:
        index_shard(path)
    assert "image/data" in str(caught.value)  # what to write instead


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ([0, 5, 3], "do not ascend"),
        ([1, 5], "do not ascend from 0"),
        ([0, 10_000_000], "to the length of 'data'"),
        ([0.5, 1.5], "integers"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(path: Path, offsets: list[Any], said: str) -> None:
    with h5py.File(path, "w") as file:
        file["image/data"] = np.frombuffer(IMAGES[0], np.uint8)
        file["image/offsets"] = offsets
    with pytest.raises(FormatError, match=said):
        index_shard(path)


def test_data_in_chunks_are_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        write_blobs(file)
        data = file["image/data"][()]
        del file["image/data"]
        file.create_dataset("image/data", data=data, chunks=(1000,))
    with pytest.raises(FormatError, match="no image lies in one piece"):
        index_shard(path)


def test_a_dataset_for_each_sample_is_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for number in range(10_001):
            file.create_group(str(number))
    with pytest.raises(FormatError, match="more than 10000 datasets, one for each sample"):
        index_shard(path)


@pytest.mark.nightly
def test_groups_without_end_are_refused_in_no_time(path: Path) -> None:
    def nested(num: int) -> None:
        with h5py.File(path, "w") as file:
            group: h5py.Group = file
            for _ in range(num):
                group = group.create_group("g")
            write_vlen(group)

    nested(60)
    assert len(index_shard(path)[0]) == len(IMAGES)
    for num in (65, 30_000):
        nested(num)
        start_s = time.process_time()
        with pytest.raises(FormatError, match="groups more than 64 deep"):
            index_shard(path)
        assert time.process_time() - start_s < 1  # by whole paths: 12 s for 3,000


def test_each_object_is_looked_at_once(path: Path) -> None:
    """Also where hard links make a ring."""
    with h5py.File(path, "w") as file:
        write_vlen(file, "a/images")
        file["a/up"] = file["/"]
        file["b"] = file["a"]
        file["c"] = h5py.SoftLink("/a")
    rows, fields = index_shard(path)
    assert len(rows) == len(IMAGES)
    assert [field.name for field in fields] == ["image"]


def test_nothing_outside_the_file_is_read(tmp_path: Path, path: Path) -> None:
    """Links to other files, soft links, external storage, virtual datasets."""
    (tmp_path / "secret").write_bytes(IMAGES[0])
    with h5py.File(tmp_path / "other.h5", "w") as file:
        write_vlen(file)
        file["labels"] = np.arange(len(IMAGES))
    with h5py.File(path, "w") as file:
        file["images"] = h5py.ExternalLink("other.h5", "/images")
        file["soft"] = h5py.SoftLink("/images")
        file["external/offsets"] = [0, len(IMAGES[0])]
        shape = (len(IMAGES[0]),)
        file.create_dataset("external/data", shape, np.uint8, external=[(str(tmp_path / "secret"), 0, len(IMAGES[0]))])
        layout = h5py.VirtualLayout((len(IMAGES),), VLEN)
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "images", (len(IMAGES),))
        file.create_virtual_dataset("virtual", layout)
    with pytest.raises(FormatError, match=r"no images that can be read; .*outside the file"):
        index_shard(path)
    with h5py.File(path, "w") as file:
        write_vlen(file)
        file["labels"] = h5py.ExternalLink("other.h5", "/labels")
    assert set(index_shard(path)[0].labels) == {NO_LABEL}


# -- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(5000), b"PK\x03\x04" * 300],
    ids=["nothing", "text", "signature alone", "signature and zeros", "zip"],
)
def test_what_is_no_hdf5_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"x\.h5: (empty file|not an HDF5 file)"):
        index_shard(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"gone\.h5"):
        index_shard(tmp_path / "gone.h5")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_cut_file_is_refused(path: Path, share: float) -> None:
    with h5py.File(path, "w") as file:
        write_vlen(file)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(FormatError, match=r"x\.h5: .*(truncated|cut|damaged)"):
        index_shard(path)


def heap_at(path: Path) -> int:
    return path.read_bytes().index(b"GCOL")


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (0, b"XXXX", "no heap collection at byte"),
        (4, b"\x02", "no heap collection at byte"),
        (8, b"\xff" * 8, "reaches beyond the end"),
        (24, b"\xff" * 8, "reaches beyond it"),
        (24, b"\x08" + bytes(7), "reaches beyond it: damaged"),
        (16, b"\x99\x99", "is not in the heap collection"),
    ],
)
def test_a_damaged_heap_is_refused(path: Path, at: int, value: bytes, said: str) -> None:
    with h5py.File(path, "w") as file:
        write_vlen(file, images=IMAGES[:3])
    data = bytearray(path.read_bytes())
    start = heap_at(path) + at
    data[start : start + len(value)] = value
    path.write_bytes(data)
    with pytest.raises(FormatError, match=said):
        index_shard(path)


def test_a_damaged_reference_is_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        write_vlen(file, images=IMAGES[:3])
        reference = file["images"].id.get_offset() + 16  # of the second
    data = bytearray(path.read_bytes())
    data[reference + 2] = 0xFF
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"element 1 of \d+ bytes is longer than its \d+ bytes in the heap"):
        index_shard(path)


@pytest.mark.nightly
@quick
@given(data=st.data())
def test_damage_to_the_heap_raises_nothing_but_format_errors(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In references and heap, which are read here; the rest is HDF5's own to check."""
    path = tmp_path_factory.getbasetemp() / f"fuzz-{os.getpid()}.h5"
    with h5py.File(path, "w") as file:
        write_vlen(file, images=IMAGES[:4])
        references = file["images"].id.get_offset()
    damaged = bytearray(path.read_bytes())
    heap = heap_at(path)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(references, references + 63) | st.integers(heap, min(heap + 4000, len(damaged) - 1)))
        damaged[at] = data.draw(st.sampled_from(b"\0\x01\x10\x7f\x80\xff") | st.integers(0, 255))
    path.write_bytes(damaged)
    with contextlib.suppress(FormatError):
        images = index_shard(path)[0].columns["image"]
        assert images.column is None
        assert 0 <= images.offset.min() <= (images.offset + images.nbytes).max() <= len(damaged)
