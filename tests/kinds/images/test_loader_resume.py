"""States of loaders of images: with samplers, and of selections. What all loaders promise is in the suite of loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recipes import CROP, TRAIN

import datapipe as dp
from datapipe.errors import StateError
from datapipe.testing.loaders.kind import copies, same

pytestmark = pytest.mark.usefixtures("backend")


def make(path: Path, **changes: Any) -> dp.DataLoader:
    return dp.DataLoader(path, **({"batch_size": 5, "shuffle": True, "transform": CROP, "num_workers": 2, "seed": 3} | changes))


@pytest.mark.parametrize(
    "arguments", [{"transform": TRAIN}, {"sampler": list(range(36, 0, -2)), "shuffle": False}], ids=["floats", "sampler"]
)
def test_resumes_exactly_after_every_step(folder: Path, arguments: dict[str, Any]) -> None:
    expected, states = [], []
    walking = make(folder, **arguments)
    for batch in walking:
        expected.append(tuple(value.clone() for value in batch))
        states.append(walking.state_dict())
    for done, state in enumerate(states, 1):
        resumed = make(folder, **arguments)
        resumed.load_state_dict(state)
        assert same(copies(resumed), expected[done:])


def test_a_state_of_a_shuffle_does_not_fit_a_sampler(folder: Path) -> None:
    loader = make(folder)
    next(iter(loader))
    with pytest.raises(StateError, match="this loader has 'sampler'"):
        make(folder, shuffle=False, sampler=range(37)).load_state_dict(loader.state_dict())


def test_another_selection_is_refused(folder: Path) -> None:
    loader = make(folder)
    state = loader.state_dict()
    for other in (make(loader.dataset.select(range(36))), make(loader.dataset.select(range(36, -1, -1)))):
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
