"""What every loader promises, held against each kind of data: a new kind joins by one entry in KINDS.

`numbers` is the worked example of CONTRIBUTING.md: one folder, and its lines here and in the registry.
"""

from __future__ import annotations

import json
import pickle
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fixtures import make_folder

import datapipe as dp
from datapipe.cli.main import main
from datapipe.core.errors import DatapipeError
from datapipe.kernel.loader import Loader
from datapipe.kinds import registry

EXTENDING = Path(__file__).parents[2] / "examples" / "extending"
sys.path.insert(0, str(EXTENDING))
from kind_numbers.loader import NumberLoader  # noqa: E402

NUM = 37  # samples


class LoaderOf(NamedTuple):
    """How a kind joins the suite."""

    make: Callable[[Path], Path]  # writes NUM samples into a directory that does not exist, and returns it
    spoil: Callable[[Path], set[int]]  # damages some of them; returns their ids
    open: Callable[..., Loader]  # of the path and further arguments
    ids: Callable[[Any], list[int]]  # of the samples in a batch
    values: Callable[[Any], torch.Tensor]  # the batch's own tensor


def _write_numbers(path: Path) -> Path:
    path.mkdir()
    for file in range(5):
        lines = range(8 * file, min(8 * file + 8, NUM))
        (path / f"{file}.numbers").write_text("".join(f"{line}\n" for line in lines))
    return path


def _spoil_numbers(path: Path) -> set[int]:
    file = path / "1.numbers"
    file.write_text(file.read_text().replace("11\n", "??\n"))
    return {11}


def _spoil_images(path: Path) -> set[int]:
    bad = sorted(path.rglob("*.jpg"))[11]
    bad.write_bytes(bad.read_bytes()[:500])
    return {11}


def _write_table(path: Path) -> Path:
    path.mkdir()
    pq.write_table(pa.table({"id": np.arange(NUM), "y": np.arange(NUM) % 3}), path / "0.parquet", row_group_size=8)
    return path


def _spoil_table(path: Path) -> set[int]:
    (file,) = path.glob("*.parquet")
    chunk = pq.read_metadata(file).row_group(1).column(0)
    data = bytearray(file.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + 16] = bytes(16)
    file.write_bytes(data)
    return set(range(8, 16))


def _open_images(path: Path, **options: Any) -> Loader:
    return dp.DataLoader(path, output="dict", transform=[dp.RandomResizedCrop(16)], **options)


def _open_table(path: Path, **options: Any) -> Loader:
    return dp.TableLoader(path, columns=["id"], dtypes=torch.int64, **options)


