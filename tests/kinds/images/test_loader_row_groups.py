"""Data that is read a row group at a time, through the loader: windowed order, row groups read once, exact resumption."""

from __future__ import annotations

import multiprocessing
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import NUM_SAMPLES, flip_bit, write_hdf5_pixels, write_parquet
from recipes import CROP, ids_of, make

import datapipe as dp
from datapipe.containers.hdf5 import rows as hdf5_rows
from datapipe.containers.parquet import rows as parquet_rows
from datapipe.errors import DatapipeError, IntegrityError, StateError
from datapipe.index.entries import RowGroup
from datapipe.opening.samples import open_index
from datapipe.testing.loaders.kind import copies, same

MAKERS: dict[str, Callable[[Path, Path], Path]] = {
    "parquet": lambda source, destination: write_parquet(source, destination, compression="zstd", row_group_size=3),
    "hdf5": lambda source, destination: write_hdf5_pixels(source, destination, chunks=(4, 40, 48, 3), compression="gzip"),
}
NUM_GROUPS = {"parquet": 15, "hdf5": 4}  # of four shards, the last one of seven samples; small HDF5 shards are one each


@pytest.fixture(params=MAKERS, scope="session")
def grouped(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 37 samples, addressed by rows. Not to be changed."""
    return MAKERS[request.param](folder, tmp_path_factory.mktemp("grouped") / request.param)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[RowGroup]:
    """How often each row group was read."""
    counted: Counter[RowGroup] = Counter()
    for room in (parquet_rows, hdf5_rows):

        def read(group: RowGroup, real: Any = room.read_rows) -> Any:
            counted[group] += 1
            return real(group)

        monkeypatch.setattr(room, "read_rows", read)
    return counted


def numbers(path: Path, **changes: Any) -> list[list[int]]:
    return ids_of(make(path, **({"output": "dict", "shuffle": True, "seed": 5} | changes)))


def test_orders_by_addressing(grouped: Path, folder: Path) -> None:
    assert make(grouped, shuffle=True).state_dict()["order"] == "windowed"
    assert make(grouped).state_dict()["order"] == "sequential"
    assert make(folder, shuffle=True).state_dict()["order"] == "shuffled"


def test_in_sequence_batches_are_those_of_the_folder(grouped: Path, folder: Path) -> None:
    batches = list(make(grouped, output="dict", transform=None, batch_size=1))
    assert [int(batch["id"][0]) for batch in batches] == list(range(NUM_SAMPLES))
    labels = [int(label) for batch in make(folder) for label in batch[1]]
    assert [int(batch["label"][0]) for batch in batches] == labels
    for batch, (image, _) in zip(batches, make(folder, transform=None, batch_size=1), strict=True):
        assert torch.equal(batch["image"], image)


def test_shuffled_batches_do_not_depend_on_threads(grouped: Path) -> None:
    expected = copies(make(grouped, shuffle=True, seed=5, num_workers=0))
    for num_workers in (1, 4):
        assert same(copies(make(grouped, shuffle=True, seed=5, num_workers=num_workers)), expected)
    assert not same(copies(make(grouped, shuffle=True, seed=6)), expected)


def test_every_epoch_has_every_sample_once_and_another_order(grouped: Path) -> None:
    loader = make(grouped, output="dict", shuffle=True)
    epochs = [[sample for batch in ids_of(loader) for sample in batch] for _ in range(3)]
    assert all(sorted(epoch) == list(range(NUM_SAMPLES)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in [*epochs, list(range(NUM_SAMPLES))]}) == 4


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_workers", [0, 4])
def test_each_row_group_is_read_once(grouped: Path, reads: Counter[RowGroup], shuffle: bool, num_workers: int) -> None:
    copies(make(grouped, shuffle=shuffle, num_workers=num_workers))
    assert set(reads.values()) == {1}
    assert len(reads) == NUM_GROUPS[grouped.name]


def test_ranks_share_the_row_groups_out(grouped: Path, reads: Counter[RowGroup]) -> None:
    """A rank owns whole lanes. Two meet in a row group only where the lane of one ends and that of the other begins."""
    arguments: dict[str, Any] = {"shuffle": True, "batch_size": 2, "tail": "drop"}
    for rank in range(2):
        before = reads.copy()
        copies(make(grouped, ranks=(rank, 2), **arguments))
        assert set((reads - before).values()) == {1}
    num_lanes = 4
    assert reads.total() <= NUM_GROUPS[grouped.name] + num_lanes


@pytest.mark.parametrize(("world_size", "done"), [(2, 1), (2, 4), (4, 3), (1, 4)])
def test_resumes_exactly_on_other_numbers_of_ranks(grouped: Path, world_size: int, done: int) -> None:
    """Saved on one rank; steps are of eight samples over all ranks."""
    whole = make(grouped, output="dict", shuffle=True, batch_size=8)
    expected = [{*batch} for batch in ids_of(whole)]
    saved = make(grouped, output="dict", shuffle=True, batch_size=8)
    iterator = iter(saved)
    for _ in range(done):
        next(iterator)
    state = saved.state_dict()
    by_rank = []
    for rank in range(world_size):
        loader = make(grouped, output="dict", shuffle=True, batch_size=8 // world_size, ranks=(rank, world_size), tail="mask")
        loader.load_state_dict({**state, "tail": "mask"})
        by_rank.append([{*batch["id"][batch["real"]].tolist()} for batch in loader])
    found = [set().union(*step) for step in zip(*by_rank, strict=True)]
    assert found == expected[done:]


def test_a_state_of_another_order_is_refused(grouped: Path) -> None:
    state = make(grouped, shuffle=True).state_dict()
    with pytest.raises(StateError, match="order"):
        make(grouped, shuffle=True).load_state_dict({**state, "order": "shuffled"})


def test_a_selection_is_windowed_too(grouped: Path, reads: Counter[RowGroup]) -> None:
    chosen = [*range(3, 20), 30, 31]
    dataset = dp.DataLoader(grouped).dataset.select(chosen)
    found = [sample for batch in numbers(dataset) for sample in batch]  # type: ignore[arg-type]
    assert sorted(found) == chosen
    assert set(reads.values()) == {1}


def test_a_loader_pickles(grouped: Path) -> None:
    loader = make(grouped, shuffle=True, seed=5)
    expected = copies(loader)
    assert same(copies(pickle.loads(pickle.dumps(loader))), expected)


def test_single_samples(grouped: Path, folder: Path) -> None:
    dataset, other = make(grouped).dataset, make(folder).dataset
    for position in (0, 36, 17, 17):
        assert torch.equal(dataset[position][0], other[position][0])


def _sum(loader: dp.DataLoader, queue: Any) -> None:
    queue.put(sum(int(images.sum()) for images, _ in loader))


def test_a_forked_child_reads_for_itself(grouped: Path) -> None:
    """The parent's row groups are in the middle of being read when it forks."""
    loader = make(grouped, num_workers=4, prefetch_factor=8)
    iterator = iter(loader)
    next(iterator)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_sum, args=(make(grouped, num_workers=0), queue))
    child.start()
    found = queue.get(timeout=60)
    child.join(60)
    assert found == sum(int(images.sum()) for images, _ in make(grouped))


