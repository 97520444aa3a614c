"""Bad samples: raised, skipped or replaced, the same for any number of threads, and always named."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import DatapipeError
from datapipe.kernel.loader import Loader
from datapipe.testing.loaders.kind import NUM_SAMPLES, LoaderOf, Promises, copies, flat, real_ids, same


def _open(kind: LoaderOf, path: Path, **options: Any) -> Loader:
    return kind.open(path, **{"batch_size": 2, "num_workers": 2, "seed": 2} | options)


def _planned(kind: LoaderOf, tmp_path: Path, **options: Any) -> list[list[int]]:
    """The ids of each batch where no sample is bad."""
    clean = kind.make(tmp_path / "clean", NUM_SAMPLES)
    return [kind.ids(batch) for batch in _open(kind, clean, num_workers=0, **options)]


class BadSampleSuite(Promises):
    """A sample that does not decode is named, and costs no other sample."""

    @pytest.fixture
    def bad(self, kind: LoaderOf, path: Path) -> set[int]:
        """The ids of the samples in `path` that are bad."""
        bad = kind.spoil(path)
        assert 0 < len(bad) <= 8, f"LoaderOf.spoil returned {bad}; it is to damage one to eight samples"
        assert bad < set(range(1, NUM_SAMPLES)), f"LoaderOf.spoil returned {bad}; it is to leave sample 0 as it is"
        return bad

    @pytest.mark.promise("loader: Errors")
    @pytest.mark.parametrize("num_workers", [0, 1, 4])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_loop_that_catches_sees_all_other_batches(
        self, kind: LoaderOf, path: Path, bad: set[int], tmp_path: Path, num_workers: int, shuffle: bool
    ) -> None:
        """`try: next(it) except OSError: continue`: batches in order, each error in the place of its batch, named.

        What a shuffled pass loads for several batches may fail all of them.
        """
        planned = _planned(kind, tmp_path, shuffle=shuffle)
        loader = _open(kind, path, shuffle=shuffle, num_workers=num_workers)
        iterator = iter(loader)
        found: list[list[int] | None] = []
        errors: list[OSError] = []
        for step in range(len(planned)):
            try:
                found.append(kind.ids(next(iterator)))
            except OSError as exc:
                found.append(None)
                errors.append(exc)
            assert loader.state_dict()["samples_done"] == min(2 * step + 2, NUM_SAMPLES), "a batch that failed is done"
        assert next(iterator, None) is None
        assert all(isinstance(error, DatapipeError) and str(path) in str(error) for error in errors)
        expected = [None if bad & set(step) else step for step in planned]
        if shuffle:
            expected = [one and other for one, other in zip(found, expected, strict=True)]
        assert found == expected

    def test_a_state_after_a_batch_that_failed_goes_on_behind_it(self, kind: LoaderOf, path: Path, bad: set[int]) -> None:
        loader = _open(kind, path)
        with pytest.raises(DatapipeError):
            copies(loader)
        resumed = _open(kind, path, on_error="skip")
        resumed.load_state_dict(loader.state_dict())
        assert kind.ids(next(iter(resumed)))[:1] == [min(bad) // 2 * 2 + 2]

    @pytest.mark.promise("loader: Bad samples")
    @pytest.mark.parametrize("num_workers", [0, 1, 4])
    def test_skip_makes_shorter_batches_never_fewer_steps(
        self, kind: LoaderOf, path: Path, bad: set[int], tmp_path: Path, num_workers: int
    ) -> None:
        for options in ({"shuffle": True, "batch_size": 5}, {"batch_size": 1}):
            planned = _planned(kind, tmp_path / str(options["batch_size"]), **options)
            loader = _open(kind, path, on_error="skip", num_workers=num_workers, **options)
            found = [kind.ids(batch) for batch in loader]
            assert len(loader) == len(planned)
            assert found == [[sample for sample in step if sample not in bad] for step in planned]

    def test_skipping_keeps_the_place(self, kind: LoaderOf, path: Path, bad: set[int]) -> None:
        """States count planned samples, so resuming does not depend on which were bad."""
        loader = _open(kind, path, on_error="skip", shuffle=True, batch_size=5)
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = loader.state_dict()
        assert state["samples_done"] == 10
        resumed = _open(kind, path, on_error="skip", shuffle=True, batch_size=5, num_workers=0)
        resumed.load_state_dict(state)
        assert same(copies(resumed), copies(iterator))

    def test_the_mask_leaves_out_what_the_batch_does(self, kind: LoaderOf, path: Path, bad: set[int]) -> None:
        """The last batch is filled up with repeats."""
        seen: list[int] = []
        for batch in _open(kind, path, on_error="skip", tail="mask", batch_size=20):
            seen += real_ids(kind, batch)
        assert sorted(seen) == sorted(set(range(NUM_SAMPLES)) - bad)

    @pytest.mark.promise("loader: Bad samples")
    def test_bad_samples_are_reported(self, kind: LoaderOf, path: Path, bad: set[int], caplog: pytest.LogCaptureFixture) -> None:
        loader = _open(kind, path, on_error="skip", shuffle=True)
        assert loader.bad_samples == []
        with caplog.at_level(logging.WARNING):
            copies(loader), copies(loader)
        for epoch in (0, 1):
            reports = [report for report in loader.bad_samples if report.epoch == epoch]
            assert reports
            assert {report.id for report in reports} <= bad
            for report in reports:
                assert str(path) in report.where
                assert report.reason
                assert 0 <= report.step < len(loader)
        assert str(path) in caplog.text

    @pytest.mark.promise("loader: Bad samples")
    def test_replacements_depend_on_seed_and_epoch_alone(self, kind: LoaderOf, path: Path, bad: set[int]) -> None:
        options = {"on_error": "replace", "shuffle": True, "batch_size": 4}
        loader = _open(kind, path, num_workers=0, **options)
        steps = [[kind.ids(batch) for batch in loader] for _ in range(3)]
        for epoch in steps:
            assert [len(step) for step in epoch] == [4] * 9 + [1]
            assert set(flat(epoch)) == set(range(NUM_SAMPLES)) - bad
        assert len({tuple(sorted(flat(epoch))) for epoch in steps}) > 1, "other epochs have other replacements"
        assert {report.id for report in loader.bad_samples} <= bad
        loader.set_epoch(0)
        expected = copies(loader)
        for num_workers in (1, 4):
            assert same(copies(_open(kind, path, num_workers=num_workers, **options)), expected)
        resumed, walking = (_open(kind, path, **options) for _ in range(2))
        next(iter(walking))
        resumed.load_state_dict(walking.state_dict())
        assert same(copies(resumed), expected[1:])
        halves = [_open(kind, path, ranks=(rank, 2), **options | {"batch_size": 2}) for rank in range(2)]
        together = [flat(map(kind.ids, both)) for both in zip(*halves, strict=True)]
        assert [sorted(step) for step in together[:-1]] == [sorted(step) for step in steps[0][:-1]]
