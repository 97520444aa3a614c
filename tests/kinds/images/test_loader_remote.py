"""A loader over an object store gives the batches of the local set, whatever the network does, or says what is wrong."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faulty_store import FaultyStore, PlantedFault
from fixtures import entry_of, flip_bit, make_folder, open_images
from labelled_scenes import FIELDS, convert_scenes
from stand_in_stores import BUCKET, directory_store, needs_obstore

import datapipe as dp
from datapipe import transforms as T
from datapipe.core.user_cache import REMOTE_INDEXES, user_cache
from datapipe.opening.samples import open_index
from datapipe.testing.loaders.kind import copies, same

pytestmark = needs_obstore

URL = f"s3://{BUCKET}/train"
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 2}
RECIPE = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]


@pytest.fixture
def store(converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """The converted set as s3://bkt/train, and an empty cache of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with directory_store(tmp_path / "served", train=converted) as served:
        yield served


def open_remote(**options: Any) -> dp.DataLoader:
    return open_images(URL, **{**OPTIONS, "transform": RECIPE, **options})


def wait_until_idle() -> None:
    """Wait until no request is under way."""
    from datapipe.stores.requests import requests

    deadline_s = time.monotonic() + 10
    while requests().num_under_way and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert requests().num_under_way == 0


@pytest.fixture(scope="module")
def expected(converted: Path) -> list[Any]:
    """The batches of the local set."""
    return copies(dp.DataLoader(str(converted), **OPTIONS, transform=RECIPE))


def test_same_batches_state_and_samples(store: FaultyStore, converted: Path, expected: list[Any]) -> None:
    here, there = dp.DataLoader(str(converted), **OPTIONS, transform=RECIPE), open_remote()
    assert same(copies(there), expected)
    assert same(copies(there), copies(_second_epoch(here)))
    assert len(there.dataset) == len(here.dataset)
    assert all((a == b).all() if torch.is_tensor(a) else a == b for a, b in zip(there.dataset[5], here.dataset[5], strict=True))
    assert there.dataset.targets == here.dataset.targets
    assert there.dataset.index.fingerprint == here.dataset.index.fingerprint


def _second_epoch(loader: dp.DataLoader) -> dp.DataLoader:
    loader.set_epoch(1)
    return loader


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_any_number_of_threads(store: FaultyStore, expected: list[Any], num_workers: int) -> None:
    assert same(copies(open_remote(num_workers=num_workers)), expected)


def test_states_are_interchangeable(store: FaultyStore, converted: Path, expected: list[Any]) -> None:
    here, there = dp.DataLoader(str(converted), **OPTIONS, transform=RECIPE), open_remote()
    for first, second in ((here, open_remote()), (there, dp.DataLoader(str(converted), **OPTIONS, transform=RECIPE))):
        iterator = iter(first)
        next(iterator), next(iterator)
        second.load_state_dict(first.state_dict())
        assert same(copies(second), expected[2:])


def test_two_ranks_go_on_as_four(store: FaultyStore, converted: Path) -> None:
    """A state saved from the store on two ranks, resumed from the store on four: the samples of the local set, once each."""

    def loaders(source: str, world_size: int, batch_size: int) -> list[dp.DataLoader]:
        options = {**OPTIONS, "batch_size": batch_size, "transform": RECIPE, "output": "dict"}
        return [dp.DataLoader(source, **options, ranks=(rank, world_size)) for rank in range(world_size)]

    two = loaders(URL, 2, 4)
    for iterator in map(iter, two):
        next(iterator)
    state = two[0].state_dict()
    assert state == two[1].state_dict()
    found = []
    for source in (URL, str(converted)):
        ids = []
        for loader in loaders(source, 4, 2):
            loader.load_state_dict(state)
            ids.append([batch["id"].tolist() for batch in loader])
        found.append(ids)
    assert found[0] == found[1]


