"""Batches of bounded size: each sample once an epoch, beside others of its length, however many ranks there are."""

from __future__ import annotations

import numpy as np
import pytest

from datapipe.order.length_batches import LengthBatches, by_length


def lengths_of(num: int, seed: int = 0) -> np.ndarray:
    return np.clip(np.random.default_rng(seed).lognormal(2.3, 0.6, num) * 16_000, 8_000, 560_000).astype(np.int64)


@pytest.mark.parametrize("num", [1, 2, 37, 1000, 70_000])
@pytest.mark.parametrize("seed", [None, 3])
def test_each_sample_comes_once_and_no_batch_is_too_large(num: int, seed: int | None) -> None:
    lengths, limit = lengths_of(num), 9_600_000
    batches = LengthBatches.of(lengths, limit)
    numbers = np.random.default_rng(1).permutation(len(batches))
    for epoch in range(2):
        samples, of_batch = batches.samples_of(numbers, seed=seed, epoch=epoch)
        assert sorted(samples) == list(range(num))
        assert (np.diff(of_batch) >= 0).all()
        sizes = np.bincount(of_batch, minlength=len(batches))
        longest = np.zeros(len(batches), np.int64)
        np.maximum.at(longest, of_batch, lengths[samples])
        assert (sizes * longest <= limit).all()
        assert sizes.min() >= 1


def test_little_is_padding_and_batches_are_full() -> None:
    lengths, limit = lengths_of(70_000), 9_600_000
    batches = LengthBatches.of(lengths, limit)
    samples, of_batch = batches.samples_of(np.arange(len(batches)), seed=0, epoch=0)
    longest = np.zeros(len(batches), np.int64)
    np.maximum.at(longest, of_batch, lengths[samples])
    padded = (np.bincount(of_batch) * longest).sum()
    assert lengths.sum() / padded > 0.96
    assert len(batches) < 1.06 * lengths.sum() / limit


def test_a_batch_has_others_in_each_epoch_and_the_same_wherever_it_is_asked_for() -> None:
    batches = LengthBatches.of(lengths_of(5000), 4_800_000)
    one = np.array([len(batches) // 2])
    first, _ = batches.samples_of(one, seed=0, epoch=0)
    assert set(first) != set(batches.samples_of(one, seed=0, epoch=1)[0])
    assert set(first) != set(batches.samples_of(one, seed=1, epoch=0)[0])
    several, of_batch = batches.samples_of(np.array([0, one[0], 3]), seed=0, epoch=0)
    assert several[of_batch == 1].tolist() == first.tolist()


def test_what_is_longer_than_the_limit_is_alone() -> None:
    batches = LengthBatches.of(np.array([10, 300, 20, 10]), 100)
    samples, of_batch = batches.samples_of(np.arange(len(batches)), seed=None, epoch=0)
    (number,) = of_batch[samples == 1]
    assert (of_batch == number).sum() == 1


def test_samples_are_sorted_to_within_a_unit() -> None:
    lengths = lengths_of(10_000)
    ordered = lengths[by_length(lengths)]
    assert (np.maximum.accumulate(ordered) - ordered).max() <= lengths.max() / 65_535 + 1
    assert by_length(np.zeros(0, np.int64)).tolist() == []
