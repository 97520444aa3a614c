"""Conversions into a store: the bytes of a local conversion, resumable, the manifest last, and never two mixed."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_store import FaultyStore, PlantedFault
from fixtures import convert, make_folder
from stand_in_stores import BUCKET, moto_store, needs_moto

import datapipe as dp
from converters import ConvertOptions, OnError, Part, shards
from converters.planning.plan import ConversionPlan, PlannedShard
from converters.publishing import claims, delivery
from converters.publishing.delivery import StoreDelivery
from converters.to_store import convert_to_store
from datapipe.cli.main import main
from datapipe.core.remembering import remembered
from datapipe.core.user_cache import STAGED, user_cache
from datapipe.errors import UnfinishedError
from datapipe.opening.samples import open_index
from datapipe.stores import transfers
from datapipe.stores.location import Location
from datapipe.stores.objects import list_names, read_object
from datapipe.stores.places import parse_location
from datapipe.testing.loaders.kind import copies

pytestmark = needs_moto


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyStore]:
    with moto_store() as store:
        yield store


@pytest.fixture
def store(server: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield server
    server.weather.faults.clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("source") / "folder", size=(40, 48))


@pytest.fixture(scope="module")
def local(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the conversion on a disk."""
    made = convert(folder, tmp_path_factory.mktemp("local") / "set")
    return {path.name: path.read_bytes() for path in made.iterdir()}


def options_of(folder: Path, **options: Any) -> ConvertOptions:
    return ConvertOptions(folder, Path("unused"), **{"shard_nbytes": 12_000, "num_workers": 1, **options})


def objects(location: Location) -> dict[str, bytes]:
    return {name: read_object(location / name) for name in list_names(location)}


@pytest.mark.nightly
def test_same_bytes_as_on_a_disk(store: FaultyStore, folder: Path, local: dict[str, bytes]) -> None:
    place = parse_location(f"s3://{BUCKET}/plain")
    convert_to_store(options_of(folder), place)
    assert objects(place) == local
    written = [line for line in store.log if line.startswith("PUT") and "/plain/" in line]
    assert written[0].endswith("/.building")
    assert written[-1].endswith("/dataset.json")
    assert len(written) == len(local) + 1
    assert not any(user_cache(STAGED).iterdir()), "nothing is left on the local disk"
    store.log.clear()
    assert convert_to_store(options_of(folder), place).compared
    assert not [line for line in store.log if line.startswith(("PUT", "DELETE"))]
    with pytest.raises(dp.errors.OptionError, match=f"{place}: holds a finished dataset, made with other options"):
        convert_to_store(options_of(folder, seed=9), place)


@pytest.mark.nightly
def test_shards_that_a_cluster_built(store: FaultyStore, folder: Path, local: dict[str, bytes]) -> None:
    """Tasks of Ray hand shards over by the disk; the command takes each to the store when it is complete."""
    pytest.importorskip("ray", reason="Ray is not installed (the extra `ray`)")
    place = parse_location(f"s3://{BUCKET}/cluster")
    assert convert_to_store(options_of(folder, engine="ray"), place).num_written > 1
    assert objects(place) == local
    assert not any(user_cache(STAGED).iterdir()), "nothing is left on the local disk"