def test_only_what_is_needed_is_fetched(store: FaultyStore) -> None:
    loader = open_remote(shuffle=False)
    assert store.log == [f"GET /{BUCKET}/train/dataset.json"]
    iterator = iter(loader)
    next(iterator)
    first = [line for line in store.log if "index.arrow" in line]
    assert len(first) <= 4
    del iterator
    again = open_remote(shuffle=False)
    store.log.clear()
    copies(again)
    assert not [line for line in store.log if "index.arrow" in line], "sidecars are kept"


def test_fields_other_than_images(tmp_path: Path) -> None:
    scenes = convert_scenes(tmp_path)
    with directory_store(tmp_path / "served", train=scenes):
        options = {"batch_size": 4, "fields": list(FIELDS), "seed": 0, "shuffle": True, "transform": [T.CenterCrop(24)]}
        here, there = open_images(str(scenes), **options), open_images(URL, **options)
        for one, other in zip(here, there, strict=True):
            assert repr(one) == repr(other)


def test_mixed_with_a_local_set(store: FaultyStore, converted: Path) -> None:
    options = {**OPTIONS, "transform": RECIPE}
    both = dp.DataLoader(dp.mix([URL, str(converted)]), **options)
    local = dp.DataLoader(dp.mix([str(converted), str(converted)]), **options)
    assert same(copies(both), copies(local))


def test_a_cache_of_decoded_images(store: FaultyStore, tmp_path: Path) -> None:
    recipe = [T.Resize((32, 32)), T.RandomCrop(24)]
    plain = open_remote(transform=recipe)
    kept = open_remote(transform=recipe, cache=str(tmp_path / "decoded"))
    first, second = copies(plain), copies(plain)
    assert same(copies(kept), first)
    before = store.num_requests
    assert same(copies(kept), second)
    assert store.num_requests == before, "nothing is fetched that is kept decoded"


# -- faults, each ending in the same batches ---------------------------------------------------------


FAULTS = {
    "resets": PlantedFault("reset", share=0.2, path=".tar"),
    "a burst of 503": PlantedFault("status", status=503, times=20, path=".tar"),
    "429": PlantedFault("status", status=429, times=5, path=".tar"),
    "500": PlantedFault("status", status=500, share=0.2, path=".tar"),
    "truncated bodies": PlantedFault("truncate", share=0.2, path=".tar"),
    "a stalled body": PlantedFault("stall", times=2, path=".tar"),
    "slow bodies": PlantedFault("slow", share=0.3, seconds=0.2, path=".tar"),
    "bits flipped on the wire": PlantedFault("flip", times=6, path=".tar", spares_again=True),
    "a flipped bit in an index": PlantedFault("flip", times=1, path="index.arrow"),
    "faults of the indexes": PlantedFault("reset", times=2, path="index.arrow"),
    "faults of the manifest": PlantedFault("status", status=503, times=2, path="dataset.json"),
}


@pytest.mark.daily(5)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_change_nothing(store: FaultyStore, expected: list[Any], name: str) -> None:
    fault = FAULTS[name]
    fault.done = 0
    fault.asked.clear()
    store.weather.faults = [fault]
    assert same(copies(open_remote()), expected)
    assert fault.done, "the fault did not come about"


@pytest.mark.nightly
def test_latency_of_200_ms_with_resets(store: FaultyStore, expected: list[Any]) -> None:
    store.weather.latency_s = 0.2
    store.weather.faults = [PlantedFault("reset", share=0.05)]
    start_s = time.monotonic()
    assert same(copies(open_remote()), expected)
    assert time.monotonic() - start_s < 20  # one after the other its 37 samples alone would take 7.4 s, its indexes 0.8


