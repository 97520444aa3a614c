"""Tars and Parquet files of others in a store: the samples of the local files, indexed once, whatever the network does."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_store import FaultyStore, PlantedFault
from fixtures import NUM_SAMPLES, make_folder, write_litdata, write_mds, write_parquet, write_webdataset
from stand_in_stores import BUCKET, directory_store, moto_store, needs_moto, needs_obstore, upload

import datapipe as dp
from datapipe import transforms as T
from datapipe.containers.remote_shards import expanded
from datapipe.core.remembering import remembered
from datapipe.core.user_cache import INDEXES, user_cache
from datapipe.errors import UnfinishedError
from datapipe.opening.samples import open_index
from datapipe.stores.random_access import RemoteBytes, pin_object
from datapipe.testing.loaders.kind import copies, same

pytestmark = [needs_obstore, needs_moto]
TOP = f"s3://{BUCKET}"
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 2, "transform": [T.RandomResizedCrop(24)]}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same photographs as tars, as Parquet whose images lie in one piece each, and as Parquet of row groups."""
    base = tmp_path_factory.mktemp("sets")
    folder = make_folder(base / "folder", size=(40, 48))
    return {
        "tars": write_webdataset(folder, base / "tars"),
        "plain": write_parquet(folder, base / "plain", compression="none", use_dictionary=False),
        "grouped": write_parquet(folder, base / "grouped", compression="zstd", row_group_size=3),
        "mds": write_mds(folder, base / "mds"),
        "litdata": write_litdata(folder, base / "litdata"),
    }


@pytest.fixture(scope="module")
def server(sets: dict[str, Path]) -> Iterator[FaultyStore]:
    with moto_store() as store:
        for name, path in sets.items():
            upload(path, name)
        yield store


