"""Lance datasets: read at one version by pylance, images and tables, while they grow; what is damaged is named.

pylance is imported by the tests, not by this module, which every process that runs tests imports: it warns at each fork.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
import torch
from batches import equal
from fixtures import NUM_SAMPLES, convert, jpeg, make_folder, open_images, write_lance

import datapipe as dp
from converters.tables.conversion import convert_table
from converters.tables.options import TableConversion
from datapipe.opening.samples import open_index

pytestmark = pytest.mark.skipif(find_spec("lance") is None, reason="pylance is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images") / "photos", size=(40, 48))


@pytest.fixture
def place(folder: Path, tmp_path: Path) -> Path:
    return write_lance(folder, tmp_path / "photos.lance")


def batches(source: Any, **options: Any) -> list[Any]:
    return list(open_images(source, 8, **({"shuffle": True, "seed": 1, "output": "dict"} | options)))


def write(place: Path, columns: dict[str, Any], **options: Any) -> Path:
    import lance

    lance.write_dataset(pa.table(columns), str(place), **options)
    return place


@pytest.mark.parametrize("blobs", [False, True])
@pytest.mark.parametrize("shuffle", [True, "windows", False])
def test_batches_are_those_of_the_folder(folder: Path, tmp_path: Path, blobs: bool, shuffle: Any) -> None:
    place = write_lance(folder, tmp_path / "photos.lance", blobs=blobs)
    if shuffle == "windows":
        assert sorted(np.concatenate([one["id"] for one in batches(place, shuffle=shuffle)]).tolist()) == list(range(NUM_SAMPLES))
        return
    assert equal(batches(place, shuffle=shuffle), batches(folder, shuffle=shuffle))
    assert equal(batches(place, shuffle=shuffle, num_workers=0), batches(folder, shuffle=shuffle))


@pytest.mark.parametrize(
    "images",
    [
        lambda data: pa.array(data, pa.binary()),
        lambda data: pa.array(data, pa.large_binary()),
        lambda data: pa.array([{"bytes": one, "path": f"{number}.jpg"} for number, one in enumerate(data)]),
    ],
)
@pytest.mark.parametrize("name", ["image", "photo"])
def test_columns_that_hold_images(tmp_path: Path, images: Any, name: str) -> None:
    """By their names, or by what they hold. Values are those that pylance gives."""
    data = [jpeg(number) for number in range(5)]
    vectors = pa.array([[1.0, 1.0, 1.0]] * 5, pa.list_(pa.float32(), 3))
    columns = {"blob": [b"x"] * 5, name: images(data), "label": range(5), "v": vectors}
    opened = dp.Images(write(tmp_path / "x.lance", columns), fields=["image", "label", "blob", "v"])
    assert np.array_equal(opened[3][0], dp.Images(write(tmp_path / "y.lance", {"image": data}))[3][0])
    assert opened[3][1:3] == (3, b"x")
    assert opened[3][3].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"x": [1, 2]}, "no images that can be read"),
        ({"a": [jpeg(1)], "b": [jpeg(2)]}, r"images in several columns \(a, b\)"),
        ({"image": pa.array([], pa.binary())}, "no rows"),
    ],
)
def test_what_holds_no_images_is_named(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    place = write(tmp_path / "x.lance", columns)
    with pytest.raises(dp.errors.FormatError, match=said):
        dp.Images(place, form="lance")


def test_rows_without_a_value_are_bad_samples(tmp_path: Path) -> None:
    place = write(tmp_path / "x.lance", {"image": [jpeg(0), None, b"no image"], "label": [0, 1, 2]})
    loader = open_images(place, 1, on_error="skip")
    assert sum(len(label) for _, label in loader) == 1
    assert {bad.id: bad.reason for bad in loader.bad_samples}[1] == "no value: null"


# -- versions -------------------------------------------------------------------------------------------


def test_a_training_keeps_to_the_rows_it_began_with(folder: Path, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun = open_images(place, 8, shuffle=True, seed=1, output="dict")
    running = iter(begun)
    head = [next(running) for _ in range(2)]
    state = begun.state_dict()
    assert state["versions"] == {str(place): "1"}
    write_lance(folder, place, mode="append")
    assert len(pickle.loads(pickle.dumps(begun)).dataset) == NUM_SAMPLES
    resumed = open_images(place, 8, shuffle=True, seed=1, output="dict")
    assert len(resumed.dataset) == 2 * NUM_SAMPLES
    resumed.load_state_dict(state)
    assert "was at 1, and is at 2: training continues with what it was" in caplog.text
    assert equal([*head, *resumed], batches(folder))
    assert equal(list(running), batches(folder)[2:])


def test_a_version_or_a_tag_is_chosen(folder: Path, place: Path) -> None:
    import lance

    lance.dataset(str(place)).tags.create("first", 1)
    write_lance(folder, place, mode="append")
    for version in (1, "1", "first"):
        data = dp.Images(place, version=version)
        assert (len(data), dict(data.versions)) == (NUM_SAMPLES, {str(place): "1"})
    assert len(dp.Images(place)) == len(dp.Images(place, version=2)) == 2 * NUM_SAMPLES


def test_rows_that_were_deleted_are_gone(place: Path) -> None:
    import lance

    lance.dataset(str(place)).delete("label = 0")
    data = dp.Images(place)
    assert set(data.targets) == {1, 2}
    stored = lance.dataset(str(place)).to_table(columns=["label"]).column(0).to_pylist()
    assert data.targets == stored
    assert [data[number][1] for number in range(len(data))] == stored
    assert 0 in dp.Images(place, version=1).targets


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (9, r"has no version 9 \(but 1 to 1\)"),
        ("no", "has no version or tag 'no'"),
        ("", "version is ''"),
        (True, "version is True"),
    ],
)
def test_a_version_that_is_not_there_is_named(place: Path, version: Any, said: str) -> None:
    with pytest.raises((dp.errors.OptionError, dp.errors.MissingDataError), match=said):
        dp.Images(place, version=version)


def test_a_version_of_what_has_none_is_refused(folder: Path) -> None:
    with pytest.raises(dp.errors.OptionError, match=r"version='1': .* has no versions, as Lance datasets and the Hub have"):
        dp.Images(folder, version="1")
    with pytest.raises(dp.errors.OptionError, match="source is Images already"):
        dp.Images(dp.Images(folder), version=1)


def test_a_version_that_is_cleaned_up_meanwhile_is_named(folder: Path, place: Path) -> None:
    import lance

    loader = open_images(place, 8)
    lance.write_dataset(lance.dataset(str(place)).to_table(), str(place), mode="overwrite")
    from datetime import timedelta

    lance.dataset(str(place)).cleanup_old_versions(timedelta(0))
    with pytest.raises(dp.errors.MissingDataError, match=r"_versions/\d+\.manifest: is missing"):
        list(loader)


def test_a_dataset_that_is_replaced_is_indexed_again(folder: Path, place: Path) -> None:
    first = open_index(place).fingerprint
    shutil.rmtree(place)
    write(place, {"image": [jpeg(1)], "label": [1]})
    assert len(dp.Images(place)) == 1
    assert open_index(place).fingerprint != first


# -- processes --------------------------------------------------------------------------------------------


def _read(data: dp.Images, answers: Any) -> None:
    try:
        answers.put(data[5][0].numpy().tobytes())
    except dp.errors.LifecycleError as exc:
        answers.put(str(exc))


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_open_it_themselves(place: Path, method: str) -> None:
    """One that was forked after it was read here is told so: pylance's threads do not exist there."""
    data = dp.Images(place)
    here = data[5][0].numpy().tobytes()
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    process = context.Process(target=_read, args=(data, answers))
    process.start()
    found = answers.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0
    if method == "spawn":
        assert found == here
    else:
        assert "cannot read Lance datasets in the child; start processes by 'spawn'" in found


