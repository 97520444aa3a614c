"""Each sample once over all ranks, the same batches on any number of threads, and memory that is the caller's."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from datapipe.errors import OptionError
from datapipe.kernel.pytree import tensors_of
from datapipe.testing.loaders.kind import NUM_SAMPLES, LoaderOf, Promises, copies, real_ids, same, values


class SamenessSuite(Promises):
    """Which samples come, in which batches, and that nothing changes them."""

    @pytest.mark.promise("loader: Same seed, same batches")
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_threads_and_prefetching_change_nothing(self, kind: LoaderOf, path: Path, shuffle: bool) -> None:
        def passes(**options: Any) -> list[list[torch.Tensor]]:
            loader = kind.open(path, **{"batch_size": 5, "shuffle": shuffle, "seed": 9} | options)
            return copies(loader) + copies(loader)

        expected = passes(num_workers=0)
        for options in ({"num_workers": 1}, {"num_workers": 2, "prefetch_factor": 1}, {"num_workers": 4, "prefetch_factor": 16}):
            assert same(passes(**options), expected)
        if shuffle:
            assert not same(passes(seed=10), expected)

    @pytest.mark.promise("loader: Ranks", "loader: Exactly once")
    @pytest.mark.parametrize("world_size", [1, 2, 3, 5])
    @pytest.mark.parametrize("tail", ["pad", "drop", "mask"])
    def test_ranks_share_an_epoch_in_equal_steps(self, kind: LoaderOf, path: Path, tail: str, world_size: int) -> None:
        options = {"batch_size": 4, "shuffle": True, "seed": 0, "tail": tail, "num_workers": 1}
        loaders = [kind.open(path, ranks=(rank, world_size), **options) for rank in range(world_size)]
        ranks = [list(loader) for loader in loaders]
        sizes = {tuple(len(kind.ids(batch)) for batch in batches) for batches in ranks}
        assert len(sizes) == 1, "all ranks take equally many steps, of equal sizes"
        assert {len(size) for size in sizes} == {len(loader) for loader in loaders}
        seen = [
            sample
            for batches in ranks
            for batch in batches
            for sample in (real_ids(kind, batch) if tail == "mask" else kind.ids(batch))
        ]
        whole = 4 * world_size
        if tail == "drop":
            assert len(seen) == len(set(seen)) == NUM_SAMPLES // whole * whole
        else:
            assert set(seen) == set(range(NUM_SAMPLES))
            assert len(seen) - NUM_SAMPLES == (-NUM_SAMPLES % world_size if tail == "pad" else 0)

    @pytest.mark.promise("loader: Ranks")
    def test_ranks_come_from_the_environment_unless_given(
        self, kind: LoaderOf, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = {"batch_size": 5, "shuffle": True, "seed": 0, "num_workers": 1}
        expected = [copies(kind.open(path, ranks=(rank, 2), **options)) for rank in range(2)]
        early = kind.open(path, **options)
        assert len(early) == 8
        late = kind.open(path, **options)
        monkeypatch.setenv("RANK", "1")
        assert len(kind.open(path, **options)) == 8, "half an environment is none"
        for rank in range(2):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", "2")
            assert same(copies(kind.open(path, **options)), expected[rank])
            assert len(kind.open(path, ranks=(0, 1), **options)) == 8, "arguments win"
        assert (len(early), len(late)) == (8, 4), "they are read at the first use"
        assert [loader.state_dict()["global_batch"] for loader in (early, late)] == [5, 10]

    @pytest.mark.parametrize(
        ("rank", "world_size", "said"), [("x", "2", "not numbers"), ("3", "2", "rank 3 is not among"), ("-1", "2", "not numbers")]
    )
    def test_an_environment_that_makes_no_sense_is_refused(
        self, kind: LoaderOf, path: Path, rank: str, world_size: str, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world_size)
        with pytest.raises(OptionError, match=said):
            kind.open(path)

    @pytest.mark.promise("loader: Memory")
    @pytest.mark.parametrize("num_workers", [0, 3])
    def test_a_batch_is_never_overwritten(self, kind: LoaderOf, path: Path, num_workers: int) -> None:
        loader = kind.open(path, batch_size=3, shuffle=True, num_workers=num_workers)
        kept, copied = [], []
        for _ in range(3):
            for batch in loader:
                kept.append(tensors_of(batch))
                copied.append(values(batch))
        assert same(kept, copied)
        assert len({tensors[0].data_ptr() for tensors in kept}) == len(kept)

    @pytest.mark.promise("loader: Memory")
    def test_a_view_of_a_batch_keeps_it(self, kind: LoaderOf, path: Path) -> None:
        loader = kind.open(path, batch_size=3, num_workers=2)
        views, copied = [], []
        for batch in loader:
            views.append([tensor[1:] for tensor in tensors_of(batch)])
            copied.append([view.clone() for view in views[-1]])
            del batch
        copies(loader)
        assert same(views, copied)

    def test_the_caller_may_write_into_its_batch(self, kind: LoaderOf, path: Path) -> None:
        loader = kind.open(path, batch_size=3, num_workers=2)
        expected, found = copies(loader), []
        loader.set_epoch(0)
        for batch in loader:
            found.append(values(batch))
            for tensor in tensors_of(batch):
                tensor.fill_(-5 if tensor.dtype.is_signed else 1)
        assert same(found, expected)

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_no_batch_is_kept_once_the_caller_has_let_it_go(self, kind: LoaderOf, path: Path, num_workers: int) -> None:
        loader = kind.open(path, batch_size=4, shuffle=True, num_workers=num_workers)
        gone: list[weakref.ref[torch.Tensor]] = []
        for batch in loader:
            assert all(tensor() is None for tensor in gone)
            gone = [weakref.ref(tensor) for tensor in tensors_of(batch)]
            assert gone
            del batch
        assert all(tensor() is None for tensor in gone)