@pytest.fixture
def store(server: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server.log.clear()
    yield server
    server.weather.faults.clear()


@pytest.mark.nightly
@pytest.mark.parametrize("shuffle", [True, False, "windows"])
@pytest.mark.parametrize("name", ["tars", "plain", "grouped", "mds", "litdata"])
def test_batches_and_states_are_those_of_the_local_files(
    store: FaultyStore, sets: dict[str, Path], name: str, shuffle: object
) -> None:
    options = {**OPTIONS, "shuffle": shuffle}
    here, there = dp.DataLoader(str(sets[name]), **options), dp.DataLoader(f"{TOP}/{name}", **options)
    expected = copies(here)
    iterator = iter(here)
    next(iterator), next(iterator)
    state = here.state_dict()
    second = copies(here)  # of the epoch after the one that was left
    assert same(copies(there), expected)
    there.load_state_dict(state)
    there.set_epoch(1)
    assert len(copies(there)) == len(expected) - 2
    assert same(copies(there), second)
    assert there.dataset.index.fingerprint == here.dataset.index.fingerprint
    assert there.dataset.targets == here.dataset.targets


def test_an_index_is_made_once_and_again_when_a_shard_changes(store: FaultyStore, sets: dict[str, Path], tmp_path: Path) -> None:
    copied = shutil.copytree(sets["tars"], tmp_path / "changing", ignore=shutil.ignore_patterns(".*"))
    upload(copied, "changing")
    first = open_index(f"{TOP}/changing")
    assert len(first) == NUM_SAMPLES
    store.log.clear()
    open_index(f"{TOP}/changing")
    assert not [line for line in store.log if line.endswith(".tar") and line.startswith("GET")], "the index is kept"
    names = sorted(path.name for path in copied.glob("*.tar"))
    (copied / names[0]).write_bytes((copied / names[1]).read_bytes())
    (copied / names[1]).unlink()
    upload(copied, "changing")
    loader = dp.DataLoader(dp.Images(first), **OPTIONS)
    with pytest.raises(
        dp.errors.StorageError, match=r"\.tar: changed since the loader opened it \(etag .+ -> .+\); open it again"
    ):
        copies(loader)
    store.log.clear()
    open_index(f"{TOP}/changing")
    assert [line for line in store.log if line == f"GET /{BUCKET}/changing/{names[0]}"]


@pytest.mark.daily(6)
@pytest.mark.parametrize(
    ("url", "num_shards"),
    [("tars/*.tar", 4), ("tars/set-00[01].tar", 2), ("tars/set-{000..003}.tar", 4),
     ("tars/{set-002,set-000}.tar", 2), ("tars/set-001.tar", 1), ("plain/*.parquet", 4), ("tars/", 4)],
)  # fmt: skip
def test_patterns_braces_and_prefixes(store: FaultyStore, sets: dict[str, Path], url: str, num_shards: int) -> None:
    index = open_index(f"{TOP}/{url}")
    assert len(index.manifest.shards) == num_shards
    if "{set-002" in url:
        assert [shard.name for shard in index.manifest.shards] == ["set-002.tar", "set-000.tar"], "as they are named"


def test_braces() -> None:
    assert list(expanded("a-{08..11}-{x,y}")) == [f"a-{number}-{end}" for number in ("08", "09", "10", "11") for end in "xy"]
    for wrong in ("a-{3..1}", "a-{1..2", "a-{0..99999999}"):
        with pytest.raises(dp.errors.FormatError):
            list(expanded(wrong))


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("tars/none-*.tar", dp.errors.MissingDataError, "no object matches"),
        ("tars/set-{000..009}.tar", dp.errors.MissingDataError, "set-004.tar: no such object"),
        ("{tars,plain}/a.tar", dp.errors.FormatError, "names shards under 2 prefixes"),
        ("*/a.tar", dp.errors.FormatError, "a pattern may stand in the last part of a URL alone"),
        ("tars/x.tfrecord", dp.errors.MissingDataError, "no such object"),
        ("nothing", dp.errors.MissingDataError, "nothing under this prefix"),
    ],
)
def test_what_cannot_be_read_is_named(store: FaultyStore, url: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        dp.DataLoader(f"{TOP}/{url}")


@pytest.mark.parametrize("form", ["", "/*.tar", "/set-{000..003}.tar"])
def test_a_conversion_that_is_under_way_is_no_data_of_others(
    store: FaultyStore, sets: dict[str, Path], tmp_path: Path, form: str
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / ".building").write_bytes(b"claim")
    upload(tmp_path / "x", "underway")
    for path in sets["tars"].glob("*.tar"):
        shutil.copy(path, tmp_path / "x")
    upload(tmp_path / "x", "underway")
    with pytest.raises(UnfinishedError, match="a conversion into it has not ended"):
        open_index(f"{TOP}/underway{form}")


@pytest.mark.parametrize("write", [write_mds, write_litdata])
def test_the_list_of_a_set_says_which_shards_it_has(
    store: FaultyStore, sets: dict[str, Path], tmp_path: Path, write: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    whole = write(make_folder(tmp_path / "folder", size=(40, 48)), tmp_path / "set")
    first = next(path for path in sorted(whole.iterdir()) if path.suffix != ".json")
    (tmp_path / "set" / first.name.replace("0.", "9.", 1)).write_bytes(b"of a run that was interrupted")
    upload(whole, f"listed-{write.__name__}")
    assert len(open_index(f"{TOP}/listed-{write.__name__}")) == NUM_SAMPLES
    assert "1 file not in its list of shards, so not read" in caplog.text
    packed = write(tmp_path / "folder", tmp_path / "packed", compression="zstd")
    upload(packed, f"packed-{write.__name__}")
    with pytest.raises(dp.errors.FormatError, match="compressed, so that no sample can be read by itself from a store; copy"):
        open_index(f"{TOP}/packed-{write.__name__}")


def test_other_formats_are_refused(store: FaultyStore, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.tfrecord").write_bytes(b"x")
    upload(tmp_path / "x", "records")
    with pytest.raises(
        dp.errors.FormatError,
        match="tfrecord is not read from stores, tar, parquet, mds, litdata, energon, beton are; copy or convert the files",
    ):
        dp.DataLoader(f"{TOP}/records")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["tars", "grouped"])
def test_a_bad_network_while_indexing_changes_nothing(store: FaultyStore, sets: dict[str, Path], name: str) -> None:
    store.weather.faults = [
        PlantedFault("truncate", share=0.3, times=8), PlantedFault("reset", share=0.3, times=8),
        PlantedFault("status", share=0.3, times=8),
    ]  # fmt: skip
    loader = dp.DataLoader(f"{TOP}/{name}", **OPTIONS)
    assert same(copies(loader), copies(dp.DataLoader(str(sets[name]), **OPTIONS)))
    assert sum(fault.done for fault in store.weather.faults) > 10


@pytest.mark.nightly
def test_a_store_that_stays_away_is_no_damage(store: FaultyStore) -> None:
    for name, suffix in (("tars", ".tar"), ("grouped", ".parquet")):
        next(iter(dp.DataLoader(dp.Images(f"{TOP}/{name}"), **OPTIONS)))  # which makes the index
        loader = dp.DataLoader(dp.Images(f"{TOP}/{name}", remote=dp.Remote(timeout_s=0.3)), **OPTIONS, on_error="skip")
        store.weather.faults = [PlantedFault("status", status=503, path=suffix)]
        with pytest.raises(dp.errors.StorageError, match="no success in"):
            copies(loader)
        assert loader.bad_samples == []
        store.weather.faults = []


def test_large_members_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tar of large images, headers are read; of one of small images each byte once, in few requests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("datapipe.stores.random_access._NEAR_NBYTES", 1000)
    monkeypatch.setattr("datapipe.stores.random_access._FIRST_NBYTES", 600)
    folder = make_folder(tmp_path / "folder", num=12, size=(200, 220))
    made = write_webdataset(folder, tmp_path / "set")
    with directory_store(tmp_path / "served", large=made) as store:
        read = 0
        fetch = RemoteBytes._keep

        def counted(self: RemoteBytes, start: int, block: bytes) -> None:
            nonlocal read
            if self.object.location.key.startswith("large/"):  # an earlier test's threads may still read its own objects
                read += len(block)
            fetch(self, start, block)

        monkeypatch.setattr(RemoteBytes, "_keep", counted)
        urls = f"{TOP}/large/" + "{" + ",".join(sorted(path.name for path in made.glob("*.tar"))) + "}"
        assert len(open_index(urls)) == 12
        assert 0 < read < sum(path.stat().st_size for path in made.glob("*.tar")) / 2
        assert store.num_requests < 100


def test_an_index_that_is_damaged_is_named(store: FaultyStore) -> None:
    index = open_index(f"{TOP}/tars")
    for path in user_cache(INDEXES).rglob("*.index.arrow"):
        path.write_bytes(b"x")
    with pytest.raises(dp.errors.FormatError, match="its index is damaged; remove"):
        index.look_up(index.ids(np.arange(3)), "image")


def test_a_command_looks_an_object_up_once_and_as_it_is_now(store: FaultyStore) -> None:
    """What an earlier opening pinned is not believed, and what was looked up since is."""
    url = f"{TOP}/tars/set-000.tar"
    pin_object(url, etag='"of an earlier one"', nbytes=1)
    with remembered():
        store.log.clear()
        found = [RemoteBytes(url).object for _ in range(3)]
        assert found[0].nbytes > 1
        assert [line for line in store.log if line.endswith("/tars/set-000.tar")] == ["HEAD /bkt/tars/set-000.tar"]
        pin_object(url, etag=found[0].etag, nbytes=found[0].nbytes)
        assert RemoteBytes(url).object is not found[0]


def kept(url: str, cache: Path, **options: Any) -> dp.DataLoader:
    """A loader over shards of others whose cache of shards is full."""
    loader = dp.DataLoader(dp.Images(url, remote=dp.Remote(cache_dir=cache)), **{**OPTIONS, **options})
    deadline, num_shards = time.monotonic() + 60, len(loader.dataset.index.manifest.shards)
    while sum(len(path.name) == 64 for path in cache.iterdir()) < num_shards:
        assert time.monotonic() < deadline
        copies(loader)
    return dp.DataLoader(dp.Images(url, remote=dp.Remote(cache_dir=cache)), **{**OPTIONS, **options})


@pytest.mark.daily(1)
@pytest.mark.parametrize("shuffle", [True, "windows"])
@pytest.mark.parametrize("name", ["tars", "plain", "grouped"])
def test_shards_of_others_are_kept(
    store: FaultyStore, sets: dict[str, Path], tmp_path: Path, name: str, shuffle: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full cache answers for every sample, in whatever form the samples lie."""
    monkeypatch.setattr("datapipe.fetch.shard_cache.cache._LOOK_S", 0.05)
    options = {**OPTIONS, "shuffle": shuffle}
    loader = kept(f"{TOP}/{name}/", tmp_path / "shards", shuffle=shuffle)
    store.log.clear()
    assert same(copies(loader), copies(dp.DataLoader(str(sets[name]), **options)))
    ours = [line for line in store.log if f"/{name}/" in line]  # an earlier test's threads may still read its own shards
    assert not [line for line in ours if line.startswith("GET") and line.endswith((".tar", ".parquet"))]
    facts = loader._passes.kind.store_facts()
    assert facts is not None
    assert facts.cached is not None
    num_there, num_all, hits, misses = facts.cached
    assert (num_there, misses) == (num_all, 0)
    assert hits >= NUM_SAMPLES
    assert f"{num_all} of {num_all} shards are kept in" in "\n".join(dp.explain(loader).lines)


@pytest.mark.nightly
def test_a_shard_that_was_replaced_is_kept_again(
    store: FaultyStore, sets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a shard in the cache holds its etag, so what was kept under the same URL is not taken for it."""
    monkeypatch.setattr("datapipe.fetch.shard_cache.cache._LOOK_S", 0.05)
    copied = shutil.copytree(sets["tars"], tmp_path / "renewed", ignore=shutil.ignore_patterns(".*"))
    upload(copied, "renewed")
    kept(f"{TOP}/renewed/", tmp_path / "shards")
    victim, other = sorted(copied.glob("*.tar"))[:2]
    victim.write_bytes(other.read_bytes())
    upload(copied, "renewed")
    loader = kept(f"{TOP}/renewed/", tmp_path / "shards")
    assert same(copies(loader), copies(dp.DataLoader(str(copied), **OPTIONS)))


@pytest.mark.nightly
def test_a_damaged_row_group_in_the_cache_is_read_from_the_store(
    store: FaultyStore, sets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("datapipe.fetch.shard_cache.cache._LOOK_S", 0.05)
    cache = tmp_path / "shards"
    loader = kept(f"{TOP}/grouped/", cache)
    for path in cache.iterdir():
        if len(path.name) == 64:
            path.write_bytes(bytes(path.stat().st_size))
    assert same(copies(loader), copies(dp.DataLoader(str(sets["grouped"]), **OPTIONS)))
    assert "damaged in the cache" in caplog.text
