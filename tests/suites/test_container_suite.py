"""What every container promises, held against each of them with the same 37 labelled images.

A new container joins by one entry in MAKERS: a function that turns the image folder into it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
from fixtures import (
    CLASSES,
    NUM_SAMPLES,
    convert,
    entry_of,
    listing,
    save_datasets,
    write_arrow,
    write_beton,
    write_datasets,
    write_hdf5,
    write_hdf5_pixels,
    write_lance,
    write_litdata,
    write_mds,
    write_parquet,
    write_tfrecord,
    write_webdataset,
)
from PIL import Image

from converters import Encode
from datapipe.codecs.decode import open_decoder
from datapipe.codecs.field_values import FieldKind
from datapipe.codecs.probe import probe
from datapipe.codecs.stored import value_nbytes
from datapipe.containers import foreign
from datapipe.errors import DatapipeError, MissingDataError, StorageError, UnfinishedError
from datapipe.fetch.local import LocalFiles
from datapipe.index.concat import select
from datapipe.index.manifest import BUILDING_NAME
from datapipe.index.open_sidecars import Sidecar
from datapipe.index.sample_index import SampleIndex
from datapipe.opening.samples import open_index


def copy_folder(source: Path, destination: Path) -> Path:
    shutil.copytree(source, destination)
    return destination


def copied(made: Path, destination: Path) -> Path:
    """A copy of a container, and of what lies next to it if it is a file."""
    if made.is_file():
        return copy_folder(made.parent, destination) / made.name
    return copy_folder(made, destination)


def write_zip(source: Path, destination: Path, method: int = zipfile.ZIP_STORED) -> Path:
    """The folder in a zip, in another order."""
    destination.mkdir()
    with zipfile.ZipFile(destination / "photos.zip", "w", method) as archive:
        for path in reversed(listing(source)):
            archive.write(path, path.relative_to(source))
    return destination / "photos.zip"


def write_class_tars(source: Path, destination: Path) -> Path:
    for folder in sorted(source.iterdir()):
        shutil.make_archive(str(destination / folder.name), "tar", folder)
    return destination


def write_list(source: Path, destination: Path) -> Path:
    """A list of files in a copy of the folder, with the names of their classes."""
    copy_folder(source, destination / "photos")
    lines = [f"photos/{path.relative_to(source)},{path.parent.name}" for path in listing(source)]
    (destination / "list.csv").write_text("\n".join(["path,label", *lines]))
    return destination / "list.csv"


MAKERS: dict[str, Callable[[Path, Path], Path]] = {
    "folder": copy_folder,
    "zip": write_zip,
    "zip, deflated": lambda source, destination: write_zip(source, destination, zipfile.ZIP_DEFLATED),
    "class tars": write_class_tars,
    "list": write_list,
    "webdataset": write_webdataset,
    "tfrecord": write_tfrecord,
    "hdf5": write_hdf5,
    "hdf5, compressed references": lambda source, destination: write_hdf5(source, destination, chunks=(4,), compression="gzip"),
    "hdf5, pixels": write_hdf5_pixels,
    "hdf5, gzip": lambda source, destination: write_hdf5_pixels(
        source, destination, chunks=(3, 40, 48, 3), compression="gzip", shuffle=True
    ),
    "hdf5, lzf": lambda source, destination: write_hdf5_pixels(source, destination, chunks=True, compression="lzf"),
    "hdf5, chunks": lambda source, destination: write_hdf5_pixels(source, destination, chunks=(4, 20, 48, 3)),
    "parquet": write_parquet,
    "parquet, snappy": lambda source, destination: write_parquet(source, destination, compression="snappy"),
    "parquet, zstd": lambda source, destination: write_parquet(
        source, destination, compression="zstd", data_page_version="2.0", row_group_size=3
    ),
    "parquet, dictionary": lambda source, destination: write_parquet(
        source, destination, compression="gzip", use_dictionary=True, row_group_size=100
    ),
    "parquet, datasets": write_datasets,
    "arrow": write_arrow,
    "arrow, datasets": save_datasets,
    "lance": write_lance,
    "lance, blobs": lambda source, destination: write_lance(source, destination, blobs=True),
    "mds": write_mds,
    "mds, zstd": lambda source, destination: write_mds(source, destination, compression="zstd"),
    "litdata": write_litdata,
    "litdata, zstd": lambda source, destination: write_litdata(source, destination, compression="zstd"),
    "beton": write_beton,
    "converted": convert,
    "converted, raw": lambda source, destination: convert(source, destination, encode=Encode("raw")),
    "converted, unshuffled": lambda source, destination: convert(source, destination, seed=None),
    "converted to tfrecord": lambda source, destination: convert(source, destination, to="tfrecord"),
    "converted to tfrecord, raw": lambda source, destination: convert(source, destination, to="tfrecord", encode=Encode("raw")),
    "converted to parquet": lambda source, destination: convert(source, destination, to="parquet"),
    "converted to parquet, raw": lambda source, destination: convert(source, destination, to="parquet", encode=Encode("raw")),
    "converted to hdf5": lambda source, destination: convert(source, destination, to="hdf5"),
    "converted to hdf5, raw": lambda source, destination: convert(source, destination, to="hdf5", encode=Encode("raw")),
}
# those that are indexed on first use
FOREIGN = ("folder", "webdataset", "tfrecord", "hdf5", "parquet", "arrow", "lance", "mds", "litdata", "beton")
FURTHER = {  # fields besides image and label
    "tfrecord": {"image_class_text": FieldKind.TEXT, "image_object_bbox_xmin": FieldKind.ARRAY},
    "arrow": {"file_name": FieldKind.TEXT},
    "lance": {"file_name": FieldKind.TEXT},
    "lance, blobs": {"file_name": FieldKind.TEXT},
    "mds": {"filename": FieldKind.TEXT},
    "mds, zstd": {"filename": FieldKind.TEXT},
    "litdata": {"filename": FieldKind.TEXT},
    "litdata, zstd": {"filename": FieldKind.TEXT},
    "beton": {"filename": FieldKind.BYTES},
}
ALL_IDS = np.arange(NUM_SAMPLES)


@pytest.fixture(params=MAKERS, scope="session")
def made(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The container, made once. Not to be changed."""
    return MAKERS[request.param](folder, tmp_path_factory.mktemp("made") / "set")


