"""Memory: returned batches are not overwritten, slabs are reused, and the total stays constant."""

from __future__ import annotations

import gc
import resource
import time
from pathlib import Path

import pytest
import torch
from fixtures import copies, same
from recipes import CROP, TRAIN

import datapipe as dp
from datapipe.kernel.pools import SlabPool

pytestmark = [pytest.mark.usefixtures("backend"), pytest.mark.slow]


def rss_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("transform", [CROP, TRAIN], ids=["uint8", "float32"])
@pytest.mark.parametrize("num_workers", [0, 3])
def test_nothing_handed_out_is_ever_overwritten(folder: Path, transform: list[object], num_workers: int) -> None:
    loader = dp.DataLoader(folder, batch_size=3, shuffle=True, transform=transform, num_workers=num_workers)
    kept, copied = [], []
    for _ in range(3):
        for images, labels in loader:
            kept.append((images, labels))
            copied.append((images.clone(), labels.clone()))
    assert same(kept, copied)
    assert len({images.data_ptr() for images, _ in kept}) == len(kept)
    listed = list(loader)
    loader.set_epoch(3)
    assert same(listed, copies(loader))


def test_a_view_of_a_batch_keeps_it(folder: Path) -> None:
    loader = dp.DataLoader(folder, batch_size=3, transform=TRAIN, num_workers=2)
    views, copied = [], []
    for images, _ in loader:
        views.append(images[1 % len(images), 2, 5:9].t())
        copied.append(views[-1].clone())
        del images
    copies(loader)
    assert all(torch.equal(view, copy) for view, copy in zip(views, copied, strict=True))


def test_the_caller_may_write_into_its_batch(folder: Path) -> None:
    loader = dp.DataLoader(folder, batch_size=3, transform=TRAIN, num_workers=2)
    expected = copies(loader)
    loader.set_epoch(0)
    found = []
    for images, labels in loader:
        found.append((images.clone(), labels.clone()))
        images.fill_(float("nan"))
        labels.fill_(-5)
    assert same(found, expected)


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


def test_a_slow_consumer_finds_few_batches_waiting(folder: Path) -> None:
    """Loading runs ahead by `depth` batches and no further."""
    begun: list[int] = []
    loader = dp.DataLoader(folder, batch_size=1, transform=CROP, num_workers=2, prefetch_factor=3)
    loader.observe(lambda event: begun.append(event.step) if event.stage is dp.Stage.PLAN else None)
    iterator = iter(loader)
    next(iterator)
    time.sleep(0.2)
    assert max(begun) <= loader.options.depth
