"""States: small, JSON-safe, exact at every step, on other numbers of ranks, and refused where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import NUM_SAMPLES, copies, make_folder, same
from recipes import CROP, TRAIN

import datapipe as dp
from datapipe.core.errors import StateError

pytestmark = [pytest.mark.usefixtures("backend"), pytest.mark.slow]


def make(path: Path, **changes: Any) -> dp.DataLoader:
    return dp.DataLoader(path, **({"batch_size": 5, "shuffle": True, "transform": CROP, "num_workers": 2, "seed": 3} | changes))


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(state)
    assert len(text) < 500
    again: dict[str, Any] = json.loads(text)
    assert again == state
    return again


@pytest.mark.parametrize("arguments", [
    {}, {"tail": "drop"}, {"tail": "mask"}, {"shuffle": False}, {"num_workers": 0}, {"transform": TRAIN},
    {"rank": 1, "world_size": 2}, {"sampler": list(range(36, 0, -2)), "shuffle": False},
    {"batch_size": 37}, {"on_error": "skip", "prefetch_factor": 7},
], ids=str)  # fmt: skip
def test_resumes_exactly_after_every_step(folder: Path, arguments: dict[str, Any]) -> None:
    """Through JSON into a new loader, over the end of the epoch and into the next."""
    arguments = {"batch_size": 9} | arguments
    original = make(folder, **arguments)
    steps = len(original)
    expected = copies(original) + copies(original)
    walking = make(folder, **arguments)
    states = [(0, through_json(walking.state_dict()))]
    for epoch in range(2):
        states += [(epoch * steps + step, through_json(walking.state_dict())) for step, _ in enumerate(walking, 1)]
        states.append(((epoch + 1) * steps, through_json(walking.state_dict())))
    for place, (done, state) in enumerate(states):
        resumed = make(folder, **arguments)
        resumed.load_state_dict(state)
        rest = copies(resumed)
        left = (state["epoch"] + 1) * steps - done
        assert len(rest) == left
        assert left in (0, steps) if done % steps == 0 else 0 < left < steps
        if done < 2 * steps:
            assert same(rest, expected[done : done + left]), f"after {done} steps, state {place}"


def test_a_state_taken_after_the_last_batch_leaves_nothing_of_its_epoch(folder: Path) -> None:
    """As with torchdata: a script that counts epochs itself goes through its loop for that epoch, which has nothing to do."""
    loader = make(folder)
    copies(loader)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    inside = through_json(loader.state_dict())
    assert next(iterator, None) is None
    ended = through_json(loader.state_dict())
    expected = copies(loader)

    resumed = make(folder)
    resumed.load_state_dict(inside)
    assert resumed.state_dict() == inside
    assert copies(resumed) == []
    assert resumed.state_dict() == ended
    assert same(copies(resumed), expected)
    resumed.load_state_dict(ended)
    assert same(copies(resumed), expected)
    for state, left in ((inside, 0), (ended, len(loader))):
        resumed.load_state_dict(state)
        resumed.set_epoch(state["epoch"])
        assert len(copies(resumed)) == left, "naming the epoch keeps the place in it"
    resumed.load_state_dict(inside)
    resumed.set_epoch(2)
    assert same(copies(resumed), expected), "naming the next epoch is to begin it"


def test_the_place_is_that_of_the_last_batch_handed_out(folder: Path) -> None:
    """However many batches are in the making already."""
    loader = make(folder, prefetch_factor=6)
    assert loader.state_dict()["samples_done"] == 0
    iterator = iter(loader)
    assert loader.state_dict()["samples_done"] == 0
    for done in (5, 10, 15):
        next(iterator)
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples_done"]) == (0, done)
    iterator.close()
    assert loader.state_dict()["samples_done"] == 15


def test_resuming_twice_from_one_state(folder: Path) -> None:
    loader = make(folder)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    expected = list(iterator)
    for _ in range(2):
        loader.load_state_dict(state)
        assert same(copies(loader), expected)


def test_epochs_go_on_from_a_resumed_one(folder: Path) -> None:
    whole = make(folder)
    expected = [copies(whole) for _ in range(4)]
    first = make(folder)
    copies(first)
    iterator = iter(first)
    next(iterator)
    resumed = make(folder)
    resumed.load_state_dict(first.state_dict())
    assert same(copies(resumed), expected[1][1:])
    assert same(copies(resumed), expected[2])
    resumed.load_state_dict(first.state_dict())
    resumed.set_epoch(1)
    assert same(copies(resumed), expected[1][1:]), "naming the resumed epoch keeps the place, as frameworks do"
    resumed.load_state_dict(first.state_dict())
    resumed.set_epoch(3)
    assert same(copies(resumed), expected[3])


def test_a_state_saved_before_the_first_step(folder: Path) -> None:
    loader, other = make(folder), make(folder)
    other.load_state_dict(loader.state_dict())
    assert same(copies(other), copies(loader))


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_threads_may_differ(folder: Path, num_workers: int) -> None:
    loader = make(folder)
    iterator = iter(loader)
    next(iterator), next(iterator)
    resumed = make(folder, num_workers=num_workers, prefetch_factor=5)
    resumed.load_state_dict(loader.state_dict())
    assert same(copies(resumed), [tuple(batch) for batch in iterator])


@pytest.mark.parametrize("tail", ["pad", "drop", "mask"])
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (1, 4), (4, 1)])
def test_ranks_may_differ_if_the_global_batch_is_the_same(folder: Path, tail: str, before: int, after: int) -> None:
    def ranks(world_size: int) -> list[dp.DataLoader]:
        return [
            make(folder, batch_size=8 // world_size, tail=tail, output="dict", rank=rank, world_size=world_size, num_workers=0)
            for rank in range(world_size)
        ]

    expected = {int(sample) for loader in ranks(1) for batch in loader for sample in batch["id"]}
    for steps in (1, 3):
        first, states, seen = ranks(before), [], []
        for loader in first:
            iterator = iter(loader)
            for _ in range(steps):
                seen += next(iterator)["id"].tolist()
            states.append(loader.state_dict())
        assert all(state == states[0] for state in states), "every rank saves the same state"
        for loader in ranks(after):
            loader.load_state_dict(through_json(states[-1]))
            for batch in loader:
                real = batch.get("real", torch.ones(len(batch["id"]), dtype=torch.bool))
                seen += batch["id"][real].tolist()
        repeats = len(seen) - len(set(seen))
        assert set(seen) == expected
        assert repeats == (-(NUM_SAMPLES % 8) % after if tail == "pad" else 0)


@pytest.mark.parametrize(("changes", "said"), [
    ({"batch_size": 6}, "choose batch_size so that the product is 5"),
    ({"rank": 0, "world_size": 2}, r"this loader has 10; choose batch_size so that the product is 5"),
    ({"seed": 4}, "seed=3, this loader has 4; pass the same seed"),
    ({"shuffle": False}, "order='shuffled', this loader has 'sequential'; pass the same shuffle, sampler"),
    ({"shuffle": False, "sampler": range(37)}, "this loader has 'sampler'"),
    ({"tail": "drop"}, "tail='pad', this loader has 'drop'; pass the same tail"),
    ({"tail": "mask"}, "tail='pad', this loader has 'mask'"),
], ids=str)  # fmt: skip
def test_a_loader_that_would_not_continue_exactly_refuses(folder: Path, changes: dict[str, Any], said: str) -> None:
    loader = make(folder)
    next(iter(loader))
    other = make(folder, **changes)
    before = other.state_dict()
    with pytest.raises(StateError, match=said):
        other.load_state_dict(loader.state_dict())
    assert other.state_dict() == before


def test_another_dataset_is_refused(folder: Path, tmp_path: Path) -> None:
    loader = make(folder)
    state = loader.state_dict()
    others = [
        make(make_folder(tmp_path / "other", num=36)),
        make(loader.dataset.select(range(36))),
        make(loader.dataset.select(range(36, -1, -1))),
    ]
    for other in others:
        with pytest.raises(StateError, match=r"another dataset .* open the dataset it was saved with"):
            other.load_state_dict(state)


def test_the_same_selection_resumes(folder: Path) -> None:
    dataset = make(folder).dataset
    first = make(dataset.select(range(30)))
    iterator = iter(first)
    next(iterator)
    second = make(make(folder).dataset.select(range(30)))
    second.load_state_dict(first.state_dict())
    assert same(copies(second), [tuple(batch) for batch in iterator])


@pytest.mark.parametrize("damage", [
    {"version": 99}, {"version": None}, {"epoch": None}, {"samples_done": "x"}, {"samples_done": -5}, {"epoch": -1},
    {"samples_done": 7},    {"samples_done": 2.5}, {"epoch": [1]},
], ids=str)  # fmt: skip
def test_damaged_states_are_refused(folder: Path, damage: dict[str, Any]) -> None:
    loader = make(folder)
    with pytest.raises(StateError):
        loader.load_state_dict(loader.state_dict() | damage)
    assert len(copies(loader)) == len(loader)


@pytest.mark.parametrize("state", [{}, {"version": 1}, {"_snapshot": {}, "_iterator_finished": False}, None, [], "x"], ids=str)
def test_states_of_something_else_are_refused(folder: Path, state: Any) -> None:
    with pytest.raises(StateError, match="not a state of this loader"):
        make(folder).load_state_dict(state)


def test_numpy_integers_are_as_good_as_ints(folder: Path) -> None:
    """Configurations come out of arrays, too; the state must still be JSON."""
    plain = make(folder, batch_size=4, seed=7, rank=1, world_size=2)
    odd = make(folder, batch_size=np.int64(4), seed=np.int64(7), rank=np.int32(1), world_size=np.int16(2), num_workers=np.int8(1))
    plain.set_epoch(2)
    odd.set_epoch(np.int64(2))  # type: ignore[arg-type]
    assert same(copies(odd), copies(plain))
    assert through_json(odd.state_dict()) == plain.state_dict()


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1, -(2**63)])
def test_any_seed_of_torchs_range(folder: Path, seed: int) -> None:
    loader, other = make(folder, seed=seed), make(folder, seed=seed)
    next(iter(loader))
    other.load_state_dict(through_json(loader.state_dict()))
    assert len(copies(other)) == len(loader) - 1
