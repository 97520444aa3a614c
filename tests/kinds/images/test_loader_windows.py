"""`shuffle="windows"`: each shard is read once, by the same arithmetic wherever the shards lie, and states resume exactly."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures import NUM_SAMPLES, convert, make_folder, quick, write_parquet
from hypothesis import given
from hypothesis import strategies as st
from recipes import ids_of, make
from stand_in_stores import BUCKET, directory_store, needs_obstore

import datapipe as dp
from converters import OnError
from datapipe.index.concat import ConcatIndex, select
from datapipe.index.sample_index import SampleIndex
from datapipe.index.stored_order import stored_order
from datapipe.opening.samples import open_index
from datapipe.order.plan import Cursor
from datapipe.testing.loaders.kind import copies, same

WINDOWS: dict[str, Any] = {"shuffle": "windows", "output": "dict", "seed": 5}


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several shards, shuffled when they were written, with two bad samples left out."""
    base = tmp_path_factory.mktemp("gaps")
    folder = make_folder(base / "folder", size=(40, 48))
    for number in (3, 20):
        sorted(folder.rglob("*.jpg"))[number].write_bytes(b"no image")
    return convert(folder, base / "set", on_error=OnError.SKIP)


def flat(lists: Iterable[Iterable[int]]) -> list[int]:
    return [*itertools.chain.from_iterable(lists)]


def shards_of(index: SampleIndex, ids: list[int]) -> list[int]:
    shards: list[int] = index.stored_at(np.array(ids, np.int64))[0].tolist()
    return shards


@pytest.mark.promise("loader: Windows")
@pytest.mark.parametrize("kind", ["whole", "gaps", "chosen", "joined", "chosen of joined", "tars of others"])
def test_stored_order_goes_shard_by_shard(converted: Path, gaps: Path, shards: Path, kind: str) -> None:
    """Every position once, and within the groups the samples of one shard, in the order of its rows."""
    one, other = open_index(converted), open_index(gaps)
    assert isinstance(one, SampleIndex)
    assert isinstance(other, SampleIndex)
    chosen = np.random.default_rng(1).permutation(30).astype(np.int64)
    index = {
        "whole": lambda: one,
        "gaps": lambda: other,
        "chosen": lambda: select(other, chosen),
        "joined": lambda: ConcatIndex([one, other]),
        "chosen of joined": lambda: select(ConcatIndex([one, other]), chosen * 2),
        "tars of others": lambda: open_index(shards),
    }[kind]()
    stored = stored_order(index, ["image"])
    assert stored is not None
    positions = stored.positions_of(np.arange(len(index)))
    assert sorted(positions.tolist()) == list(range(len(index)))
    assert (stored.starts[0], stored.starts[-1]) == (0, len(index))
    entries = index.look_up(index.ids(positions), "image")
    for group, (start, end) in enumerate(zip(stored.starts[:-1], stored.starts[1:], strict=True)):
        assert set(entries.extents.paths[start:end]) == set(stored.shard_of(np.array([group])))
        assert (np.diff(entries.extents.offset[start:end]) > 0).all()
    assert len(stored.starts) - 1 == len(set(entries.extents.paths))


def test_another_order_than_a_full_shuffle_that_states_tell_apart(converted: Path) -> None:
    loader, full = make(converted, **WINDOWS), make(converted, **{**WINDOWS, "shuffle": True})
    kind = loader.state_dict()["order"]
    num = len(open_index(converted).manifest.shards)
    assert kind == f"windows over {num} groups in 5 lanes"
    assert "shuffled in windows over" in "\n".join(_explained(loader))
    with pytest.raises(dp.errors.StateError, match="order="):
        full.load_state_dict(loader.state_dict())
    with pytest.raises(dp.errors.StateError, match="pass the same shuffle"):
        loader.load_state_dict({**loader.state_dict(), "order": kind.replace("5 lanes", "7 lanes")})


def _explained(loader: dp.DataLoader) -> tuple[str, ...]:
    return dp.explain(loader).lines


