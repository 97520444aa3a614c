"""The seed: given, torch's, a generator's or a state's; drawn when the first pass begins, and kept."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from datapipe.errors import OptionError, StateError
from datapipe.kernel.explanation import explain
from datapipe.kernel.loader import Loader
from datapipe.testing.loaders.kind import LoaderOf, Promises, copies, same


def _open(kind: LoaderOf, path: Path, **options: Any) -> Loader:
    return kind.open(path, **{"batch_size": 5, "shuffle": True, "num_workers": 1} | options)


class SeedSuite(Promises):
    """All that is random in a loader depends on one number, and that number comes from where the caller expects."""

    @pytest.mark.promise("loader: Same seed, same batches")
    def test_manual_seed_is_the_seed(self, kind: LoaderOf, path: Path) -> None:
        """All loaders of a process have it; nothing is taken from torch's random state."""
        expected = {seed: copies(_open(kind, path, seed=seed)) for seed in (1, 2)}
        for seed in (1, 2, 1):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            for loader in (_open(kind, path), _open(kind, path)):
                assert same(copies(loader), expected[seed])
                assert loader.seed == seed
            assert torch.equal(torch.get_rng_state(), before)
        assert not same(expected[1], expected[2])

    def test_it_is_drawn_when_the_first_pass_begins_and_then_stays(self, kind: LoaderOf, path: Path) -> None:
        torch.manual_seed(1)
        loader = _open(kind, path)
        passes = iter(loader), iter(loader)
        assert (len(loader), loader.seed, loader.state_dict()["seed"]) == (8, None, None)
        torch.manual_seed(2)
        next(passes[0])
        torch.manual_seed(3)
        next(passes[1])
        assert loader.seed == loader.state_dict()["seed"] == 2
        loader.set_epoch(4)
        given = _open(kind, path, seed=2)
        given.set_epoch(4)
        assert same(copies(loader), copies(given))

    def test_a_state_brings_its_seed_along(self, kind: LoaderOf, path: Path) -> None:
        """Into a loader that is given none, whatever torch was told since, and also if it had drawn another one."""
        torch.manual_seed(1)
        first = _open(kind, path)
        expected = copies(first), copies(first)
        walking = _open(kind, path)
        next(iter(walking))
        state = walking.state_dict()
        torch.manual_seed(2)
        fresh, used = _open(kind, path), _open(kind, path)
        copies(used)
        assert used.seed == 2
        begun = iter(used)
        given = _open(kind, path, seed=1), _open(kind, path, generator=torch.Generator())
        for loader in (fresh, used, *given):
            loader.load_state_dict(state)
            assert loader.seed == 1
            assert same(copies(loader), expected[0][1:])
            assert same(copies(loader), expected[1])
        used.load_state_dict(state)
        assert same(copies(begun), expected[0][1:]), "a pass asked for before it was loaded"
        with pytest.raises(StateError, match=r"saved with seed=1, this loader has 2; pass the same seed as then, or none"):
            _open(kind, path, seed=2).load_state_dict(state)

    def test_a_state_from_before_the_first_pass_has_none(self, kind: LoaderOf, path: Path) -> None:
        state = _open(kind, path).state_dict()
        torch.manual_seed(4)
        for options, seed in (({"seed": 7}, 7), ({}, 4)):
            loader = _open(kind, path, **options)
            loader.load_state_dict(state)
            assert same(copies(loader), copies(_open(kind, path, seed=seed)))

    @pytest.mark.parametrize("seed", ["1", 1.0, True, 2**64, -(2**63) - 1, [1]])
    def test_a_damaged_seed_is_refused(self, kind: LoaderOf, path: Path, seed: object) -> None:
        loader = _open(kind, path)
        with pytest.raises(StateError, match="not a state of this loader, or damaged"):
            loader.load_state_dict(loader.state_dict() | {"seed": seed})
        assert loader.seed is None

    @pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1, -(2**63)])
    def test_any_seed_of_torchs_range(self, kind: LoaderOf, path: Path, seed: int) -> None:
        loader, other = _open(kind, path, seed=seed), _open(kind, path, seed=seed)
        next(iter(loader))
        other.load_state_dict(loader.state_dict())
        assert sum(1 for _ in other) == len(loader) - 1

    def test_a_generator_is_drawn_from_once(self, kind: LoaderOf, path: Path) -> None:
        """As torch's samplers draw from it: where it stands counts, and loaders that share one differ."""

        def seeds(number: int) -> list[int | None]:
            generator = torch.Generator().manual_seed(number)
            loaders = [_open(kind, path, generator=generator) for _ in range(2)]
            for loader in loaders:
                copies(loader), copies(loader)
            expected = torch.Generator().manual_seed(number)
            for _ in loaders:
                torch.empty((), dtype=torch.int64).random_(generator=expected)
            assert torch.equal(generator.get_state(), expected.get_state())
            return [loader.seed for loader in loaders]

        assert seeds(9) == seeds(9)
        assert len({*seeds(9), *seeds(10)}) == 4
        with pytest.raises(OptionError, match="seed=0 and generator exclude each other"):
            _open(kind, path, seed=0, generator=torch.Generator())

    def test_copies_draw_for_themselves(self, kind: LoaderOf, path: Path) -> None:
        loader = _open(kind, path)
        copies(loader)
        for again in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
            assert again.seed is None
            assert same(copies(again), copies(_open(kind, path, seed=loader.seed)))

    def test_ranks_without_a_process_group_cannot_agree(
        self, kind: LoaderOf, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They would draw different orders: some samples would come twice and others never. The seed is 0, with a warning."""
        monkeypatch.setenv("WORLD_SIZE", "2")
        for rank in range(2):
            monkeypatch.setenv("RANK", str(rank))
            torch.manual_seed(5 + rank)
            loader = _open(kind, path)
            with pytest.warns(RuntimeWarning, match=rf"rank {rank} of 2 has no process group .*: it is 0.*; pass seed="):
                found = copies(loader)
            assert same(found, copies(_open(kind, path, seed=0)))
            given = _open(kind, path, generator=torch.Generator().manual_seed(3))
            alone = _open(kind, path, generator=torch.Generator().manual_seed(3), ranks=(0, 1))
            for loader in (given, alone):
                copies(loader)
            assert given.seed == alone.seed

    def test_explain_names_the_seed(self, kind: LoaderOf, path: Path) -> None:
        def told(loader: Loader) -> str:
            (line,) = [line for line in explain(loader).lines if line.startswith("seed ")]
            return line.removeprefix("seed").strip()

        torch.manual_seed(11)
        loader = _open(kind, path)
        assert told(loader) == "torch.initial_seed(), once the first pass begins; ranks take that of rank 0"
        copies(loader)
        assert told(loader) == "11, from torch.initial_seed()"
        resumed = _open(kind, path)
        resumed.load_state_dict(loader.state_dict())
        assert told(resumed) == "11, from the state that was loaded"
        assert told(_open(kind, path, seed=3)) == "3, as given"
        drawing = _open(kind, path, generator=torch.Generator())
        assert told(drawing).startswith("a number from the generator, once")
        copies(drawing)
        assert told(drawing) == f"{drawing.seed}, drawn from the generator"