KINDS = {
    "images": LoaderOf(
        lambda path: make_folder(path, size=(40, 48)),
        _spoil_images,
        _open_images,
        lambda batch: batch["id"].tolist(),
        lambda batch: batch["image"],
    ),
    "tables": LoaderOf(_write_table, _spoil_table, _open_table, lambda batch: batch.view(-1).tolist(), lambda batch: batch),
    "numbers": LoaderOf(_write_numbers, _spoil_numbers, NumberLoader, lambda batch: batch.tolist(), lambda batch: batch),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> LoaderOf:
    return KINDS[request.param]


@pytest.fixture
def path(kind: LoaderOf, tmp_path: Path) -> Path:
    return kind.make(tmp_path / "data")


def batches(loader: Iterable[Any], kind: LoaderOf) -> list[list[int]]:
    """The ids of each batch of a pass."""
    return [kind.ids(batch) for batch in loader]


def flat(steps: Iterable[list[int]]) -> list[int]:
    return [sample for step in steps for sample in step]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pass_gives_each_sample_once_and_knows_its_length(kind: LoaderOf, path: Path, num_workers: int) -> None:
    for shuffle in (False, True):
        loader = kind.open(path, batch_size=8, shuffle=shuffle, seed=3, num_workers=num_workers)
        found = batches(loader, kind)
        assert len(found) == len(loader) == 5
        assert sorted(flat(found)) == list(range(NUM))
        assert (flat(found) == list(range(NUM))) is not shuffle
        assert shuffle is (batches(loader, kind) != found), "another epoch has another order"


def test_batches_depend_on_the_seed_alone(kind: LoaderOf, path: Path) -> None:
    def values(num_workers: int, seed: int) -> torch.Tensor:
        loader = kind.open(path, batch_size=8, shuffle=True, seed=seed, num_workers=num_workers)
        return torch.cat([kind.values(batch).clone() for _ in range(2) for batch in loader])

    whole = values(0, 1)
    assert all(torch.equal(whole, values(num, 1)) for num in (1, 3))
    assert not torch.equal(whole, values(2, 2))


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_ranks_share_an_epoch_in_equal_steps(kind: LoaderOf, path: Path, tail: str) -> None:
    options = {"batch_size": 4, "shuffle": True, "seed": 0, "tail": tail, "num_workers": 1, "world_size": 3}
    ranks = [batches(kind.open(path, rank=rank, **options), kind) for rank in range(3)]
    assert len({len(rank) for rank in ranks}) == 1
    together = [sample for rank in ranks for sample in flat(rank)]
    assert set(together) <= set(range(NUM))
    assert len(together) - len(set(together)) <= (2 if tail == "pad" else 0)
    assert len(set(together)) == (NUM if tail == "pad" else 36)


def test_a_state_resumes_on_another_number_of_ranks(kind: LoaderOf, path: Path) -> None:
    options = {"shuffle": True, "num_workers": 2}
    whole = batches(kind.open(path, batch_size=12, seed=5, **options), kind)
    first = kind.open(path, batch_size=12, seed=5, **options)
    passed = iter(first)
    begun = [kind.ids(next(passed)) for _ in range(2)]
    state = json.loads(json.dumps(first.state_dict()))
    ranks = [kind.open(path, batch_size=6, rank=rank, world_size=2, **options) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(state)
    rest = [flat(step) for step in zip(*(batches(rank, kind) for rank in ranks), strict=True)]
    resumed = [*begun, *rest]
    assert [set(step) for step in resumed[:-1]] == [set(step) for step in whole[:-1]]
    assert set(whole[-1]) <= set(resumed[-1]), "the last step may have a repeat, so that ranks get equally many"
    with pytest.raises(dp.StateError, match="choose batch_size so that the product is 12"):
        kind.open(path, batch_size=7, **options).load_state_dict(state)


def test_a_batch_is_never_overwritten(kind: LoaderOf, path: Path) -> None:
    loader = kind.open(path, batch_size=4, shuffle=True, seed=0, num_workers=2)
    held = [kind.values(batch) for batch in loader]
    copies = [values.clone() for values in held]
    assert all(True for _ in loader)
    assert all(map(torch.equal, held, copies))


def test_a_copy_gives_the_same_batches(kind: LoaderOf, path: Path) -> None:
    loader = kind.open(path, batch_size=8, shuffle=True, seed=9, num_workers=1)
    copy = pickle.loads(pickle.dumps(loader))
    assert type(copy) is type(loader)
    assert batches(copy, kind) == batches(loader, kind)


def test_bad_samples_are_raised_skipped_or_replaced(kind: LoaderOf, path: Path) -> None:
    bad = kind.spoil(path)
    options = {"batch_size": 8, "shuffle": True, "seed": 2}
    with pytest.raises(DatapipeError, match=str(path)):
        batches(kind.open(path, num_workers=2, **options), kind)
    skipping = kind.open(path, num_workers=2, on_error="skip", **options)
    assert sorted(flat(batches(skipping, kind))) == sorted(set(range(NUM)) - bad)
    assert len(skipping) == 5
    assert {sample.id for sample in skipping.bad_samples} <= bad
    replacing = [batches(kind.open(path, num_workers=num, on_error="replace", **options), kind) for num in (0, 3)]
    assert replacing[0] == replacing[1]
    assert len(flat(replacing[0])) == NUM
    assert set(flat(replacing[0])) == set(range(NUM)) - bad


def test_a_pass_left_early_leaves_no_threads(kind: LoaderOf, path: Path) -> None:
    before = threading.active_count()
    passed = iter(kind.open(path, batch_size=2, num_workers=3))
    next(passed)
    assert threading.active_count() >= before + 3
    del passed
    assert threading.active_count() == before


def test_it_explains_itself_and_shows_itself(kind: LoaderOf, path: Path) -> None:
    loader = kind.open(path, batch_size=2, seed=4)
    said = dp.explain(loader).lines
    assert [line[:10] for line in said if line.startswith(("data", "seed"))] == ["data      ", "seed      "]
    assert f"{NUM} " in repr(loader)
    with pytest.raises(TypeError, match="not subscriptable"):
        loader[0]


def test_its_stages_are_observed(kind: LoaderOf, path: Path) -> None:
    events: list[dp.StageEvent] = []
    loader = kind.open(path, batch_size=8, num_workers=2)
    loader.observe(events.append)
    assert len(batches(loader, kind)) == 5
    waits = [event for event in events if event.stage is dp.Stage.WAIT]
    assert [event.step for event in waits] == list(range(5))


def test_what_torch_lets_one_assign_takes_effect_with_the_next_pass(kind: LoaderOf, path: Path) -> None:
    loader = kind.open(path, batch_size=8, num_workers=0)
    whole = batches(loader, kind)
    loader.num_workers = 2
    before = threading.active_count()
    passed = iter(loader)
    found = [kind.ids(next(passed))]
    assert threading.active_count() == before + 2
    assert found + batches(passed, kind) == whole
    with pytest.raises(dp.OptionError, match="batch_size cannot be set"):
        loader.batch_size = 3


def test_the_commands_know_a_kind_by_its_line_in_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "KINDS", {"numbers": "kind_numbers", **registry.KINDS})
    path = _write_numbers(tmp_path / "numbers")
    assert main(["inspect", str(path)]) == 0
    assert f"{NUM} numbers in 5 files" in capsys.readouterr().out
    assert main(["bench", str(path), "--rounds", "1"]) == 0
    assert "numbers/s" in capsys.readouterr().out
    assert registry.recognise(str(_write_table(tmp_path / "table")))[0] == "tables"
    assert registry.recognise(str(make_folder(tmp_path / "folder")))[0] == "images"