# -- tables --------------------------------------------------------------------------------------------------


def test_a_table_is_read_at_its_version(tmp_path: Path) -> None:
    rows = {"x": np.arange(50.0), "y": np.arange(50) % 3}
    place = write(tmp_path / "rows.lance", rows, max_rows_per_file=20)
    loader = dp.TableLoader(place, 8, shuffle=True, seed=1, label="y", version=1)
    first = [x for x, _ in loader]
    assert sorted(np.concatenate(first).ravel()[:50].tolist()) == sorted(rows["x"].tolist())
    state = dp.TableLoader(place, 8, shuffle=True, seed=1, label="y").state_dict()
    write(place, rows, mode="append")
    assert len(pickle.loads(pickle.dumps(loader)).dataset) == 50
    resumed = dp.TableLoader(place, 8, shuffle=True, seed=1, label="y")
    assert len(resumed.dataset) == 100
    resumed.load_state_dict(state)
    assert torch.equal(torch.cat([x for x, _ in resumed]), torch.cat(first))


def test_groups_of_rows_stay_where_they_are_while_a_table_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.peers.lance.groups._GROUP_NBYTES", 1 << 10)
    x = np.random.default_rng(0).random(1000)
    place = write(tmp_path / "rows.lance", {"x": x, "y": np.arange(1000) % 3})
    loader = dp.TableLoader(place, 8, shuffle=False, label="y")
    write(place, {"x": np.random.default_rng(1).random(20_000), "y": np.zeros(20_000, np.int64)}, mode="append")
    assert np.array_equal(torch.cat([batch for batch, _ in loader]).numpy().ravel(), x)


