"""What a loader takes from the training beside making it wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.diagnostics.virtual_device import VirtualWorld
from datapipe.diagnostics.contention import measure_contention
from datapipe.errors import OptionError


class Loading:
    """A loader that makes the caller wait, and while it is open slows the device by a factor."""

    def __init__(self, world: VirtualWorld, slowdown: float) -> None:
        self.factor, self._world, self._slowdown = 1.0, world, slowdown

    def __iter__(self) -> Iterator[int]:
        self.factor = self._slowdown
        try:
            for number in range(1000):
                self._world.spend(0.020)
                yield number
        finally:
            self.factor = 1.0


@pytest.mark.parametrize("slowdown", [1.0, 1.25])
def test_waiting_is_not_contention_and_slower_work_is(slowdown: float) -> None:
    world = VirtualWorld()
    loader = Loading(world, slowdown)
    draws = np.random.default_rng(0)

    def step(batch: int) -> None:
        world.launch(float(draws.normal(0.010, 0.0005)) * loader.factor)
        world.synchronize()

    found = measure_contention(step, loader, world)
    assert found is not None
    assert found.ratio.low <= slowdown <= found.ratio.high
    assert found.ratio.value == pytest.approx(slowdown, abs=0.03)
    assert found.live_s == pytest.approx(0.010 * slowdown, rel=0.03)


def test_too_few_steps_say_nothing() -> None:
    world = VirtualWorld()
    assert measure_contention(lambda _: world.launch(0.01), Loading(world, 1.0), world, num_steps=5) is None
    with pytest.raises(OptionError, match="no batch"):
        measure_contention(lambda _: None, [], world)