@pytest.mark.nightly
@pytest.mark.parametrize("when", ["before", "after"])
def test_stopped_around_each_put(
    store: FaultyStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Every PUT of a conversion is where a run ends, one run after the other; no reader sees a dataset before the last one."""
    place, put = parse_location(f"s3://{BUCKET}/stopped-{when}"), transfers._put
    stopped: set[str] = set()

    class StoppedError(BaseException):
        pass

    def put_or_stop(location: Location, contents: Any, *, overwrite: bool) -> None:
        is_new = location.name not in stopped
        stopped.add(location.name)
        if is_new and when == "before":
            raise StoppedError
        put(location, contents, overwrite=overwrite)
        if is_new:
            raise StoppedError

    monkeypatch.setattr(transfers, "_put", put_or_stop)
    monkeypatch.setattr(delivery, "_AT_ONCE", 1)
    expected = {path.name: path.read_bytes() for path in convert(folder, tmp_path / "set", shard_nbytes=1_000_000).iterdir()}
    for _ in range(len(expected) + 2):
        try:
            convert_to_store(options_of(folder, shard_nbytes=1_000_000), place)
            break
        except StoppedError:
            if "dataset.json" not in stopped:
                with pytest.raises((dp.errors.MissingDataError, UnfinishedError)):
                    open_index(str(place))
    assert stopped == {".building", *expected}
    assert objects(place) == expected


def test_a_bad_network(store: FaultyStore, folder: Path, local: dict[str, bytes]) -> None:
    place = parse_location(f"s3://{BUCKET}/bad-network")
    store.weather.faults = [
        PlantedFault("reset", share=0.2, method="PUT", times=5),
        PlantedFault("status", share=0.2, method="PUT", times=5),
        PlantedFault("truncate", share=0.3, method="PUT", times=5),  # written, and the answer lost
    ]
    convert_to_store(options_of(folder), place)
    assert objects(place) == local


def test_two_conversions_into_one_place(
    store: FaultyStore, folder: Path, local: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One finishes; the other stops with an error and has written nothing."""
    place, take = parse_location(f"s3://{BUCKET}/two"), StoreDelivery.take
    losers: list[str] = []

    def take_while_another_begins(self: StoreDelivery, shard: PlannedShard) -> None:
        if not losers:
            losers.append("began")
            said = f"{place}: another conversion, of other options or another source, was begun there"
            with pytest.raises(dp.errors.StorageError, match=said):
                convert_to_store(options_of(folder, seed=7), place)
            losers.append("ended")
        take(self, shard)

    monkeypatch.setattr(StoreDelivery, "take", take_while_another_begins)
    convert_to_store(options_of(folder), place)
    assert losers == ["began", "ended"]
    assert objects(place) == local
    with pytest.raises(dp.errors.OptionError, match="made with other options"):
        convert_to_store(options_of(folder, seed=7), place)


@pytest.mark.nightly
def test_two_machines_make_the_same(
    store: FaultyStore,
    folder: Path,
    local: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another machine runs the same conversion from its beginning to its end while one is at its second shard."""
    place, take = parse_location(f"s3://{BUCKET}/same"), StoreDelivery.take
    taken: list[int] = []

    def take_while_another_converts(self: StoreDelivery, shard: PlannedShard) -> None:
        taken.append(shard.number)
        if len(taken) == 2:
            with pytest.MonkeyPatch.context() as elsewhere:
                elsewhere.setenv("XDG_CACHE_HOME", str(tmp_path / "another-machine"))
                convert_to_store(options_of(folder), place)
            assert objects(place) == local
        take(self, shard)

    monkeypatch.setattr(StoreDelivery, "take", take_while_another_converts)
    convert_to_store(options_of(folder), place)
    assert "another process has finished the same conversion first" in caplog.text
    assert objects(place) == local


@pytest.mark.nightly
def test_taken_over_by_another(store: FaultyStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --overwrite a place is taken from a conversion that is under way; that one stops, and the other one's set is whole."""
    place, take = parse_location(f"s3://{BUCKET}/taken"), StoreDelivery.take
    taken: list[int] = []

    def take_while_another_takes_over(self: StoreDelivery, shard: PlannedShard) -> None:
        taken.append(shard.number)
        if len(taken) == 2:
            convert_to_store(options_of(folder, shard_nbytes=40_000, overwrite=True), place)
            claims.write(b'{"plan": "x", "sets": [""], "replaced": {}, "replaces": []}', place / ".building", overwrite=False)
        take(self, shard)

    monkeypatch.setattr(StoreDelivery, "take", take_while_another_takes_over)
    with pytest.raises(dp.errors.StorageError, match="another conversion took this place over with --overwrite"):
        convert_to_store(options_of(folder), place)
    expected = {path.name: path.read_bytes() for path in convert(folder, tmp_path / "set", shard_nbytes=40_000).iterdir()}
    found = objects(place)
    del found[".building"]
    assert found == expected


@pytest.mark.nightly
def test_the_local_disk_holds_few_shards(
    store: FaultyStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, put, most = parse_location(f"s3://{BUCKET}/bounded"), transfers._put, 0

    def slow_put(location: Location, contents: Any, *, overwrite: bool) -> None:
        nonlocal most
        if location.name.endswith(".tar"):
            most = max(most, len(list(user_cache(STAGED).glob("*/made/.building/*.tar"))))
            time.sleep(0.05)
        put(location, contents, overwrite=overwrite)

    monkeypatch.setattr(transfers, "_put", slow_put)
    monkeypatch.setattr(delivery, "_AT_ONCE", 1)
    convert_to_store(options_of(folder, shard_nbytes=4_000), place)
    num_shards = sum(name.endswith(".tar") for name in list_names(place))
    assert num_shards > 8
    assert 1 <= most <= 3, "the shard that is built, the one that is written, and the one whose files are being removed"


@pytest.mark.nightly
def test_a_full_local_disk(store: FaultyStore, folder: Path, local: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the local disk and what to do, and the same command goes on once there is room."""
    place, open_shard = parse_location(f"s3://{BUCKET}/full"), shards.write_sidecar
    calls: list[int] = []

    def full_at_the_third(*args: Any) -> str:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_shard(*args)

    monkeypatch.setattr(shards, "write_sidecar", full_at_the_third)
    with pytest.raises(dp.errors.StorageError, match=f"{place}: .*No space left on device; .*set XDG_CACHE_HOME to another disk"):
        convert_to_store(options_of(folder), place)
    store.log.clear()
    convert_to_store(options_of(folder), place)
    assert objects(place) == local
    written = [line for line in store.log if line.startswith("PUT") and line.endswith(".tar")]
    assert len(written) == sum(name.endswith(".tar") for name in local) - 2, "the two shards before are not written again"


@pytest.mark.nightly
def test_a_bad_sample_then_skipped(store: FaultyStore, folder: Path, tmp_path: Path) -> None:
    """A conversion that failed at a bad sample goes on with another policy, and quarantined files reach the store."""
    place, spoiled = parse_location(f"s3://{BUCKET}/bad-sample"), tmp_path / "spoiled"
    shutil.copytree(folder, spoiled)
    bad = sorted(path for path in spoiled.rglob("*") if path.is_file())[5]
    bad.write_bytes(b"not an image")
    with pytest.raises(dp.errors.DecodeError, match="bad sample"):
        convert_to_store(options_of(spoiled), place)
    report = convert_to_store(options_of(spoiled, on_error=OnError.QUARANTINE), place)
    assert report.num_errors == 1
    expected = convert(spoiled, tmp_path / "set", on_error=OnError.QUARANTINE)
    files = {str(path.relative_to(expected)): path.read_bytes() for path in expected.rglob("*") if path.is_file()}
    assert any(name.startswith("quarantine/") for name in files)
    assert {name: read_object(place / name) for name in files} == files


@pytest.mark.nightly
def test_large_shards_are_written_in_parts(
    store: FaultyStore, folder: Path, local: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = parse_location(f"s3://{BUCKET}/parts")
    monkeypatch.setattr(transfers, "ONE_REQUEST_NBYTES", 4_000)
    store.weather.faults = [PlantedFault("status", share=0.3, method="PUT", path=".tar", times=3)]
    convert_to_store(options_of(folder), place)
    assert any(line.startswith("POST") and line.endswith(".tar") for line in store.log)
    assert objects(place) == local


def test_shards_that_were_replaced_meanwhile(store: FaultyStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, settle = parse_location(f"s3://{BUCKET}/replaced"), StoreDelivery.settle

    def settle_after_another_wrote(self: StoreDelivery, plan: ConversionPlan) -> None:
        for one in self._running:
            one.result()
        transfers.write(b"something else", place / "shard-000001.tar", overwrite=True)
        settle(self, plan)

    monkeypatch.setattr(StoreDelivery, "settle", settle_after_another_wrote)
    with pytest.raises(dp.errors.StorageError, match=f"{place}/shard-000001.tar: was replaced since this conversion wrote it"):
        convert_to_store(options_of(folder), place)
    assert "dataset.json" not in list_names(place)


@pytest.mark.nightly
def test_killed_at_any_put(store: FaultyStore, folder: Path, tmp_path: Path) -> None:
    """SIGKILL before and after every PUT, each in a process of its own; the last run ends with the same bytes as on a disk."""
    place = f"s3://{BUCKET}/killed"
    expected = {path.name: path.read_bytes() for path in convert(folder, tmp_path / "set", shard_nbytes=1_000_000).iterdir()}
    driver = [sys.executable, str(Path(__file__).with_name("store_kill_driver.py")), str(folder), place]
    names = [".building", *(f"shard-000000{suffix}" for suffix in (".tar", ".tar.index.arrow", ".idx")), "dataset.json"]
    assert {*names} == {".building", *expected}
    for name in names:
        for when in ("before", "after"):
            ended = subprocess.run([*driver, name, when], timeout=120, check=False)
            assert ended.returncode == -signal.SIGKILL, (name, when)
    assert subprocess.run([*driver, "none", "before"], timeout=120, check=False).returncode == 0
    assert objects(parse_location(place)) == expected


def test_other_objects_are_left_alone(store: FaultyStore, folder: Path, tmp_path: Path) -> None:
    place = parse_location(f"s3://{BUCKET}/strange")
    (tmp_path / "x").write_bytes(b"not a shard")
    transfers.upload(tmp_path / "x", place / "shard-000000.tar", overwrite=False)
    with pytest.raises(dp.errors.StorageError, match=f"{place}/shard-000000.tar: holds something else"):
        convert_to_store(options_of(folder), place)
    assert read_object(place / "shard-000000.tar") == b"not a shard"


def test_the_manifest_is_written_once(
    store: FaultyStore, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process finishes the same conversion just before."""
    place, write = parse_location(f"s3://{BUCKET}/race"), delivery.upload

    def write_after_another(path: Path, location: Location, *, overwrite: bool) -> bool:
        if location.name == "dataset.json":
            assert write(path, location, overwrite=False)
        return write(path, location, overwrite=overwrite)

    monkeypatch.setattr(delivery, "upload", write_after_another)
    convert_to_store(options_of(folder), place)
    assert "another process has finished the same conversion first" in caplog.text


@pytest.mark.nightly
def test_a_destination_is_looked_at_again(store: FaultyStore, folder: Path) -> None:
    """A command that remembers what its source holds sees what came to its destination meanwhile."""
    place = parse_location(f"s3://{BUCKET}/again")
    with remembered():
        assert not claims.find_present(place).manifests
        assert not list_names(place)
        transfers.write(b"{}", place / "train" / "dataset.json", overwrite=False)
        assert list(claims.find_present(place).manifests) == ["train"]


def test_overwriting_deletes_the_manifest_first(store: FaultyStore, folder: Path, tmp_path: Path) -> None:
    place = parse_location(f"s3://{BUCKET}/over")
    convert_to_store(options_of(folder), place)
    store.log.clear()
    convert_to_store(options_of(folder, shard_nbytes=40_000, overwrite=True), place)
    changes = [line for line in store.log if line.split()[0] in ("PUT", "DELETE", "POST")]
    assert changes[0] == f"PUT /{BUCKET}/over/.building"
    assert changes[1].startswith(("DELETE", "POST")), "the manifest goes before anything is replaced"
    assert set(objects(place)) == {path.name for path in convert(folder, tmp_path / "set", shard_nbytes=40_000).iterdir()}


@pytest.mark.nightly
def test_overwriting_goes_on_where_it_was_stopped(
    store: FaultyStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before the claim, after it, after each PUT and each DELETE; nothing of the old set is left in the end."""
    place, put, remove = parse_location(f"s3://{BUCKET}/over-again"), transfers._put, claims.delete
    convert_to_store(options_of(folder, shard_nbytes=4_000), place)
    calls, stop_at = 0, 0

    class StoppedError(BaseException):
        pass

    def stop(work: Any, *args: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise StoppedError
        work(*args, **options)
        if calls == stop_at + 1:
            raise StoppedError

    monkeypatch.setattr(transfers, "_put", lambda *args, **options: stop(put, *args, **options))
    for module in (claims, delivery):
        monkeypatch.setattr(module, "delete", lambda *args: stop(remove, *args))
    monkeypatch.setattr(delivery, "_AT_ONCE", 1)
    for number in range(1, 60, 3):
        calls, stop_at = 0, number
        try:
            convert_to_store(options_of(folder, shard_nbytes=1_000_000, overwrite=True), place)
            break
        except StoppedError:
            pass
    else:
        raise AssertionError("it never ended")
    assert number > 4
    expected = convert(folder, tmp_path / "set", shard_nbytes=1_000_000)
    assert objects(place) == {path.name: path.read_bytes() for path in expected.iterdir()}


def test_a_claim_names_no_other_objects(store: FaultyStore, folder: Path, tmp_path: Path) -> None:
    """A claim is an object that anybody may have written: what it says to remove must be of a dataset."""
    place = parse_location(f"s3://{BUCKET}/forged")
    transfers.write(b"precious", place / "notes.txt", overwrite=False)
    transfers.write(
        b'{"plan": "x", "sets": [""], "replaced": {}, "replaces": ["notes.txt", "../y"]}', place / ".building", overwrite=False
    )
    convert_to_store(options_of(folder, overwrite=True), place)
    assert read_object(place / "notes.txt") == b"precious"


@pytest.mark.nightly
def test_splits_and_the_command(store: FaultyStore, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"s3://{BUCKET}/split"
    assert main(["convert", str(folder), url, "--to", "webdataset", "--split", "train=0.8,val=0.2", "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert f"{url}/train: 31 samples" in said
    assert "staged" not in said
    assert (
        main(["convert", str(folder), url, "--to", "webdataset", "--split", "train=0.8,val=0.2", "--workers", "1", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["destination"] == url
    options: dict[str, Any] = {"batch_size": 5, "seed": 0, "shuffle": True}
    assert len(copies(dp.DataLoader(f"{url}/val", **options))) == 2
    assert main(["verify", f"{url}/train"]) == 0


def test_places_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(dp.errors.OptionError, match="cannot be written; choose a place in one of s3://, gs://, az://"):
        convert_to_store(options_of(folder), parse_location("https://host/x"))
    with pytest.raises(dp.errors.OptionError, match="--part needs"):
        convert_to_store(dataclasses.replace(options_of(folder), part=Part(1, 2)), parse_location("s3://b/x"))
