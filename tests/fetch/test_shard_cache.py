"""The cache of shards: always bounded, never wrong, never a cause of waiting, whichever process is killed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from faulty_store import PlantedFault
from fixtures import open_images
from shard_cache_driver import BLOCK, SIZES, contents, name_of
from stand_in_stores import BUCKET, directory_store, needs_obstore

import datapipe as dp
from datapipe import transforms as T
from datapipe.cli.main import main
from datapipe.fetch.shard_cache.directory import PART_SUFFIX, CacheDirectory
from datapipe.testing.loaders.kind import copies, same

URL = f"s3://{BUCKET}/train"
LOOK_S = 0.05


def put(directory: CacheDirectory, number: int, **options: Any) -> bool:
    """Fetch a shard as a whole; whether it is there now."""
    data = contents(number)
    part = directory.reserve(name_of(number), len(data), **{"keep": lambda name: False, **options})
    if part is None:
        return name_of(number) in directory.names()
    part.write(data, 0)
    return part.commit(name_of(number))


def read(directory: CacheDirectory, number: int) -> bytes | None:
    descriptor = directory.open_shard(name_of(number), SIZES[number])
    if descriptor is None:
        return None
    try:
        return os.pread(descriptor, SIZES[number], 0)
    finally:
        os.close(descriptor)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loaders look often at what there is in a cache."""
    monkeypatch.setattr("datapipe.fetch.shard_cache.cache._LOOK_S", LOOK_S)


# -- the protocol -----------------------------------------------------------------------------------


def test_shards_come_back_and_the_oldest_go(tmp_path: Path) -> None:
    directory = CacheDirectory(tmp_path / "c", 130_000)
    assert put(directory, 0)
    assert put(directory, 1)
    assert read(directory, 0) == contents(0)
    os.utime(directory.path / name_of(0), (1, 1))
    assert put(directory, 3)
    assert put(directory, 2)
    assert read(directory, 0) is None
    assert read(directory, 2) == contents(2)
    assert directory.held().nbytes <= 130_000


def test_rank_goes_before_age_and_the_caller_lets_go(tmp_path: Path) -> None:
    """What a pass needs last makes room, though it was read last, and though the caller itself holds it."""
    directory = CacheDirectory(tmp_path / "c", 130_000)
    assert put(directory, 0)
    assert put(directory, 1)
    os.utime(directory.path / name_of(1), (1, 1))
    held = {name_of(0): directory.open_shard(name_of(0), SIZES[0])}
    due = {name_of(0): 9.0, name_of(1): 5.0}
    options: dict[str, Any] = {"keep": lambda name: False, "rank": lambda name: -due[name]}
    assert put(directory, 2, release=lambda name: os.close(held.pop(name)), **options)  # type: ignore[arg-type]
    assert held == {}
    assert directory.names() == {name_of(1), name_of(2)}


def test_what_is_read_is_not_evicted(tmp_path: Path) -> None:
    directory = CacheDirectory(tmp_path / "c", 100_000)
    assert put(directory, 0)
    descriptor = directory.open_shard(name_of(0), SIZES[0])
    assert descriptor is not None
    assert not put(CacheDirectory(tmp_path / "c", 100_000), 4)
    os.close(descriptor)
    assert put(CacheDirectory(tmp_path / "c", 100_000), 4)


def test_own_shards_make_no_room_for_each_other(tmp_path: Path) -> None:
    directory = CacheDirectory(tmp_path / "c", 100_000)
    assert put(directory, 0)
    assert not put(directory, 4, keep=lambda name: name == name_of(0))
    assert read(directory, 0) == contents(0)


def test_one_fetches_and_nobody_waits(tmp_path: Path) -> None:
    one, other = CacheDirectory(tmp_path / "c", 500_000), CacheDirectory(tmp_path / "c", 500_000)
    part = one.reserve(name_of(0), SIZES[0], keep=lambda name: False)
    assert part is not None
    start_s = time.monotonic()
    assert other.reserve(name_of(0), SIZES[0], keep=lambda name: False) is None
    assert read(other, 0) is None
    assert time.monotonic() - start_s < 1
    assert put(other, 1), "others are fetched meanwhile"
    part.abandon()
    assert put(other, 0)


