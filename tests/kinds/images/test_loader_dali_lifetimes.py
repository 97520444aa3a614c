"""DALI in the loader leaves no threads and no memory, and makes batches of any size."""

from __future__ import annotations

import gc
import resource
import time
from pathlib import Path

import pytest
import torch
from dali_loaders import make
from fixtures import NUM_SAMPLES
from recipes import CROP, TRAIN

import datapipe as dp
from datapipe.testing.loaders.kind import copies, own_threads, same

pytest.importorskip("nvidia.dali", reason="DALI is not installed")


def kernel_threads() -> int:
    return int(
        next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Threads:")).split()[1]
    )


def at_most(num_threads: int, *, within_s: float = 5) -> bool:
    """Soon, that is: the kernel lists a thread for a moment after it was joined."""
    deadline = time.monotonic() + within_s
    while kernel_threads() > num_threads and time.monotonic() < deadline:
        time.sleep(0.01)
    return kernel_threads() <= num_threads


def settled() -> int:
    """The number of threads once it does not fall any more."""
    while not at_most((now := kernel_threads()) - 1, within_s=0.3):
        if kernel_threads() == now:
            break
    return kernel_threads()


def rss_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.nightly
def test_passes_share_their_pipelines(folder: Path) -> None:
    """200 iterators left early have no more threads of DALI's between them than one; the loader's end is theirs."""
    next(iter(make(folder, num_workers=1)))  # libraries start threads of their own at their first use, and keep them
    gc.collect()
    before = settled()
    loader = make(folder, num_workers=1, backend=dp.Dali(num_pipelines=1))
    kept = [next(iter(loader)) for _ in range(2)]
    one = kernel_threads()
    for turn in range(200):
        for step, _ in enumerate(loader):
            if step == turn % 3:
                break
    assert at_most(one)
    assert own_threads() == []
    del loader
    gc.collect()
    assert at_most(before)
    assert same([tuple(kept[0].values())], [tuple(next(iter(make(folder))).values())]), "batches outlive it"


@pytest.mark.nightly
@pytest.mark.parametrize("transform", [CROP, TRAIN], ids=["uint8", "float32"])
def test_many_small_batches_keep_memory_flat(folder: Path, transform: list[object]) -> None:
    loader = make(folder, batch_size=2, transform=transform, shuffle=True)

    def run(num_batches: int) -> int:
        left = num_batches
        while left > 0:
            for _ in loader:
                left -= 1
        gc.collect()
        return rss_nbytes()

    run(200)
    before = run(200)
    grown = run(1000) - before
    assert grown < 4 << 20 or run(1000) - before < 2 * grown, "more batches take more memory"


def test_batches_of_many_sizes(folder: Path) -> None:
    """A batch sampler's: larger than all before, empty, small again."""
    sizes = [1, 0, 9, 37, 2, 0, 40, 3, 37]
    lists = [[n % NUM_SAMPLES for n in range(size)] for size in sizes]
    flat = [sample for listed in lists for sample in listed]
    one_by_one = dp.DataLoader(folder, sampler=flat, transform=CROP, backend="dali", device="cpu")
    expected = [images[0] for images, _ in one_by_one]
    for num_workers in (0, 2):
        loader = dp.DataLoader(
            folder, batch_sampler=lists, transform=CROP, output="dict", num_workers=num_workers, backend="dali", device="cpu"
        )
        batches = list(loader)
        assert [batch["id"].tolist() for batch in batches] == lists
        images = [image for batch in batches for image in batch["image"]]
        assert all(torch.equal(image, wanted) for image, wanted in zip(images, expected, strict=True))


@pytest.mark.daily(5)
@pytest.mark.parametrize("num_pipelines", [1, 2, 4])
@pytest.mark.parametrize("prefetch_factor", [1, 6])
def test_settings_make_no_difference(folder: Path, num_pipelines: int, prefetch_factor: int) -> None:
    expected = copies(make(folder, output="tuple", num_workers=0, transform=TRAIN))
    dali = dp.Dali(num_threads=num_pipelines, num_pipelines=num_pipelines)
    found = copies(make(folder, output="tuple", transform=TRAIN, backend=dali, prefetch_factor=prefetch_factor))
    assert same(found, expected)