@pytest.mark.promise("loader: Windows")
@given(
    world=st.sampled_from([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2)]),
    other=st.sampled_from([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2)]),
    done=st.integers(0, 3),
    tail=st.sampled_from(["pad", "mask"]),
    seed=st.integers(0, 50),
)
@quick
def test_exactly_once_in_equal_steps_and_resumed_on_other_ranks(
    gaps_ids: Path, world: tuple[int, int], other: tuple[int, int], done: int, tail: str, seed: int
) -> None:
    """Picks alone, without reading: on any number of ranks, from any step on."""
    index = open_index(gaps_ids)

    def loaders(world_size: int, batch_size: int) -> list[dp.DataLoader]:
        options = {**WINDOWS, "batch_size": batch_size, "tail": tail, "seed": seed}
        return [make(gaps_ids, **options, ranks=(rank, world_size)) for rank in range(world_size)]

    def picked(loader: dp.DataLoader, first: int) -> list[list[int]]:
        plan = loader._passes.begin().settings.source
        return [index.ids(picks.positions)[picks.real].tolist() for picks in plan.steps(Cursor(0, first * 12))]

    first, second = loaders(*world), loaders(*other)
    assert len({len(loader) for loader in (*first, *second)}) == 1
    whole = [flat(step) for step in zip(*(picked(loader, 0) for loader in first), strict=True)]
    expected = sorted(index.ids(np.arange(len(index))).tolist())
    assert sorted(set(flat(whole))) == expected
    assert len(flat(whole)) - len(expected) < (world[0] if tail == "pad" else 1)
    rest = [flat(step) for step in zip(*(picked(loader, done) for loader in second), strict=True)]
    assert [set(step) for step in rest] == [set(step) for step in whole[done:]]


@pytest.fixture(scope="module")
def gaps_ids(gaps: Path) -> Path:
    return gaps


def test_few_shards_are_under_way_at_once(tmp_path: Path) -> None:
    """Of many shards, a batch needs those of its lanes; each is done with before long, and does not come again."""
    folder = make_folder(tmp_path / "folder", num=240, size=(16, 16))
    made = convert(folder, tmp_path / "set", shard_nbytes=8_000)
    index = open_index(made)
    assert isinstance(index, SampleIndex)
    num = len(index.manifest.shards)
    assert num >= 20
    batches = ids_of(make(made, **{**WINDOWS, "batch_size": 2, "transform": None}))
    steps: dict[int, list[int]] = {}
    for step, ids in enumerate(batches):
        for shard in shards_of(index, ids):
            steps.setdefault(shard, []).append(step)
    longest = sorted(max(seen) - min(seen) for seen in steps.values())
    assert longest[-4] <= 5 * len(batches) * 2 / num  # lanes may cut a shard, and the samples of no full step come last
    full = ids_of(make(made, **{**WINDOWS, "shuffle": True, "batch_size": 2, "transform": None}))
    assert sorted(flat(full)) == sorted(flat(batches))
    again = ids_of(make(made, **{**WINDOWS, "batch_size": 2, "transform": None, "seed": 6}))
    assert again != batches


def test_row_groups_are_windows_of_their_own(folder: Path, tmp_path: Path) -> None:
    made = write_parquet(folder, tmp_path / "parquet", compression="zstd", row_group_size=3)
    loader = make(made, **WINDOWS)
    assert loader.state_dict()["order"].startswith("windows over 15 groups")
    assert sorted(flat(ids_of(loader))) == list(range(NUM_SAMPLES))


@pytest.mark.promise("loader: Windows")
def test_what_has_no_shards_is_refused(folder: Path, converted: Path) -> None:
    with pytest.raises(dp.errors.OptionError, match=r"shuffle='windows' goes by shards, and these are single files"):
        make(folder, shuffle="windows")
    with pytest.raises(dp.errors.OptionError, match="its datasets are shuffled in full"):
        make(dp.mix([str(converted)]), shuffle="windows")
    with pytest.raises(dp.errors.OptionError, match="shuffle is 'window'; pass True, False or 'windows'"):
        make(converted, shuffle="window")
    with pytest.raises(dp.errors.OptionError, match="exclude each other"):
        make(converted, shuffle="windows", sampler=[1, 2])


@needs_obstore
def test_the_same_batches_and_states_from_a_store(converted: Path, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/train"
    with directory_store(tmp_path / "served", train=converted):

        def here() -> dp.DataLoader:
            return make(converted, shuffle="windows")

        def there() -> dp.DataLoader:
            return make(url, shuffle="windows")

        expected = copies(here())
        assert same(copies(there()), expected)
        for first, second in ((here(), there()), (there(), here())):
            iterator = iter(first)
            next(iterator), next(iterator)
            second.load_state_dict(first.state_dict())
            assert same(copies(second), expected[2:])
