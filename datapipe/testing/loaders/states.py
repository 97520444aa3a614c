"""States: small, JSON-safe, exact at every step, on other numbers of ranks, and refused where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import StateError
from datapipe.kernel.loader import Loader
from datapipe.testing.loaders.kind import NUM_SAMPLES, LoaderOf, Promises, copies, real_ids, same


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state as a checkpoint gives it back."""
    text = json.dumps(state)
    assert len(text) < 500
    again: dict[str, Any] = json.loads(text)
    assert again == state
    return again


def _open(kind: LoaderOf, path: Path, **options: Any) -> Loader:
    return kind.open(path, **{"batch_size": 5, "shuffle": True, "num_workers": 2, "seed": 3} | options)


class StateSuite(Promises):
    """A loader that is given another's state gives what that one had left."""

    @pytest.mark.promise("loader: State")
    @pytest.mark.parametrize("options", [
        {}, {"tail": "drop"}, {"tail": "mask"}, {"shuffle": False}, {"num_workers": 0}, {"ranks": (1, 2)},
        {"batch_size": 37}, {"on_error": "skip", "prefetch_factor": 7},
    ], ids=str)  # fmt: skip
    def test_it_resumes_exactly_after_every_step(self, kind: LoaderOf, path: Path, options: dict[str, Any]) -> None:
        """Through JSON into a new loader, over the end of the epoch and into the next."""
        options = {"batch_size": 9} | options
        original = _open(kind, path, **options)
        steps = len(original)
        expected = copies(original) + copies(original)
        walking = _open(kind, path, **options)
        states = [(0, through_json(walking.state_dict()))]
        for epoch in range(2):
            states += [(epoch * steps + step, through_json(walking.state_dict())) for step, _ in enumerate(walking, 1)]
            states.append(((epoch + 1) * steps, through_json(walking.state_dict())))
        for place, (done, state) in enumerate(states):
            resumed = _open(kind, path, **options)
            resumed.load_state_dict(state)
            rest = copies(resumed)
            left = (state["epoch"] + 1) * steps - done
            assert len(resumed) == steps, "the length is that of a whole epoch"
            assert len(rest) == left
            assert left in (0, steps) if done % steps == 0 else 0 < left < steps
            if done < 2 * steps:
                assert same(rest, expected[done : done + left]), f"after {done} steps, state {place}"

    def test_a_state_after_the_last_batch_leaves_nothing_of_its_epoch(self, kind: LoaderOf, path: Path) -> None:
        """As with torchdata: a script that counts epochs itself goes through its loop for that epoch, which has nothing to do."""
        loader = _open(kind, path)
        copies(loader)
        iterator = iter(loader)
        for _ in range(len(loader)):
            next(iterator)
        inside = loader.state_dict()
        assert next(iterator, None) is None
        ended = loader.state_dict()
        expected = copies(loader)

        resumed = _open(kind, path)
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

    def test_the_place_is_that_of_the_last_batch_handed_out(self, kind: LoaderOf, path: Path) -> None:
        """However many batches are in the making already."""
        loader = _open(kind, path, prefetch_factor=6)
        iterator = iter(loader)
        assert loader.state_dict()["samples_done"] == 0
        for done in (5, 10, 15):
            next(iterator)
            assert (loader.state_dict()["epoch"], loader.state_dict()["samples_done"]) == (0, done)
        iterator.close()
        assert loader.state_dict()["samples_done"] == 15

    def test_a_state_can_be_loaded_again_and_epochs_go_on_from_it(self, kind: LoaderOf, path: Path) -> None:
        whole, first = _open(kind, path), _open(kind, path)
        expected = [copies(whole) for _ in range(4)]
        copies(first)
        next(iter(first))
        state = first.state_dict()
        resumed = _open(kind, path)
        for _ in range(2):
            resumed.load_state_dict(state)
            assert same(copies(resumed), expected[1][1:])
            assert same(copies(resumed), expected[2])
        resumed.load_state_dict(state)
        resumed.set_epoch(1)
        assert same(copies(resumed), expected[1][1:]), "naming the resumed epoch keeps the place, as frameworks do"
        resumed.load_state_dict(state)
        resumed.set_epoch(3)
        assert same(copies(resumed), expected[3])

    def test_threads_may_differ(self, kind: LoaderOf, path: Path) -> None:
        loader = _open(kind, path)
        iterator = iter(loader)
        next(iterator), next(iterator)
        state, rest = loader.state_dict(), copies(iterator)
        for num_workers in (0, 1, 4):
            resumed = _open(kind, path, num_workers=num_workers, prefetch_factor=5)
            resumed.load_state_dict(state)
            assert same(copies(resumed), rest)

    @pytest.mark.promise("loader: State")
    @pytest.mark.parametrize("shuffle", [True, False])
    @pytest.mark.parametrize("tail", ["pad", "drop", "mask"])
    @pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 1)])
    def test_ranks_may_differ_if_the_global_batch_is_the_same(
        self, kind: LoaderOf, path: Path, tail: str, before: int, after: int, shuffle: bool
    ) -> None:
        def ranks(world_size: int) -> list[Loader]:
            options = {"batch_size": 8 // world_size, "tail": tail, "shuffle": shuffle, "num_workers": 0}
            return [_open(kind, path, ranks=(rank, world_size), **options) for rank in range(world_size)]

        def steps_of(loaders: list[Loader], num: int | None = None) -> list[list[int]]:
            """The real samples of each step, over all ranks."""
            steps: list[list[int]] = []
            for loader in loaders:
                for step, batch in zip(range(len(loader) if num is None else num), loader, strict=False):
                    if step == len(steps):
                        steps.append([])
                    steps[step] += real_ids(kind, batch) if tail == "mask" else kind.ids(batch)
            return steps

        whole = steps_of(ranks(1))
        for num in (1, 3):
            first = ranks(before)
            begun = steps_of(first, num)
            states = [loader.state_dict() for loader in first]
            assert all(state == states[0] for state in states), "every rank saves the same state"
            rest = ranks(after)
            for loader in rest:
                loader.load_state_dict(through_json(states[0]))
            found = begun + steps_of(rest)
            assert [set(step) for step in found[:-1]] == [set(step) for step in whole[:-1]]
            assert set(whole[-1]) <= set(found[-1]), "ranks get equally many, some of them a repeat"
            num_repeats = sum(map(len, found)) - sum(map(len, whole))
            assert num_repeats == (-(NUM_SAMPLES % 8) % after if tail == "pad" else 0)

    @pytest.mark.promise("loader: State")
    @pytest.mark.parametrize(("options", "said"), [
        ({"batch_size": 6}, "choose batch_size so that the product is 5"),
        ({"ranks": (0, 2)}, r"this loader has 10; choose batch_size so that the product is 5"),
        ({"seed": 4}, "seed=3, this loader has 4; pass the same seed"),
        ({"shuffle": False}, r"this loader has '(sequential[^']*|mixed in stored order .*)'; pass the same shuffle, sampler"),
        ({"tail": "drop"}, "tail='pad', this loader has 'drop'; pass the same tail"),
        ({"tail": "mask"}, "tail='pad', this loader has 'mask'"),
    ], ids=str)  # fmt: skip
    def test_a_loader_that_would_not_continue_exactly_refuses(
        self, kind: LoaderOf, path: Path, options: dict[str, Any], said: str
    ) -> None:
        loader = _open(kind, path)
        next(iter(loader))
        other = _open(kind, path, **options)
        before = other.state_dict()
        with pytest.raises(StateError, match=said):
            other.load_state_dict(loader.state_dict())
        assert other.state_dict() == before

    def test_another_dataset_is_refused(self, kind: LoaderOf, path: Path, tmp_path: Path) -> None:
        other = _open(kind, kind.make(tmp_path / "other", NUM_SAMPLES - 1))
        with pytest.raises(StateError, match=r"another dataset .* open the dataset it was saved with"):
            other.load_state_dict(_open(kind, path).state_dict())

    def test_damaged_states_and_those_of_something_else_are_refused(self, kind: LoaderOf, path: Path) -> None:
        loader = _open(kind, path)
        good = loader.state_dict()
        damages: list[dict[str, Any]] = [
            {"version": 99}, {"version": None}, {"epoch": None}, {"samples_done": "x"}, {"samples_done": -5}, {"epoch": -1},
            {"samples_done": 7}, {"samples_done": 2.5}, {"epoch": [1]},
            {"epoch": 2**31}, {"epoch": 10**30}, {"samples_done": 2**62}, {"samples_done": 10**30},
        ]  # fmt: skip
        for damage in damages:
            with pytest.raises(StateError):
                loader.load_state_dict(good | damage)
        others: list[Any] = [{}, {"version": 1}, {"_snapshot": {}, "_iterator_finished": False}, None, [], "x"]
        for other in others:
            with pytest.raises(StateError, match="not a state of this loader"):
                loader.load_state_dict(other)
        assert loader.state_dict() == good
        assert len(copies(loader)) == len(loader)

    def test_a_refused_state_changes_nothing(self, kind: LoaderOf, path: Path) -> None:
        walking, loader = _open(kind, path, seed=1), _open(kind, path, seed=None)
        next(iter(walking))
        with pytest.raises(StateError, match="not a multiple"):
            loader.load_state_dict(walking.state_dict() | {"samples_done": 7})
        assert (loader.seed, loader.state_dict()["samples_done"]) == (None, 0)

    def test_numpy_integers_are_as_good_as_ints(self, kind: LoaderOf, path: Path) -> None:
        """Configurations come out of arrays, too; the state must still be JSON."""
        numbers = {"batch_size": 4, "seed": 7, "num_workers": 1}
        plain = _open(kind, path, **numbers, ranks=(1, 2))
        ranks = np.int64(1), np.int64(2)
        odd = _open(kind, path, **{name: np.int64(number) for name, number in numbers.items()}, ranks=ranks)
        plain.set_epoch(2)
        odd.set_epoch(np.int64(2))  # type: ignore[arg-type]
        assert same(copies(odd), copies(plain))
        assert through_json(odd.state_dict()) == plain.state_dict()
