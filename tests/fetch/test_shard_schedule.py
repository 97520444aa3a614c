"""In windows the cache of shards fetches what is due next, and evicts what is due last."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures import convert, make_folder, open_images
from stand_in_stores import BUCKET, directory_store, needs_obstore

import datapipe as dp
from datapipe.fetch.remote import RemoteFiles
from datapipe.fetch.shard_cache import filling
from datapipe.fetch.shard_cache.cache import ShardCache
from datapipe.fetch.shard_cache.filling import Filling, WindowFiller
from datapipe.fetch.shard_cache.schedule import Schedule, ShardUse
from datapipe.kinds.images.kind import shard_uses
from datapipe.testing.loaders.kind import copies, same

URL = f"s3://{BUCKET}/train"
OPTIONS: dict[str, Any] = {"batch_size": 2, "shuffle": "windows", "seed": 1, "num_workers": 1}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 samples in some 30 shards."""
    base = tmp_path_factory.mktemp("many")
    return convert(make_folder(base / "folder", num=240, size=(16, 16)), base / "set", shard_nbytes=8_000)


@pytest.fixture
def served(many: Path, tmp_path: Path) -> Iterator[Path]:
    with directory_store(tmp_path / "served", train=many):
        yield many


def uses(epoch: int) -> list[ShardUse]:
    """Two shards at a time, each for ten steps; in odd epochs the other way round."""
    order = [(0, "a"), (0, "b"), (10, "c"), (10, "d"), (20, "e")]
    names = [name for _, name in order]
    return [ShardUse(name, step, step + 9) for (step, _), name in zip(order, names[:: -1 if epoch % 2 else 1], strict=True)]


def test_steps_until_each_shard_is_due() -> None:
    schedule = Schedule(uses, num_ahead=2)
    schedule.reach(0, 0)
    assert list(schedule.upcoming()) == ["a", "b", "c", "d", "e"]
    schedule.reach(0, 13)  # batches from step 11 on may be in the making
    assert schedule.upcoming() == {"c": 0, "d": 0, "e": 9, "b": 29, "a": 39}
    assert schedule.is_needed("c")
    assert not schedule.is_needed("a")
    schedule.reach(0, 12)
    assert schedule.upcoming()["e"] == 9, "batches do not begin in order"
    schedule.reach(0, 2)
    assert list(schedule.upcoming()) == ["a", "b", "c", "d", "e"], "another pass"
    schedule.reach(1, 0)
    assert list(schedule.upcoming()) == ["e", "d", "c", "b", "a"]


@needs_obstore
def test_what_a_step_needs_is_there_though_few_fit(served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for a third of the shards, each is fetched once an epoch, before it is due, and none is evicted too early."""
    loader = dp.DataLoader(dp.Images(URL, remote=dp.Remote(cache_dir=tmp_path / "c", cache_nbytes=1)), **OPTIONS)
    uses_of = shard_uses(loader._passes.source(1), loader._passes.kind.samples)
    assert uses_of is not None
    assert isinstance(loader._passes.kind.files, RemoteFiles)
    assert loader._passes.kind.files.cache is not None
    shards = loader._passes.kind.files.cache.shards
    at_once = max(len({use.url for use in uses_of(0) if use.first_step <= step <= use.last_step}) for step in range(len(loader)))
    assert at_once < len(shards) / 2
    monkeypatch.setattr("datapipe.fetch.shard_cache.cache._LOOK_S", 0.0)
    directory = loader._passes.kind.files.cache.directory
    block = -(-max(shard.nbytes for shard in shards.values()) // 4096) * 4096
    directory.capacity = (at_once + 1) * block
    fetched: Counter[str] = Counter()
    fetch = filling.fetch

    def counted(shard: Any, part: Any, **options: Any) -> bool:
        fetched[str(shard.location)] += 1
        return fetch(shard, part, **options)

    monkeypatch.setattr(filling, "fetch", counted)
    cache, schedule = ShardCache(directory, shards), Schedule(uses_of, num_ahead=0)
    begun = Filling(cache)
    begun.follow(schedule)
    filler = WindowFiller(weakref.ref(begun), directory, schedule)
    for epoch in range(2):
        for step in range(len(loader)):
            schedule.reach(epoch, step)
            cache.release_unless(schedule.is_needed)
            while filler._fetch_next(cache):
                assert directory.held().nbytes <= directory.capacity
            for use in uses_of(epoch):
                assert cache.has(use.url) or not use.first_step <= step <= use.last_step
    lanes = loader._passes.source(1).order.windows.num_lanes  # type: ignore[union-attr]
    assert fetched.total() <= 2 * (len(shards) + lanes) + at_once, "shards that a lane's end cuts are due twice"


@pytest.mark.nightly
@needs_obstore
@pytest.mark.parametrize("share", [0.3, 2.0])
def test_the_same_batches_by_streams(served: Path, tmp_path: Path, share: float) -> None:
    local = dp.DataLoader(str(served), **OPTIONS)
    nbytes = int(share * sum(-(-path.stat().st_size // 4096) * 4096 for path in served.glob("*.tar")))
    loader = dp.DataLoader(dp.Images(URL, remote=dp.Remote(cache_dir=tmp_path / "c", cache_nbytes=nbytes)), **OPTIONS)
    assert isinstance(loader._passes.kind.files, RemoteFiles)
    assert loader._passes.kind.files.cache is not None
    directory = loader._passes.kind.files.cache.directory
    for epoch in range(3):
        assert same(copies(loader), copies(local)), epoch
        assert directory.held().nbytes <= nbytes
    end_s = time.monotonic() + 20
    wanted = 2 if share < 1 else len(list(served.glob("*.tar")))
    while directory.held().num_shards < wanted and time.monotonic() < end_s:
        time.sleep(0.02)
    assert directory.held().num_shards >= wanted


@needs_obstore
def test_ranks_do_not_evict_what_others_are_about_to_read(served: Path, tmp_path: Path) -> None:
    """Two ranks share a directory that has room for what both need at once; both give the samples of the local set."""
    made = [
        open_images(source, **OPTIONS, output="dict", ranks=(rank, 2), **options)
        for source, options in ((URL, {"remote": dp.Remote(cache_dir=tmp_path / "c", cache_nbytes=150_000)}), (str(served), {}))
        for rank in range(2)
    ]
    passes = [[batch["id"].tolist() for batch in batches] for batches in zip(*made, strict=True)]
    assert all(step[:2] == step[2:] for step in passes)
