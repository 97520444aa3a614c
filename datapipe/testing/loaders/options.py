"""Arguments that make no sense, the attributes that frameworks read, and what a loader says of itself."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from datapipe.errors import OptionError
from datapipe.kernel.explanation import explain
from datapipe.testing.loaders.kind import NUM_SAMPLES, LoaderOf, Promises, copies, same

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
    ({"batch_size": -3}, "batch_size is -3"),
    ({"batch_size": 2.5}, "batch_size is 2.5; it must be a whole number"),
    ({"batch_size": None}, r"batch_size=None \(no batching\) is not available; pass a number"),
    ({"num_workers": -1}, "num_workers is -1"),
    ({"num_workers": 1.5}, "num_workers is 1.5"),
    ({"prefetch_factor": 0}, "prefetch_factor is 0"),
    ({"timeout": -1}, "timeout is -1.0"),
    ({"timeout": "x"}, "timeout is 'x'; it must be a number"),
    ({"drop_last": True, "tail": "pad"}, "drop_last=True contradicts tail='pad'"),
    ({"tail": "keep"}, "tail is 'keep'; choose one of: pad, drop, mask"),
    ({"on_error": "ignore"}, "on_error is 'ignore'; choose raise, skip or replace"),
    ({"device": "tpu"}, "device is 'tpu'"),
    ({"ranks": (1,)}, r"ranks is \(1,\); pass \(rank, world_size\)"),
    ({"ranks": (2, 2)}, "rank 2 is not among world_size 2"),
    ({"ranks": (0.5, 2)}, r"ranks\[0\] is 0.5; it must be a whole number"),
    ({"seed": 1.5}, "seed is 1.5; it must be a whole number"),
    ({"seed": 2**64}, "it must fit 64 bits"),
    ({"seed": 1, "generator": torch.Generator()}, "seed=1 and generator exclude each other"),
    ({"generator": 4}, "generator is 4; pass a torch.Generator"),
    ({"worker_init_fn": 3}, "worker_init_fn is 3; it must be a function"),
    ({"batch_transform": 3}, "batch_transform is 3; it must be a function"),
]  # fmt: skip


class OptionSuite(Promises):
    """A loader takes torch's arguments, shows them as torch's does, and refuses what it cannot honour."""

    @pytest.mark.parametrize(("options", "said"), REFUSED, ids=[said for _, said in REFUSED])
    def test_what_cannot_be_honoured_is_refused_when_it_is_made(
        self, kind: LoaderOf, path: Path, options: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(OptionError, match=said):
            kind.open(path, **options)

    def test_epochs_and_observers_of_another_type_are_refused(self, kind: LoaderOf, path: Path) -> None:
        loader = kind.open(path)
        for epoch in (-1, 1.5, "a", None):
            with pytest.raises(OptionError, match="epoch is"):
                loader.set_epoch(epoch)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="pass a function"):
            loader.observe(3)  # type: ignore[arg-type]

    def test_it_reads_as_torchs_does(self, kind: LoaderOf, path: Path) -> None:
        """It has the attributes that frameworks look at."""
        generator = torch.Generator().manual_seed(3)
        options = {"batch_size": 5, "num_workers": 2, "drop_last": True, "prefetch_factor": 4, "timeout": 3}
        loader = kind.open(path, shuffle=True, generator=generator, **options)
        assert {name: getattr(loader, name) for name in options} == options
        assert loader.generator is generator
        assert loader.pin_memory is False
        assert loader.persistent_workers is False
        assert len(loader.sampler) == NUM_SAMPLES
        assert len(loader.batch_sampler) == len(loader)  # type: ignore[arg-type]
        assert torch.utils.data.DataLoader not in type(loader).__mro__, "hosts rebuild those"
        with pytest.raises(TypeError, match="not subscriptable"):
            loader[0]

    @pytest.mark.promise("loader: Attributes")
    def test_what_torch_lets_one_assign_takes_effect_with_the_next_pass(self, kind: LoaderOf, path: Path) -> None:
        loader = kind.open(path, batch_size=8, num_workers=0)
        expected, before = copies(loader), threading.active_count()
        loader.set_epoch(0)
        loader.num_workers = 2
        assert loader.num_workers == loader.options.num_workers == 2
        iterator = iter(loader)
        first = copies([next(iterator)])
        assert threading.active_count() >= before + 2
        assert same(first + copies(iterator), expected)
        with pytest.raises(OptionError, match="num_workers is -1"):
            loader.num_workers = -1
        assert loader.num_workers == 2
        for name in ("batch_size", "drop_last", "generator", "seed"):
            with pytest.raises(OptionError, match=f"{name} cannot be set"):
                setattr(loader, name, 3)

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
    def test_a_copy_gives_the_same_batches(self, kind: LoaderOf, path: Path, copied: Callable[[Any], Any]) -> None:
        """As a loader pickles as its arguments; attributes of the caller's own go along."""
        loader: Any = kind.open(path, batch_size=8, shuffle=True, seed=9, tail="mask", num_workers=1)
        loader.of_mine = 4
        again = copied(loader)
        assert len(pickle.dumps(loader)) < 10_000
        assert type(again) is type(loader)
        assert again.of_mine == 4
        assert same(copies(again), copies(loader))

    def test_it_says_what_it_loads_and_from_where(self, kind: LoaderOf, path: Path) -> None:
        loader = kind.open(path, batch_size=2, seed=4)
        lines = explain(loader).lines
        assert [line.split()[0] for line in lines if line.startswith(("data ", "seed "))] == ["data", "seed"]
        assert f"{NUM_SAMPLES} " in repr(loader)
        assert "batch_size=2" in repr(loader)
        assert "\n" not in repr(loader)

    def test_pinning_changes_no_value(self, kind: LoaderOf, path: Path) -> None:
        plain = kind.open(path, batch_size=8, seed=1, num_workers=1)
        assert same(copies(kind.open(path, batch_size=8, seed=1, num_workers=1, pin_memory=True)), copies(plain))
