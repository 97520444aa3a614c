"""A collate_fn that may draw random numbers: which may, and how a loader calls it."""

from __future__ import annotations

import functools
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from recipes import CROP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

import datapipe as dp
from datapipe.kernel.drawing import may_draw
from datapipe.testing.loaders.kind import copies, same

SCALE = 0.5
seen: list[Any] = []


def stacked(samples: list[Any]) -> Any:
    return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


def as_dict(samples: list[Any]) -> dict[str, Any]:
    images, labels = stacked(samples)
    if not len(images):
        raise ValueError(f"no samples: {labels}")
    return {"pixel_values": images.to(torch.float32) * SCALE, "labels": F.one_hot(labels, num_classes=10)}


def padded(samples: list[Any], value: float = 0.0) -> torch.Tensor:
    with torch.no_grad():
        return pad_sequence([image.flatten() for image, _ in samples], batch_first=True, padding_value=value)


def drawn_inside(samples: list[Any]) -> Any:
    return [torch.rand(2) for _ in samples]


def permuted(samples: list[Any]) -> Any:
    return stacked(samples)[0][torch.randperm(len(samples))]


def by_numpy(samples: list[Any]) -> Any:
    return np.random.permutation(len(samples))


def remembered(samples: list[Any]) -> int:
    seen.append(samples)
    return len(seen)


def counted(samples: list[Any]) -> int:
    global number
    number = len(samples)
    return number


def imports(samples: list[Any]) -> float:
    import random

    return random.random()


def by_a_function(samples: list[Any]) -> Any:
    return drawn_inside(samples)


def in_place(samples: list[Any]) -> Any:
    return torch.zeros(len(samples)).uniform_()


def recursive(samples: list[Any]) -> Any:
    return recursive(samples[1:]) if samples else 0


def nested(low: float) -> Any:
    def collate(samples: list[Any]) -> Any:
        return [image.clamp(low) for image, _ in samples]

    return collate


def counting() -> Any:
    number = 0

    def collate(samples: list[Any]) -> int:
        nonlocal number
        number += len(samples)
        return number

    return collate


class Padding:
    def __init__(self, value: float, function: Any = None) -> None:
        self.padding, self.function = value, function

    def __call__(self, samples: list[Any]) -> Any:
        return self.widen(samples), self.padding

    def widen(self, samples: list[Any]) -> Any:
        return [F.pad(image, (0, 1), value=self.padding) for image, _ in samples]


class Calling(Padding):
    def __call__(self, samples: list[Any]) -> Any:
        return self.function(samples)


class Counter(Padding):
    def __call__(self, samples: list[Any]) -> Any:
        self.padding += 1
        return len(samples)


class Disguised:
    """An attribute that is called as a function of torch's that draws."""

    rand = 3

    def __call__(self, samples: list[Any]) -> Any:
        return torch.rand(self.rand)


DRAW_NOTHING = {
    "default_collate": default_collate, "list": list, "len": len, "a lambda": lambda samples: tuple(zip(*samples, strict=True)),
    "stacked": stacked, "as_dict": as_dict, "padded": padded, "a partial": functools.partial(padded, value=1.0),
    "recursive": recursive, "a closure": nested(0.5), "an object": Padding(0.0), "a method": Padding(0.0).widen,
    "an object of functions": Calling(0.0, stacked), "sorted": lambda samples: sorted(samples, key=lambda sample: sample[1]),
}  # fmt: skip
MAY_DRAW = {
    "drawn inside": (drawn_inside, "rand"), "permuted": (permuted, "randperm"), "numpy": (by_numpy, "random"),
    "remembered": (remembered, "seen"), "counted": (counted, "number"), "imports": (imports, "random"),
    "by a function": (by_a_function, "rand"), "in place": (in_place, "uniform_"), "a closure": (nested(seen), "low"),  # type: ignore[arg-type]
    "counting": (counting(), "number"), "a partial": (functools.partial(padded, value=random.random), "random"),
    "an object": (Calling(0.0, drawn_inside), "rand"), "a counter": (Counter(0.0), "padding"), "disguised": (Disguised(), "rand"),
    "a bound method": (seen.append, "append"), "a generator's": (np.random.default_rng(0).permutation, "permutation"),
    "random": (random.sample, ""), "a type": (threading.Event, "Event"),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAW_NOTHING)
def test_these_draw_nothing(name: str) -> None:
    assert may_draw(DRAW_NOTHING[name]) is None


@pytest.mark.parametrize("name", MAY_DRAW)
def test_these_may_draw(name: str) -> None:
    function, expected = MAY_DRAW[name]
    found = may_draw(function)
    assert found is not None
    assert expected in found


def where(samples: list[Any]) -> str:
    """Named as a thread, which is not known to draw nothing."""
    return threading.current_thread().name


def test_only_those_that_may_draw_are_called_by_the_consumer(folder: Path) -> None:
    names = list(dp.DataLoader(folder, batch_size=8, transform=CROP, num_workers=2, collate_fn=where))
    assert set(names) == {threading.current_thread().name}
    told = str(dp.explain(dp.DataLoader(folder, batch_size=8, transform=CROP, collate_fn=where)))
    assert "one batch at a time, in the thread that iterates, seeded for each step: it may draw random numbers" in told
    assert "(it uses threading)" in told
    assert "collate " not in str(dp.explain(dp.DataLoader(folder, batch_size=8, transform=CROP, collate_fn=stacked)))


def test_draws_do_not_depend_on_threads_and_are_resumed(folder: Path, backend: str) -> None:
    def loader(num_workers: int) -> dp.DataLoader:
        arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "transform": CROP, "seed": 5}
        return dp.DataLoader(folder, **arguments, num_workers=num_workers, collate_fn=lambda samples: (torch.rand(len(samples)),))

    expected = copies(loader(0))
    for num_workers in (1, 2, 3, 5):
        torch.manual_seed(num_workers)
        state = torch.get_rng_state()
        assert same(copies(loader(num_workers)), expected)
        assert torch.equal(torch.get_rng_state(), state)
        first, second = loader(num_workers), loader(2)
        next(iter(first))
        second.load_state_dict(first.state_dict())
        assert same(copies(second), expected[1:])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ctrl_c_loses_no_batch_and_no_random_state(folder: Path, num_workers: int) -> None:
    interrupts = [KeyboardInterrupt]

    def collate(samples: list[Any]) -> Any:
        drawn = torch.rand(2), torch.tensor([label for _, label in samples])
        if interrupts:
            raise interrupts.pop()
        return drawn

    def loader() -> dp.DataLoader:
        return dp.DataLoader(folder, batch_size=8, transform=CROP, seed=5, num_workers=num_workers, collate_fn=collate)

    state, before = torch.get_rng_state(), torch.get_num_threads()
    interrupted = iter(loader())
    with pytest.raises(KeyboardInterrupt):
        next(interrupted)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == before
    assert same(copies(interrupted), copies(loader()))


def test_assigned_ones_are_looked_at(folder: Path) -> None:
    loader = dp.DataLoader(folder, batch_size=8, transform=CROP, num_workers=2, collate_fn=stacked)
    assert loader.options.may_draw is None
    loader.collate_fn = where
    assert set(loader) == {threading.current_thread().name}
