"""Memory: returned batches are not overwritten, slabs are reused, and the total stays constant."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import pytest
from recipes import TRAIN

import datapipe as dp
from datapipe.kernel.pools import SlabPool
from datapipe.testing.loaders.kind import same

pytestmark = pytest.mark.usefixtures("backend")


def rss_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("num_workers", [0, 3])
def test_float_images_are_never_overwritten(folder: Path, num_workers: int) -> None:
    loader = dp.DataLoader(folder, batch_size=3, shuffle=True, transform=TRAIN, num_workers=num_workers)
    kept, copied = [], []
    for _ in range(3):
        for images, labels in loader:
            kept.append((images, labels))
            copied.append((images.clone(), labels.clone()))
    assert same(kept, copied)


def test_slabs_are_used_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = []
    real = SlabPool._allocate
    monkeypatch.setattr(SlabPool, "_allocate", lambda pool: allocated.append(pool.nbytes) or real(pool))
    loader = dp.DataLoader(folder, batch_size=4, shuffle=True, transform=TRAIN, num_workers=2)
    for _ in range(3):
        for _ in loader:
            pass
    first = len(allocated)
    for _ in range(20):
        for _ in loader:
            pass
    assert len(allocated) <= first + 2
    assert len(allocated) <= loader.options.depth + 4
    assert len(set(allocated)) == 1, "the short last batch takes a slab of the same size"


@pytest.mark.nightly
def test_memory_stays_flat(folder: Path) -> None:
    loader = dp.DataLoader(folder, batch_size=4, shuffle=True, transform=TRAIN, num_workers=2)

    def run(num_epochs: int) -> int:
        for _ in range(num_epochs):
            for _ in loader:
                pass
        gc.collect()
        return rss_nbytes()

    run(10)
    before = run(10)
    assert run(30) - before < 8 << 20  # 300 batches of 80 KB are 24 MB