@pytest.mark.nightly
def test_a_diagnosis_names_the_network(store: FaultyStore, converted: Path) -> None:
    from datapipe.analysis.judge.attribution import attribute_events
    from datapipe.core.observe import StageEvent

    def fault_of(loader: dp.DataLoader) -> tuple[str | None, set[str]]:
        events: list[StageEvent] = []
        loader.observe(events.append)
        copies(loader)
        return attribute_events([events]).fault, {event.stage.value for event in events}

    store.weather.latency_s = 0.2
    fault, stages = fault_of(open_remote())
    assert fault == "network"
    assert {"plan", "read"} <= stages
    store.weather.latency_s = 0
    store.weather.faults = [PlantedFault("slow", seconds=1.5, path="index.arrow")]
    shutil.rmtree(user_cache(REMOTE_INDEXES))
    assert fault_of(open_remote())[0] == "network", "waiting for an index is not planning"
    assert "network" not in fault_of(dp.DataLoader(str(converted), **OPTIONS, transform=RECIPE))[1]


def test_explain_tells_of_the_store(store: FaultyStore, converted: Path) -> None:

    loader = open_remote(ranks=(0, 4))
    copies(loader)
    told = "\n".join(dp.explain(loader).lines)
    assert "store     a request for each sample" in told
    assert "shards are not cached: Images(..., remote=datapipe.Remote(cache_dir=...)) caches them" in told
    assert "store " not in "\n".join(dp.explain(dp.DataLoader(str(converted), **OPTIONS)).lines)


