"""MixUp and CutMix: pairs, labels, and the distribution of what they draw."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import datapipe.transforms as T
from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms.pixels.mix import symmetric_beta

BATCH = torch.rand(5, 3, 12, 16, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([2, 0, 1, 2, 2])


def batch_draws(step: int) -> Draws:
    return Draws(9, 1, np.array([step]))


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.8, 1.0, 4.0])
def test_beta_has_its_moments(alpha: float) -> None:
    rng = np.random.default_rng(int(alpha * 100))
    values = np.array([symmetric_beta(alpha, iter(rng.random(400))) for _ in range(6000)])
    assert ((values >= 0) & (values <= 1)).all()
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(values.mean() - 0.5) < 5 * math.sqrt(variance / len(values))
    assert values.var() == pytest.approx(variance, rel=0.06)
    # The fourth central moment of a symmetric beta distribution.
    fourth = 3 * variance**2 * (2 * alpha + 1) / (2 * alpha + 3)
    assert ((values - 0.5) ** 4).mean() == pytest.approx(fourth, rel=0.1)


def test_mixup_blends_each_sample_with_the_one_before() -> None:
    op = T.MixUp(alpha=0.4, num_classes=3)
    params = op.draw(batch_draws(3), 6, (12, 16))
    lam = float(params["lam"][0])
    images, labels = op.apply(BATCH.clone(), LABELS, params)
    for row in range(5):
        torch.testing.assert_close(images[row], lam * BATCH[row] + (1 - lam) * BATCH[row - 1])
        expected = torch.zeros(3)
        expected[LABELS[row]] += lam
        expected[LABELS[row - 1]] += 1 - lam
        torch.testing.assert_close(labels[row], expected)


def test_cutmix_pastes_a_box_and_counts_its_area() -> None:
    op = T.CutMix(num_classes=3)
    sizes = set()
    for step in range(40):
        params = op.draw(batch_draws(step), 0, (12, 16))
        top, left, height, width = params["box"][0].tolist()
        assert 0 <= top <= top + height <= 12
        assert 0 <= left <= left + width <= 16
        sizes.add((height, width))
        images, labels = op.apply(BATCH.clone(), LABELS, params)
        inside = torch.zeros(12, 16, dtype=torch.bool)
        inside[top : top + height, left : left + width] = True
        expected = torch.where(inside, BATCH.roll(1, 0), BATCH)
        assert torch.equal(images, expected)
        torch.testing.assert_close(labels.sum(1), torch.ones(5))
        lam = 1 - height * width / (12 * 16)
        assert float(params["lam"][0]) == pytest.approx(lam)
        assert float(labels[1, 0]) == pytest.approx(lam, abs=1e-6)
    assert len(sizes) > 10


@pytest.mark.parametrize("name", ["MixUp", "CutMix"])
def test_a_batch_draws_once_by_its_key(name: str) -> None:
    op: Any = getattr(T, name)(num_classes=3)
    lams = [float(op.draw(batch_draws(step), 2, (224, 224))["lam"][0]) for step in range(30)]
    assert len(set(lams)) > 25
    assert lams == [float(op.draw(batch_draws(step), 2, (224, 224))["lam"][0]) for step in range(30)]
    assert lams[0] != float(op.draw(batch_draws(0), 3, (224, 224))["lam"][0])


def test_labels_that_are_mixed_already_are_mixed_again() -> None:
    op = T.MixUp(num_classes=3)
    params = op.draw(batch_draws(1), 0, (12, 16))
    lam = float(params["lam"][0])
    once = op.apply(BATCH.clone(), LABELS, params)[1]
    twice = op.apply(BATCH.clone(), once, params)[1]
    torch.testing.assert_close(twice, lam * once + (1 - lam) * once.roll(1, 0))


def test_labels_outside_the_classes_are_named() -> None:
    op = T.CutMix(num_classes=2)
    with pytest.raises(OptionError, match=r"labels run from 0 to 2; with num_classes=2 .* between 0 and 1"):
        op.apply(BATCH.clone(), LABELS, op.draw(batch_draws(0), 0, (12, 16)))


@pytest.mark.parametrize("name", ["MixUp", "CutMix"])
def test_refusals(name: str) -> None:
    make: Any = getattr(T, name)
    with pytest.raises(OptionError, match=rf"{name}: alpha is 0; .*greater than 0"):
        make(alpha=0, num_classes=3)
    with pytest.raises(OptionError, match=rf"{name}: num_classes is None; .*how many classes"):
        make()
    assert eval(repr(make(alpha=0.3, num_classes=3)), vars(T)) == make(alpha=0.3, num_classes=3)