@pytest.mark.parametrize("to", ["parquet", "hdf5"])
def test_a_table_is_converted(tmp_path: Path, to: Literal["parquet", "hdf5"]) -> None:
    rows = {"x": np.arange(50.0), "y": np.arange(50) % 3}
    write(tmp_path / "rows.lance", rows, max_rows_per_file=20)
    convert_table(TableConversion(tmp_path / "rows.lance", tmp_path / "out", to=to))
    found = [batch for batch, _ in dp.TableLoader(tmp_path / "out", 8, shuffle=False, label="y")]
    assert np.array_equal(np.sort(torch.cat(found).numpy().ravel()[:50]), rows["x"])


# -- conversions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["webdataset", "hdf5", "parquet", "tfrecord"])
@pytest.mark.parametrize("blobs", [False, True])
def test_converted_it_gives_the_same_batches(folder: Path, tmp_path: Path, to: str, blobs: bool) -> None:
    """Also from a state in the middle of an epoch over the dataset itself."""
    place = write_lance(folder, tmp_path / "photos.lance", blobs=blobs)
    convert(place, tmp_path / "out", to=to)
    whole = batches(place, fields=["image", "label"])
    assert equal(whole, batches(tmp_path / "out", fields=["image", "label"]))
    loader = open_images(place, 8, shuffle=True, seed=1)
    next(iter(loader))
    state = loader.state_dict()
    resumed = open_images(tmp_path / "out", 8, shuffle=True, seed=1, output="dict", fields=["image", "label"])
    resumed.load_state_dict(state)
    assert equal(list(resumed), whole[1:])


# -- what is damaged ------------------------------------------------------------------------------------------------


def test_a_folder_of_datasets_names_them(place: Path) -> None:
    with pytest.raises(dp.errors.OptionError, match=r"holds the Lance datasets photos.lance: pass one of them, such as .*photos"):
        dp.DataLoader(place.parent, 8)


def test_files_that_are_cut_off_or_gone_are_named(place: Path) -> None:
    victim = sorted((place / "data").iterdir())[0]
    data = victim.read_bytes()
    victim.write_bytes(data[:-10])
    with pytest.raises(dp.errors.FormatError, match=rf"{victim.name}: has \d+ bytes, its dataset says \d+: cut off"):
        dp.Images(place)
    victim.unlink()
    with pytest.raises(dp.errors.MissingDataError, match=rf"{victim.name}: is missing, though version 1 has it"):
        dp.Images(place)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 64, b"LANC"])
def test_a_damaged_manifest_is_named(place: Path, damage: bytes) -> None:
    """Whether pylance says so by an error, or panics."""
    (manifest,) = (place / "_versions").glob("*.manifest")
    data = manifest.read_bytes()
    manifest.write_bytes(damage + data[len(damage) : -16] if damage else b"")
    with pytest.raises(dp.errors.FormatError, match=r"photos.lance \(version 1\): damaged, or of a version of Lance"):
        dp.Images(place)


def test_a_file_that_becomes_damaged_is_told_sample_by_sample(place: Path) -> None:
    loader = open_images(place, 8, on_error="skip")
    for path in (place / "data").iterdir():
        os.truncate(path, 100)
    assert sum(len(label) for _, label in loader) == 0
    assert "damaged, or changed since it was indexed" in loader.bad_samples[0].reason
