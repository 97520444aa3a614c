"""How a kind of data joins the suite of loaders, and how tests look at batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from datapipe.kernel.loader import Loader
from datapipe.kernel.pytree import tensors_of

NUM_SAMPLES = 37  # in the data of most tests
# Threads that no pass has: what asks object stores, and what measures for a diagnosis.
_OF_OTHERS = {f"datapipe-{name}" for name in ("requests", "calls", "live", "lock", "nvml", "snapshots")}


@dataclass(frozen=True, slots=True)
class LoaderOf:
    """A kind of data, as the suite meets it."""

    make: Callable[[Path, int], Path]  # writes as many samples into a directory that does not exist; returns what to open
    spoil: Callable[[Path], set[int]]  # damages some of `make`'s samples, at most eight and not the first; returns their ids
    open: Callable[..., Loader]  # of what `make` returned and a loader's arguments
    ids: Callable[[Any], list[int]]  # of the samples in a batch, also in one with a mask of the samples that are real
    most_threads: int | None = None  # that load at once, however many workers are asked for; None: as many as are


@pytest.mark.filterwarnings(r"ignore:.*lane\(s\) for:RuntimeWarning")  # ranks share so little data unevenly
class Promises:
    """The fixtures of the suite's parts: the kind that is tested, and data of it."""

    @pytest.fixture
    def kind(self) -> LoaderOf:
        """The kind that is tested; to be overridden."""
        raise NotImplementedError("a suite's class has a fixture `kind` that returns a LoaderOf")

    @pytest.fixture
    def path(self, kind: LoaderOf, tmp_path: Path) -> Path:
        """37 samples."""
        return kind.make(tmp_path / "data", NUM_SAMPLES)


def values(batch: Any) -> list[torch.Tensor]:
    """Return copies of a batch's tensors."""
    return [tensor.clone() for tensor in tensors_of(batch)]


def copies(batches: Iterable[Any]) -> list[list[torch.Tensor]]:
    """Return the tensors of each batch, copied as soon as it comes."""
    return [values(batch) for batch in batches]


def same(first: Sequence[Sequence[torch.Tensor]], second: Sequence[Sequence[torch.Tensor]]) -> bool:
    """Return whether two passes gave the same tensors, bit for bit."""
    return [len(one) for one in first] == [len(one) for one in second] and all(
        a.dtype == b.dtype and torch.equal(a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def real_ids(kind: LoaderOf, batch: Any) -> list[int]:
    """Return the ids of the samples of a batch with a mask, its one tensor of bools, that are no repeats."""
    (mask,) = [tensor for tensor in tensors_of(batch) if tensor.dtype is torch.bool]
    return [sample for sample, is_real in zip(kind.ids(batch), mask.tolist(), strict=True) if is_real]


def flat(steps: Iterable[Iterable[int]]) -> list[int]:
    """Return the ids of all steps."""
    return [sample for step in steps for sample in step]


def own_threads() -> list[str]:
    """Return the names of the threads that open passes have."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("datapipe-") and name not in _OF_OTHERS]


def wait_until_no_thread_is_left() -> None:
    """Raise AssertionError if a pass still has threads after ten seconds."""
    deadline = time.monotonic() + 10
    while own_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert own_threads() == []