def test_while_another_counts_nothing_is_reserved(tmp_path: Path) -> None:
    directory = CacheDirectory(tmp_path / "c", 500_000)
    with open(directory.path / "lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert directory.reserve(name_of(0), SIZES[0], keep=lambda name: False) is None
    assert put(directory, 0)


def test_damage_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    directory = CacheDirectory(tmp_path / "c", 500_000)
    part = directory.reserve(name_of(0), SIZES[0], keep=lambda name: False)
    assert part is not None
    part.write(contents(0)[:-1] + b"\0", 0)
    assert not part.commit(name_of(0))
    assert directory.held().nbytes == 0
    part = directory.reserve(name_of(0), SIZES[0], keep=lambda name: False)
    assert part is not None
    with pytest.raises(ValueError, match="after 0"):
        part.write(b"x", 5)
    part.abandon()


def test_no_part_gets_its_name_while_another_process_counts(tmp_path: Path) -> None:
    """It would be counted under neither name, and more would be let in than there is room for."""
    directory = CacheDirectory(tmp_path / "c", 500_000)
    part = directory.reserve(name_of(0), SIZES[0], keep=lambda name: False)
    assert part is not None
    part.write(contents(0), 0)
    counts = os.open(tmp_path / "c" / "lock", os.O_RDWR)
    fcntl.flock(counts, fcntl.LOCK_EX)
    committer = threading.Thread(target=part.commit, args=(name_of(0),))
    committer.start()
    committer.join(0.2)
    assert {name for name, _ in directory.sizes()} == {name_of(0) + PART_SUFFIX}
    os.close(counts)
    committer.join(30)
    assert directory.names() == {name_of(0)}


def test_a_full_disk_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    directory = CacheDirectory(tmp_path / "c", 500_000)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        directory.reserve(name_of(0), SIZES[0], keep=lambda name: False)
    assert directory.held().nbytes == 0


def test_no_locks_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(dp.errors.StorageError, match=r"cannot be a cache of shards \(No locks available\); choose"):
        CacheDirectory(tmp_path / "c", 500_000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory to another user")
def test_another_users_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    os.chown(tmp_path / "c", 12345, 12345)
    with pytest.raises(dp.errors.StorageError, match="belongs to another user"):
        CacheDirectory(tmp_path / "c", 500_000)


def test_a_smaller_limit_than_before(tmp_path: Path) -> None:
    directory = CacheDirectory(tmp_path / "c", 500_000)
    assert all(put(directory, number) for number in range(4))
    smaller = CacheDirectory(tmp_path / "c", 80_000)
    smaller.shrink()
    assert 0 < smaller.held().nbytes <= 80_000


@pytest.mark.nightly
def test_killed_at_any_point(tmp_path: Path) -> None:
    """Four processes on one cache, killed again and again: within its bound, no bad shard, and no dead part stays."""
    limit, chance = 160_000, random.Random(0)
    watch = CacheDirectory(tmp_path / "c", limit)
    driver = Path(__file__).with_name("shard_cache_driver.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(driver.parents[2]), os.environ.get("PYTHONPATH", "")])}

    def start(seed: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(driver), str(watch.path), str(limit), str(seed)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    children = [start(seed) for seed in range(3)]
    try:
        for kill in range(9):
            end_s = time.monotonic() + 0.02 + chance.random() * 0.1
            while time.monotonic() < end_s:
                assert watch.held().nbytes <= limit + BLOCK * len(SIZES)
                for number in range(len(SIZES)):
                    found = read(watch, number)
                    assert found is None or found == contents(number)
            children[kill % 3].send_signal(signal.SIGKILL)
            said, _ = children[kill % 3].communicate(timeout=30)
            assert said == ""
            if kill < 6:
                children[kill % 3] = start(10 + kill)
    finally:
        for child in children:
            child.kill()
            child.communicate(timeout=30)
    watch.shrink()
    assert not [name for name, _ in watch.sizes() if name.endswith(PART_SUFFIX)]
    watch.clear()
    assert watch.held().nbytes == 0


# -- under a loader ---------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 2}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fixtures import convert, make_folder

    base = tmp_path_factory.mktemp("cached")
    return convert(make_folder(base / "folder", size=(40, 48)), base / "set")


def open_cached(cache: Path, nbytes: int | None = None, **options: Any) -> dp.DataLoader:
    remote = dp.Remote(cache_dir=cache, cache_nbytes=nbytes)
    return dp.DataLoader(dp.Images(URL, remote=remote), **{**OPTIONS, "transform": [T.RandomResizedCrop(24)], **options})


def filled(cache: Path, num_shards: int) -> CacheDirectory:
    """Wait until the cache has so many shards."""
    directory, end_s = CacheDirectory(cache, None), time.monotonic() + 20
    while directory.held().num_shards < num_shards and time.monotonic() < end_s:
        time.sleep(0.02)
    assert directory.held().num_shards == num_shards
    time.sleep(2 * LOOK_S)  # loaders may not have noticed yet
    return directory


@needs_obstore
def test_a_loader_fills_it_and_then_asks_no_more(converted: Path, tmp_path: Path) -> None:
    local = dp.DataLoader(str(converted), **OPTIONS, transform=[T.RandomResizedCrop(24)])
    with directory_store(tmp_path, train=converted) as store:
        loader = open_cached(tmp_path / "c")
        assert same(copies(loader), copies(local))
        directory = filled(tmp_path / "c", 4)
        before = store.num_requests
        assert same(copies(loader), copies(local))
        assert store.num_requests == before
        expected = {hashlib.sha256(path.read_bytes()).hexdigest() for path in converted.glob("*.tar")}
        assert directory.names() == expected
        again = open_cached(tmp_path / "c")
        local.set_epoch(0)
        before = store.num_requests
        assert same(copies(again), copies(local))
        assert store.num_requests == before, "a later run finds it warm"


@needs_obstore
@pytest.mark.parametrize("damage", ["a flipped bit", "cut", "removed"])
def test_damage_in_the_cache_changes_nothing(converted: Path, tmp_path: Path, damage: str) -> None:
    local = dp.DataLoader(str(converted), **OPTIONS, transform=[T.RandomResizedCrop(24)])
    with directory_store(tmp_path, train=converted):
        first = open_cached(tmp_path / "c")
        expected = copies(local)
        assert same(copies(first), expected)
        directory = filled(tmp_path / "c", 4)
        for name in directory.names():
            path = directory.path / name
            data = bytearray(path.read_bytes())
            if damage == "a flipped bit":
                data[3 * len(data) // 10] ^= 4
                data[5 * len(data) // 10] ^= 4
                path.write_bytes(data)
            elif damage == "cut":
                path.write_bytes(data[: len(data) // 2])
            else:
                path.unlink()
        assert same(copies(open_cached(tmp_path / "c")), expected)


@needs_obstore
def test_a_cache_for_some_of_the_shards(converted: Path, tmp_path: Path) -> None:
    local = dp.DataLoader(str(converted), **OPTIONS, transform=[T.RandomResizedCrop(24)])
    largest = max(path.stat().st_size for path in converted.glob("*.tar"))
    with directory_store(tmp_path, train=converted) as store:
        loader = open_cached(tmp_path / "c", 2 * (largest + BLOCK))
        assert same(copies(loader), copies(local))
        directory = filled(tmp_path / "c", 2)
        assert directory.held().nbytes <= 2 * (largest + BLOCK)
        before = store.num_requests
        assert same(copies(loader), copies(local))
        assert before < store.num_requests < before + 37
        told = "\n".join(dp.explain(loader).lines)
        assert f"2 of 4 shards are kept in {tmp_path / 'c'}" in told
        assert "a cache larger by 0.0 GB would hold all of them" in told


@needs_obstore
def test_a_cache_smaller_than_one_shard(converted: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with directory_store(tmp_path, train=converted):
        assert len(copies(open_cached(tmp_path / "c", 1000))) == 5
        end_s = time.monotonic() + 10
        while "is too small for a shard" not in caplog.text and time.monotonic() < end_s:
            time.sleep(0.02)
    assert caplog.text.count("is too small for a shard") == 1


@needs_obstore
def test_a_full_disk_ends_what_is_taken_in(
    converted: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with directory_store(tmp_path, train=converted):
        assert len(copies(open_cached(tmp_path / "c"))) == 5
        end_s = time.monotonic() + 10
        while "No space left" not in caplog.text and time.monotonic() < end_s:
            time.sleep(0.02)
    assert caplog.text.count("takes nothing more (No space left on device)") == 1


@needs_obstore
def test_filling_survives_a_bad_network(converted: Path, tmp_path: Path) -> None:
    with directory_store(tmp_path, train=converted) as store:
        store.weather.faults = [PlantedFault("truncate", share=0.3, times=5), PlantedFault("reset", share=0.3, times=5)]
        loader = open_cached(tmp_path / "c")
        assert len(copies(loader)) == 5
        filled(tmp_path / "c", 4)


@needs_obstore
def test_ranks_share_one_cache_and_resume_on_another_number(converted: Path, tmp_path: Path) -> None:
    """Two ranks, resumed as four, with a cold and with a warm cache: the samples of the local set."""

    def rest(source: str, state: dict[str, Any], **options: Any) -> list[Any]:
        found = []
        for rank in range(4):
            loader = open_images(source, **{**OPTIONS, "batch_size": 2}, output="dict", ranks=(rank, 4), **options)
            loader.load_state_dict(state)
            found.append([batch["id"].tolist() for batch in loader])
        return found

    with directory_store(tmp_path, train=converted):
        two = [open_cached(tmp_path / "c", batch_size=4, ranks=(rank, 2)) for rank in range(2)]
        for loader in two:
            next(iter(loader))
        state = two[0].state_dict()
        expected = rest(str(converted), state)
        cold = rest(URL, state, remote=dp.Remote(cache_dir=tmp_path / "other"))
        filled(tmp_path / "c", 4)
        warm = rest(URL, state, remote=dp.Remote(cache_dir=tmp_path / "c"))
    assert cold == expected
    assert warm == expected


@needs_obstore
def test_doctor_shows_and_empties_it(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with directory_store(tmp_path, train=converted):
        loader = open_cached(tmp_path / "c")
        copies(loader)
        directory = filled(tmp_path / "c", 4)
        del loader
    assert main(["doctor"]) == 0
    assert f"in 4 shards of object stores in {tmp_path / 'c'}" in capsys.readouterr().out
    end_s = time.monotonic() + 20
    while directory.held().num_shards and time.monotonic() < end_s:  # what the loader's threads still hold is left
        assert main(["doctor", "--empty-shard-caches"]) == 0
    assert directory.held().num_shards == 0