@pytest.fixture(params=FOREIGN)
def fresh(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Path:
    """A container of its own for the test, never indexed before."""
    return MAKERS[request.param](folder, tmp_path / "set")


def test_ids_are_places_in_the_listing(made: Path, folder: Path) -> None:
    index = open_index(made)
    assert len(index) == NUM_SAMPLES
    assert index.ids(ALL_IDS).tolist() == ALL_IDS.tolist()
    expected = [CLASSES.index(path.parent.name) for path in listing(folder)]
    assert index.labels().tolist() == expected
    assert index.look_up(ALL_IDS[::-1], "image").labels.tolist() == expected[::-1]


@pytest.mark.promise("form: image-folder", "form: archive", "form: manifest", "form: tar", "form: tfrecord", "form: hdf5")
@pytest.mark.promise("form: parquet", "form: arrow", "form: lance", "form: mds", "form: litdata", "form: beton", "form: dataset")
def test_extents_hold_each_samples_pixels(made: Path, folder: Path) -> None:
    index, files, decoder = open_index(made), LocalFiles(), open_decoder()
    entries = index.look_up(ALL_IDS, "image")
    assert len(entries) == len(entries.extents) == NUM_SAMPLES
    for row, path in enumerate(listing(folder)):
        data = files.read(entries.extents, row)
        with Image.open(path) as image:
            assert np.array_equal(decoder(data, probe(data)), np.asarray(image))
        codec = "" if entries.extents.codecs is None else entries.extents.codecs[row]
        if isinstance(codec, str):
            assert len(data) == value_nbytes(int(entries.extents.nbytes[row]), codec)
        if probe(data).encoding == "jpeg":
            assert data == path.read_bytes()


def test_looking_up_answers_in_the_order_of_the_question(made: Path) -> None:
    index = open_index(made)
    whole = index.look_up(ALL_IDS, "image").extents
    asked = np.array([36, 0, 17, 17, 5])
    some = index.look_up(asked, "image")
    assert some.ids.tolist() == asked.tolist()
    assert some.extents.paths == [whole.paths[sample] for sample in asked]
    assert some.extents.offset.tolist() == whole.offset[asked].tolist()
    assert some.extents.crc32c.tolist() == whole.crc32c[asked].tolist()
    assert len(index.look_up(asked[:0], "image")) == 0


def test_every_sample_has_a_name_of_its_own(made: Path, folder: Path) -> None:
    index = open_index(made)
    descriptions = [index.describe(sample) for sample in range(NUM_SAMPLES)]
    assert len({description.key for description in descriptions}) == NUM_SAMPLES
    for sample, path in enumerate(listing(folder)):
        text = str(descriptions[sample])
        assert descriptions[sample].path in text
        assert f"sample {sample}" in text
        assert path.stem in text


def test_fields_have_kinds(made: Path, request: pytest.FixtureRequest) -> None:
    kinds = {field.name: field.kind for field in open_index(made).manifest.fields}
    assert {name: kinds.pop(name) for name in ("image", "label")} == {"image": FieldKind.IMAGE, "label": FieldKind.LABEL}
    assert kinds == FURTHER.get(request.node.callspec.params["made"], {})


def test_a_field_that_is_not_there_is_refused_naming_those_that_are(made: Path) -> None:
    with pytest.raises(DatapipeError, match=r"no field 'mask' \(has: image"):
        open_index(made).look_up(ALL_IDS, "mask")


def test_opening_again_scans_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_index(made)
    monkeypatch.setattr(foreign, "_make_index", lambda *_: pytest.fail("indexed again"))
    opened: list[Path] = []
    monkeypatch.setattr(
        "datapipe.index.open_sidecars.Sidecar", lambda path, **about: opened.append(path) or Sidecar(path, **about)
    )
    second = open_index(made)
    assert second.fingerprint == first.fingerprint
    assert opened == [], "sidecars are opened when they are first needed"
    second.look_up(ALL_IDS[:1], "image")
    assert len(opened) == 1


def test_selections_keep_ids(made: Path) -> None:
    index = open_index(made)
    some = select(index, np.array([30, 2, 2]))
    assert len(some) == 3
    assert some.ids(np.arange(3)).tolist() == [30, 2, 2]
    assert some.labels().tolist() == index.labels()[[30, 2, 2]].tolist()
    again = select(some, np.array([1]))
    assert again.ids(np.arange(1)).tolist() == [2]
    assert len({index.fingerprint, some.fingerprint, again.fingerprint, select(index, np.array([2, 30, 2])).fingerprint}) == 4
    with pytest.raises(DatapipeError, match=r"beyond the dataset's 3"):
        select(some, np.array([3]))


def test_an_index_pickles_small(made: Path) -> None:
    import pickle

    index = open_index(made)
    index.labels()
    data = pickle.dumps(index)
    again: SampleIndex = pickle.loads(data)
    assert len(data) < 20_000
    assert again.fingerprint == index.fingerprint
    assert again.labels().tolist() == index.labels().tolist()


def test_a_half_made_directory_is_refused(made: Path, tmp_path: Path) -> None:
    """Whatever it contains: good shards next to the marker must not pass for a whole set."""
    copy = copied(made, tmp_path / "half")
    (tmp_path / "half" / BUILDING_NAME).mkdir()
    with pytest.raises(UnfinishedError, match="run the same `datapipe convert` command again"):
        open_index(copy)


def test_missing_data_is_named(made: Path, tmp_path: Path) -> None:
    index = open_index(copied(made, tmp_path / "copy"))
    path, _, _ = entry_of(index, 5)
    os.unlink(path)
    with pytest.raises(MissingDataError, match=os.path.basename(path)):
        LocalFiles().read(index.look_up(np.array([5]), "image").extents, 0)


# -- data that others wrote -----------------------------------------------------------------------


def test_changed_data_is_indexed_again(fresh: Path, folder: Path) -> None:
    before = open_index(fresh)
    path = Path(entry_of(before, NUM_SAMPLES - 1)[0])
    if path.suffix == ".manifest":
        write_lance(folder, fresh, mode="append")
    elif path.suffix != ".jpg":
        path.unlink()
        if (shards := fresh / "index.json").exists():
            about = json.loads(shards.read_text())
            about["shards" if "shards" in about else "chunks"].pop()
            shards.write_text(json.dumps(about))
    else:
        shutil.copy(path, path.with_name("zzzz.jpg"))
    after = open_index(fresh)
    assert len(after) != len(before)
    assert after.fingerprint != before.fingerprint


def test_a_shard_written_anew_is_indexed_again(folder: Path, tmp_path: Path) -> None:
    shards = write_webdataset(folder, tmp_path / "set")
    first, second = sorted(shards.glob("*.tar"))[:2]
    before = open_index(shards)
    first.write_bytes(second.read_bytes())
    assert open_index(shards).fingerprint != before.fingerprint


def test_a_folder_of_other_files_is_another_dataset(folder: Path, tmp_path: Path) -> None:
    """As many files of as many bytes, but under other names: a saved state must not resume."""
    copy = copy_folder(folder, tmp_path / "copy")
    before = open_index(copy).fingerprint
    path = listing(copy)[0]
    path.rename(path.with_name("another.jpg"))
    assert open_index(copy).fingerprint != before


def test_the_same_folder_elsewhere_is_the_same_dataset(folder: Path, tmp_path: Path) -> None:
    assert open_index(copy_folder(folder, tmp_path / "copy")).fingerprint == open_index(folder).fingerprint


def test_a_read_only_place_is_indexed_in_the_users_cache(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As os.access says, since the tests may run as root, who may write anywhere."""
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not Path(path).is_relative_to(fresh) and real(path, mode))
    index = open_index(fresh)
    assert index.sidecar_directory.is_relative_to(platformdirs.user_cache_dir("datapipe"))
    assert len(index) == NUM_SAMPLES
    monkeypatch.setattr(foreign, "_make_index", lambda *_: pytest.fail("indexed again"))
    assert open_index(fresh).labels().tolist() == index.labels().tolist()


def test_an_index_in_a_place_that_became_read_only_is_used(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = open_index(fresh)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(foreign, "_make_index", lambda *_: pytest.fail("indexed again"))
    assert open_index(fresh).sidecar_directory == made.sidecar_directory


def test_no_place_for_an_index_is_an_error(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StorageError, match="XDG_CACHE_HOME"):
        open_index(fresh)


def test_indexing_adds_no_class_folder(fresh: Path) -> None:
    before = {path.name for path in fresh.iterdir()}
    open_index(fresh)
    added = {path.name for path in fresh.iterdir()} - before
    assert added == (set() if (fresh / "ant").is_dir() else {foreign.INDEX_DIRECTORY_NAME})


def test_an_index_cut_off_in_the_making_is_made_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stamp comes last, so whatever an interrupted run left does not count."""
    monkeypatch.setattr(foreign, "write_stamp", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        open_index(fresh)
    monkeypatch.undo()
    assert len(open_index(fresh)) == NUM_SAMPLES


def test_a_damaged_stamp_is_no_obstacle(fresh: Path) -> None:
    home = open_index(fresh).sidecar_directory
    for text in (b"", b"{}", b"[]", b"{'shards", b'{"shards": 3, "directories": 4}'):
        (home / "source.json").write_bytes(text)
        assert len(open_index(fresh)) == NUM_SAMPLES


def _open_and_report(path: Path, log: Path) -> None:
    real = foreign._make_index

    def make(*arguments: Any) -> Any:
        with log.open("a") as file:
            file.write("made\n")
        return real(*arguments)

    foreign._make_index = make
    index = open_index(path)
    with log.open("a") as file:
        file.write(f"{len(index)}\n")


def test_two_processes_at_once_index_once(fresh: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn" if (fresh / "_versions").exists() else "fork")  # pylance survives no fork
    processes = [context.Process(target=_open_and_report, args=(fresh, tmp_path / "log")) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted((tmp_path / "log").read_text().split()) == ["37", "37", "made"]