# -- damage ---------------------------------------------------------------------------------------


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> tuple[Path, set[int]]:
    """A Parquet set of which one row group cannot be decompressed, and the samples in that."""
    path = MAKERS["parquet"](folder, tmp_path / "set")
    index = open_index(path)
    shard = sorted(path.glob("*.parquet"))[1]
    import pyarrow.parquet as pq

    column = pq.read_metadata(shard).row_group(1).column(0)
    for offset in range(column.data_page_offset + 40, column.data_page_offset + column.total_compressed_size, 23):
        flip_bit(shard, offset)
    groups = index.look_up(np.arange(NUM_SAMPLES), "image").extents.codecs
    assert groups is not None
    return path, {sample for sample, group in enumerate(groups) if group and group.path == str(shard) and group.number == 1}


def test_damage_is_named(damaged: tuple[Path, set[int]]) -> None:
    path, bad = damaged
    with pytest.raises(DatapipeError, match=rf"00001-of-00004\.parquet: sample {min(bad)} .*damaged, or changed") as caught:
        copies(make(path, num_workers=0))
    assert isinstance(caught.value, IntegrityError)


def test_damage_costs_its_row_group_and_nothing_else(damaged: tuple[Path, set[int]]) -> None:
    path, bad = damaged
    assert len(bad) == 3
    loader = make(path, shuffle=True, on_error="skip", output="dict", transform=CROP)
    found = [sample for batch in loader for sample in batch["id"].tolist()]
    assert sorted(found) == sorted({*range(NUM_SAMPLES)} - bad)
    assert {report.id for report in loader.bad_samples} == bad


def test_a_shard_that_was_replaced_is_noticed(folder: Path, tmp_path: Path) -> None:
    """By one of other row groups, after the index was made."""
    path = MAKERS["parquet"](folder, tmp_path / "set")
    loader = make(path)
    other = write_parquet(folder, tmp_path / "other", compression="zstd", row_group_size=4)
    for shard in path.glob("*.parquet"):
        shard.write_bytes((other / shard.name).read_bytes())
    with pytest.raises(DatapipeError, match="its row groups have changed"):
        copies(loader)