def test_throttling_is_heeded(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from datapipe.stores.window import RequestWindow

    throttled, heeded = RequestWindow.throttled, []
    monkeypatch.setattr(RequestWindow, "throttled", lambda window: heeded.append(throttled(window)))
    store.weather.faults = [PlantedFault("status", status=503, code="SlowDown", times=10, path=".tar")]
    copies(open_remote())
    assert len(heeded) == 10


# -- faults, each ending in one named error --------------------------------------------------------


@pytest.mark.nightly
def test_a_store_that_stays_away_is_an_error_not_a_bad_sample(store: FaultyStore) -> None:
    loader = open_remote(on_error="skip", remote=dp.Remote(timeout_s=0.5))
    store.weather.faults = [PlantedFault("status", status=503, path=".tar")]
    said = rf"{URL}/shard-0+\d\.tar: no success in \d s and \d+ attempts, with 0.5 s at most: the store throttles requests"
    with pytest.raises(dp.errors.StorageError, match=said):
        copies(loader)
    assert loader.bad_samples == []


def test_credentials_that_expire(store: FaultyStore) -> None:
    loader = open_remote(on_error="skip")
    iterator = iter(loader)
    next(iterator)
    store.weather.faults = [PlantedFault("status", status=400, code="ExpiredToken")]
    with pytest.raises(dp.errors.StorageError, match="the credentials have expired; renew them, and resume from the saved state"):
        copies(loader)
    wait_until_idle()
    store.weather.faults = []
    assert len(copies(loader)) == len(loader), "renewed, it goes on"


def test_a_shard_replaced_in_mid_epoch(store: FaultyStore, tmp_path: Path) -> None:
    loader = open_remote(on_error="skip", shuffle=False)
    before, shards = copies(loader), list((tmp_path / "served" / BUCKET / "train").glob("*.tar"))
    for path in shards:
        path.write_bytes(path.read_bytes())
    loader.set_epoch(0)
    assert same(copies(loader), before), "the same bytes, by their checksums, whatever their etag"
    for path in shards:
        path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(
        dp.errors.StorageError, match=r"\.tar: changed since the loader opened it \(etag .+ -> .+\); open it again"
    ):
        copies(loader)
    for path in shards:
        path.write_bytes(path.read_bytes()[::-1])
    assert same(copies(open_remote(shuffle=False)), before)


def test_a_shard_that_is_gone(store: FaultyStore, tmp_path: Path) -> None:
    loader = open_remote(on_error="skip")
    for path in (tmp_path / "served" / BUCKET / "train").glob("*.tar"):
        path.unlink()
    with pytest.raises(dp.errors.MissingDataError, match=rf"{URL}/.*\.tar: no such object"):
        copies(loader)


def test_a_manifest_replaced(store: FaultyStore, tmp_path: Path) -> None:
    """An open loader keeps to what it opened; indexes of another conversion are refused, by name."""
    from fixtures import convert

    loader = open_remote()
    other = convert(make_folder(tmp_path / "other", num=30, size=(40, 48)), tmp_path / "other-set")
    served = tmp_path / "served" / BUCKET / "train"
    for path in other.iterdir():
        (served / path.name).write_bytes(path.read_bytes())
    with pytest.raises(dp.errors.FormatError, match=r"index\.arrow: differs from what the manifest says \(sha256\): replaced"):
        copies(loader)
    assert len(open_remote().dataset) == 30


def test_a_byte_damaged_in_the_store(store: FaultyStore, converted: Path, tmp_path: Path) -> None:
    path, offset, nbytes = entry_of(open_index(converted), 7)
    flip_bit(tmp_path / "served" / BUCKET / "train" / Path(path).name, offset + nbytes // 2)
    with pytest.raises(dp.errors.IntegrityError, match=r"crc32c .*, fetched twice: damaged"):
        copies(open_remote())
    loader = open_remote(on_error="skip")
    batches = copies(loader)
    assert sum(len(batch[0]) for batch in batches) == 36
    assert [bad.id for bad in loader.bad_samples] == [7]


def test_a_server_without_ranges(store: FaultyStore) -> None:
    store.weather.faults = [PlantedFault("whole", path=".tar")]
    with pytest.raises(dp.errors.StorageError, match="the server ignores ranges"):
        copies(open_remote())


def test_fork_after_first_use(store: FaultyStore) -> None:
    loader = open_remote()
    copies(loader)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(iter(open_remote(num_workers=0)))
            os.write(writer, b"no error")
        except BaseException as exc:
            os.write(writer, f"{type(exc).__name__}: {exc}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    assert said.startswith("LifecycleError: an object store was used in this process before it forked")
    assert "spawn" in said


def test_leaving_a_pass_early_gives_up_its_requests(store: FaultyStore) -> None:
    loader = open_remote()
    store.weather.latency_s = 0.05
    for _ in range(3):
        iterator = iter(loader)
        next(iterator)
        del iterator
    wait_until_idle()


def test_a_pass_that_is_collected_by_the_thread_of_requests(store: FaultyStore) -> None:
    """A collection may find a dropped iterator in any thread; this one must go on making what the pass's threads wait for."""
    from datapipe.stores.requests import requests

    store.weather.latency_s = 0.05
    iterator = iter(open_remote(remote=dp.Remote(requests=1)))
    cycle: list[Any] = [iterator]
    cycle.append(cycle)
    collected = threading.Event()
    gc.disable()
    try:
        next(iterator)  # the samples of the others come one by one
        del iterator, cycle
        requests()._loop.call_soon_threadsafe(lambda: (gc.collect(), collected.set()))
        assert collected.wait(5)
    finally:
        gc.enable()


@pytest.mark.parametrize("value", [{"requests": 0}, {"timeout_s": 0}, {"cache_nbytes": -1}])
def test_settings_that_make_no_sense(value: dict[str, Any]) -> None:
    with pytest.raises(dp.errors.OptionError):
        dp.Remote(**value)


def test_order_is_that_of_arithmetic(store: FaultyStore, converted: Path) -> None:
    """Labels and ids of a weighted sampler agree too."""
    weights = np.arange(1, 38, dtype=np.float64)
    options = {"batch_size": 8, "seed": 1, "transform": RECIPE, "output": "dict"}
    sampler = dp.WeightedSampler(weights, num_samples=40)
    found = [
        [batch["id"].tolist() for batch in dp.DataLoader(source, sampler=sampler, **options)] for source in (URL, str(converted))
    ]
    assert found[0] == found[1]
