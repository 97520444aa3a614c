"""The seed of a loader that is given none: torch's, drawn when the first pass begins, and kept in saved states."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import copies, same
from recipes import CROP

import datapipe as dp


def make(path: Path, **changes: Any) -> dp.DataLoader:
    return dp.DataLoader(path, **({"batch_size": 5, "shuffle": True, "transform": CROP, "num_workers": 1} | changes))


def test_manual_seed_is_the_seed(folder: Path) -> None:
    """In order and crops, of all loaders of a process alike; nothing is taken from torch's random state."""
    expected = {seed: copies(make(folder, seed=seed)) for seed in (1, 2)}
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        loader, other = make(folder), make(folder)
        assert same(copies(loader), expected[seed])
        assert same(copies(other), expected[seed])
        assert loader.seed == other.seed == seed
        assert torch.equal(torch.get_rng_state(), before)
    assert not same(expected[1], expected[2])


def test_it_is_drawn_when_the_first_pass_begins_and_then_stays(folder: Path) -> None:
    torch.manual_seed(1)
    loader = make(folder)
    passes = iter(loader), iter(loader)
    assert (len(loader), loader.seed, loader.state_dict()["seed"]) == (8, None, None)
    torch.manual_seed(2)
    next(passes[0])
    torch.manual_seed(3)
    next(passes[1])
    assert loader.seed == loader.state_dict()["seed"] == 2
    loader.set_epoch(4)
    given = make(folder, seed=2)
    given.set_epoch(4)
    assert same(copies(loader), copies(given))


def test_a_state_brings_its_seed_along(folder: Path) -> None:
    """Into a loader that is given none, whatever torch was told since, and also if it had drawn another one."""
    torch.manual_seed(1)
    first = make(folder)
    expected = copies(first), copies(first)
    walking = make(folder)
    next(iter(walking))
    torch.manual_seed(2)
    fresh, used = make(folder), make(folder)
    copies(used)
    assert used.seed == 2
    begun = iter(used)
    for loader in (fresh, used, make(folder, seed=1), make(folder, generator=torch.Generator())):
        loader.load_state_dict(walking.state_dict())
        assert loader.seed == 1
        assert same(copies(loader), expected[0][1:])
        assert same(copies(loader), expected[1])
    used.load_state_dict(walking.state_dict())
    assert same([tuple(batch) for batch in begun], expected[0][1:]), "a pass asked for before it was loaded"
    with pytest.raises(dp.StateError, match=r"saved with seed=1, this loader has 2; pass the same seed as then, or none"):
        make(folder, seed=2).load_state_dict(walking.state_dict())


@pytest.mark.parametrize("backend", ["images_cpu", "dali"])
def test_another_seed_needs_no_other_decoders(folder: Path, backend: str) -> None:
    """Nor does `explain`, which opens them before there is a seed."""
    mixed = [*CROP, dp.ToDtype(torch.float32, scale=True), dp.MixUp(num_classes=3)]
    loader = make(folder, transform=mixed, backend=backend, device="cpu")
    loader.decoder_device()
    opened = loader._images.batch_maker(loader._passes.settings())
    torch.manual_seed(1)
    assert same(copies(loader), copies(make(folder, transform=mixed, backend=backend, device="cpu", seed=1)))
    again = loader._images.batch_maker(loader._passes.settings(1))
    assert again.resources is opened.resources
    assert again.dali is opened.dali


def test_a_state_from_before_the_first_pass_has_none(folder: Path) -> None:
    state = make(folder).state_dict()
    given = make(folder, seed=7)
    given.load_state_dict(state)
    assert same(copies(given), copies(make(folder, seed=7)))
    torch.manual_seed(4)
    loader = make(folder)
    loader.load_state_dict(state)
    assert same(copies(loader), copies(make(folder, seed=4)))


@pytest.mark.parametrize("seed", ["1", 1.0, True, 2**64, -(2**63) - 1, [1]])
def test_a_damaged_seed_is_refused(folder: Path, seed: object) -> None:
    loader = make(folder)
    with pytest.raises(dp.StateError, match="not a state of this loader, or damaged"):
        loader.load_state_dict(loader.state_dict() | {"seed": seed})
    assert loader.seed is None


def test_a_refused_state_changes_nothing(folder: Path) -> None:
    walking, loader = make(folder, seed=1), make(folder)
    next(iter(walking))
    with pytest.raises(dp.StateError, match="not a multiple"):
        loader.load_state_dict(walking.state_dict() | {"samples_done": 7})
    assert (loader.seed, loader.state_dict()["samples_done"]) == (None, 0)


def test_a_generator_is_drawn_from_once(folder: Path) -> None:
    """As torch's samplers draw from it: where it stands counts, and loaders that share one differ."""

    def seeds(number: int, count: int = 2) -> list[int | None]:
        generator = torch.Generator().manual_seed(number)
        loaders = [make(folder, generator=generator) for _ in range(count)]
        for loader in loaders:
            copies(loader), copies(loader)
        expected = torch.Generator().manual_seed(number)
        for _ in loaders:
            torch.empty((), dtype=torch.int64).random_(generator=expected)
        assert torch.equal(generator.get_state(), expected.get_state())
        return [loader.seed for loader in loaders]

    assert seeds(9) == seeds(9)
    assert len({*seeds(9), *seeds(10)}) == 4
    with pytest.raises(dp.OptionError, match="seed=0 and generator exclude each other"):
        make(folder, seed=0, generator=torch.Generator())


def test_copies_draw_for_themselves(folder: Path) -> None:
    loader = make(folder)
    copies(loader)
    for again in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert again.seed is None
        assert same(copies(again), copies(make(folder, seed=loader.seed)))


def test_ranks_without_a_process_group_cannot_agree(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would draw different orders: some samples would come twice and others never. The seed is 0, with a warning."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(5 + rank)
        loader = make(folder)
        with pytest.warns(RuntimeWarning, match=rf"rank {rank} of 2 has no process group .*: it is 0.*; pass seed="):
            found = copies(loader)
        assert same(found, copies(make(folder, seed=0)))
        given = make(folder, generator=torch.Generator().manual_seed(3))
        copies(given)
        alone = make(folder, generator=torch.Generator().manual_seed(3), rank=0, world_size=1)
        copies(alone)
        assert given.seed == alone.seed


def test_explain_names_the_seed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(loader: dp.DataLoader) -> str:
        print(dp.explain(loader))
        return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("seed "))

    torch.manual_seed(11)
    loader = make(folder)
    assert told(loader) == "seed      torch.initial_seed(), once the first pass begins; ranks take that of rank 0"
    copies(loader)
    assert told(loader) == "seed      11, from torch.initial_seed()"
    resumed = make(folder)
    resumed.load_state_dict(loader.state_dict())
    assert told(resumed) == "seed      11, from the state that was loaded"
    assert told(make(folder, seed=3)) == "seed      3, as given"
    generator = make(folder, generator=torch.Generator())
    assert told(generator).startswith("seed      a number from the generator, once")
    copies(generator)
    assert told(generator) == f"seed      {generator.seed}, drawn from the generator"
