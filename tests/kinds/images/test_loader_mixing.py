"""Several datasets in one loader, by weight; samples by weight; parts of a dataset."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import NUM_SAMPLES, convert, make_folder
from recipes import CROP, ids_of, make

import datapipe as dp
from datapipe import transforms as T
from datapipe.testing.loaders.kind import copies, same


@pytest.fixture(scope="module")
def sets(folder: Path, uneven: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """37 in a tar, 37 in Parquet, 11 in a folder."""
    root = tmp_path_factory.mktemp("sets")
    return [convert(folder, root / "tar"), convert(uneven, root / "parquet", to="parquet"), make_folder(root / "few", num=11)]


def of_sets(ids: list[list[int]]) -> list[list[int]]:
    """Which of the three sets ids belong to."""
    return [[0 if number < 37 else 1 if number < 74 else 2 for number in batch] for batch in ids]


def test_every_batch_has_its_shares(sets: list[Path]) -> None:
    loader = make(dp.mix(sets, [0.7, 0.2, 0.1], num_samples=200), batch_size=20, shuffle=True, output="dict", seed=2)
    assert len(loader) == 10
    counts: Counter[int] = Counter()
    for _ in range(3):
        for batch in of_sets(ids_of(loader)):
            counts.update(batch)
            assert abs(batch.count(0) - 14) <= 1
            assert abs(batch.count(1) - 4) <= 1
            assert abs(batch.count(2) - 2) <= 1
    assert counts == {0: 420, 1: 120, 2: 60}


def test_images_and_labels_are_those_of_the_sets(sets: list[Path]) -> None:
    """Whatever the container; the first time a sample comes it is cut as it would be alone, but for its id."""
    mixed = dp.mix(sets)
    assert len(mixed) == 85
    loader = make(mixed, batch_size=10, output="dict", transform=[T.CenterCrop(24)])
    expected: dict[int, tuple[torch.Tensor, int]] = {}
    for first, path in zip((0, 37, 74), sets, strict=True):
        for batch in make(path, output="dict", transform=[T.CenterCrop(24)]):
            for number, image, label in zip(batch["id"], batch["image"], batch["label"], strict=True):
                expected[first + int(number)] = image.clone(), int(label)
    seen = 0
    for batch in loader:
        for number, image, label in zip(batch["id"].tolist(), batch["image"], batch["label"].tolist(), strict=True):
            assert label == expected[number][1]
            assert torch.equal(image, expected[number][0])
            seen += 1
    assert seen == 85
    assert mixed.targets == [target for path in sets for target in make(path).dataset.targets]
    assert mixed.classes == ["ant", "bee", "cat"]
    assert torch.equal(mixed[80][0], make(sets[2]).dataset[6][0])


def test_what_comes_again_is_cropped_anew(sets: list[Path]) -> None:
    loader = make(dp.mix([sets[2]], num_samples=33), batch_size=11, output="dict", shuffle=True)
    passes = [dict(zip(batch["id"].tolist(), batch["image"].clone(), strict=True)) for batch in loader]
    assert all(sorted(one) == list(range(11)) for one in passes)
    for number in range(11):
        assert not torch.equal(passes[0][number], passes[1][number])
        assert not torch.equal(passes[1][number], passes[2][number])
    alone = {
        int(n): image.clone()
        for batch in make(sets[2], output="dict")
        for n, image in zip(batch["id"], batch["image"], strict=True)
    }
    assert all(torch.equal(passes[0][number], alone[number]) for number in range(11))


def mixed_rank(sets: list[Path], rank: int, world_size: int, **changes: Any) -> dp.DataLoader:
    mixed = dp.mix(sets, [0.7, 0.2, 0.1], num_samples=150)
    arguments = {"batch_size": 20 // world_size, "shuffle": True, "output": "dict", "seed": 5, "tail": "mask"} | changes
    return make(mixed, ranks=(rank, world_size), **arguments)


def gathered(loaders: list[dp.DataLoader]) -> list[list[int]]:
    """The samples of each step over all ranks, repeats of the tail left out."""
    steps = zip(*(iter(loader) for loader in loaders), strict=True)
    return [[number for batch in step for number in batch["id"][batch["real"]].tolist()] for step in steps]


@pytest.mark.nightly
def test_a_mix_resumes_exactly_from_two_onto_four_ranks(sets: list[Path]) -> None:
    whole = gathered([mixed_rank(sets, rank, 2) for rank in range(2)])
    following = gathered([mixed_rank(sets, rank, 4) for rank in range(4)])
    assert whole == following
    two = [mixed_rank(sets, rank, 2) for rank in range(2)]
    for loader in two:
        steps = iter(loader)
        for _ in range(3):
            next(steps)
    state = two[0].state_dict()
    assert state == two[1].state_dict()
    four = [mixed_rank(sets, rank, 4) for rank in range(4)]
    for loader in four:
        loader.load_state_dict(state)
    assert gathered(four) == whole[3:]
    second_epoch = gathered(four)
    for loader in two:
        list(loader)
    assert second_epoch != whole
    for other in (dp.mix(sets, [1, 1, 1]), dp.mix(sets, [0.7, 0.2, 0.1], num_samples=20)):
        with pytest.raises(dp.errors.StateError, match=r"order='mixed .*pass the same .*weights or number of samples"):
            make(other, shuffle=True, batch_size=20, seed=5, tail="mask").load_state_dict(state)


def test_mixes_pickle_and_prefetch_alike(sets: list[Path]) -> None:
    loader = make(dp.mix(sets, [1, 1, 2]), batch_size=10, shuffle=True)
    expected = copies(loader)
    assert same(copies(pickle.loads(pickle.dumps(make(dp.mix(sets, [1, 1, 2]), batch_size=10, shuffle=True)))), expected)
    assert same(copies(make(dp.mix(sets, [1, 1, 2]), batch_size=10, shuffle=True, num_workers=0)), expected)


@pytest.mark.parametrize(
    ("weights", "num_samples", "problem"),
    [([1, 2], None, "one for each of the 3 datasets"), ([1, -1, 1], None, "negative"), (None, 0, "at least 1")],
)
def test_mixes_that_are_refused(sets: list[Path], weights: list[float] | None, num_samples: int | None, problem: str) -> None:
    with pytest.raises(dp.errors.OptionError, match=problem):
        dp.mix(sets, weights, num_samples=num_samples)


def test_mixes_of_mixes_and_of_nothing_are_refused(sets: list[Path]) -> None:
    with pytest.raises(dp.errors.OptionError, match="pass all datasets to one mix"):
        dp.mix([dp.mix(sets), sets[0]])
    for nothing in ([], "tar", [3], [make(sets[0])]):
        with pytest.raises(dp.errors.OptionError, match=r"mix\(|dataset is 3|dataset is <datapipe.DataLoader"):
            dp.mix(nothing)  # type: ignore[arg-type]
    for part in (
        lambda: dp.mix(sets).take(20),
        lambda: dp.mix(sets).folds(3),
        lambda: make(sets[0]).dataset.repeat(2).select([0]),
    ):
        with pytest.raises(dp.errors.OptionError, match="select from each dataset first"):
            part()
    with pytest.raises(dp.errors.OptionError, match="both say how often"):
        make(dp.mix(sets), sampler=dp.WeightedSampler(np.ones(85)))


# -- weights of samples ---------------------------------------------------------------------------


def test_a_weighted_sampler_draws_by_weight_over_all_ranks(folder: Path) -> None:
    weights = np.zeros(NUM_SAMPLES)
    weights[[3, 30]] = 1, 3
    arguments: dict[str, Any] = {"batch_size": 50, "output": "dict", "seed": 1}
    drawn = [n for batch in ids_of(make(folder, sampler=dp.WeightedSampler(weights, 400), **arguments)) for n in batch]
    assert set(drawn) == {3, 30}
    assert abs(drawn.count(30) / 400 - 0.75) < 0.08
    ranks = [
        make(folder, sampler=dp.WeightedSampler(weights, 400), ranks=(rank, 2), **(arguments | {"batch_size": 25}))
        for rank in range(2)
    ]
    assert [n for step in zip(*map(ids_of, ranks), strict=True) for part in step for n in part] == drawn


def test_new_weights_count_from_the_next_pass_on(folder: Path) -> None:
    sampler = dp.WeightedSampler(np.ones(NUM_SAMPLES))
    loader = make(folder, sampler=sampler, output="dict", transform=CROP)
    steps = iter(loader)
    first = next(steps)["id"].tolist()
    only = np.zeros(NUM_SAMPLES)
    only[7] = 1
    loader.sampler.update_weights(only)  # type: ignore[union-attr]
    state = loader.state_dict()
    rest = [batch["id"].tolist() for batch in steps]
    fresh = make(folder, sampler=dp.WeightedSampler(np.ones(NUM_SAMPLES)), output="dict")
    assert [first, *rest] == ids_of(fresh)
    assert {n for batch in ids_of(loader) for n in batch} == {7}
    again = make(folder, sampler=dp.WeightedSampler(np.ones(NUM_SAMPLES)), output="dict")
    again.load_state_dict(state)
    assert ids_of(again) == rest
    with pytest.raises(dp.errors.StateError, match="pass the same shuffle, sampler, weights"):
        make(folder, sampler=dp.WeightedSampler(only), output="dict").load_state_dict(state)
    with pytest.raises(dp.errors.OptionError, match="one for each of the 37"):
        sampler.update_weights([1.0])
    with pytest.raises(dp.errors.OptionError, match="37 samples, and the sampler 3 weights"):
        make(folder, sampler=dp.WeightedSampler([1, 2, 3]))


# -- parts ----------------------------------------------------------------------------------------


def test_take_repeat_and_folds(folder: Path) -> None:
    dataset = make(folder).dataset
    assert dataset.take(5).targets == dataset.targets[:5]
    assert len(dataset.take(100)) == NUM_SAMPLES
    tripled = make(dataset.repeat(3), output="dict", shuffle=True, batch_size=NUM_SAMPLES)
    assert [sorted(batch) for batch in ids_of(tripled)] == [list(range(NUM_SAMPLES))] * 3
    tenth = make(dataset.repeat(0.1), output="dict", shuffle=True, batch_size=4)
    seen = [n for _ in range(9) for batch in ids_of(tenth) for n in batch]
    assert len(set(seen)) == len(seen) == 36
    held_out = [validation for _, validation in dataset.folds(4, seed=1)]
    ids = [[n for batch in ids_of(make(part, output="dict")) for n in batch] for part in held_out]
    assert sorted(sum(ids, [])) == list(range(NUM_SAMPLES))  # noqa: RUF017
    assert {len(part) for part in ids} == {9, 10}
    train, validation = dataset.folds(4, seed=1)[2]
    assert len(train) + len(validation) == NUM_SAMPLES
    assert set(train.index.ids(np.arange(len(train)))).isdisjoint(validation.index.ids(np.arange(len(validation))))
    with pytest.raises(dp.errors.OptionError, match="pass at least 2"):
        dataset.folds(1)
    with pytest.raises(dp.errors.OptionError, match="an epoch of no samples"):
        dataset.repeat(0.001)
    for wrong in (
        lambda: dataset.take(-1), lambda: dataset.take(2.5), lambda: dataset.repeat("a"), lambda: dataset.repeat(float("inf")),
        lambda: dataset.folds("a"), lambda: dataset.folds(2, seed="a"), lambda: dataset.select(5), lambda: dataset.select(["a"]),
        lambda: dp.mix([folder], num_samples=1e6), lambda: dp.mix([folder, folder], [1, 1], num_samples=2**32),
        lambda: dp.WeightedSampler([1, 2], 2**64 + 1), lambda: make(folder).set_epoch(2**31),
        lambda: dp.WeightedSampler(5), lambda: dataset.take(1e300), lambda: dataset.repeat(1e300), lambda: dataset.folds(2**70),
        lambda: dp.WeightedSampler([1, 2], 5.5),
    ):  # fmt: skip
        with pytest.raises(dp.errors.OptionError):
            wrong()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "mask", [torch.arange(NUM_SAMPLES) > 3, np.arange(NUM_SAMPLES) > 3, [True, False]], ids=["torch", "numpy", "list"]
)
def test_a_mask_is_not_taken_for_positions(folder: Path, mask: Any) -> None:
    with pytest.raises(dp.errors.OptionError, match=r"for a mask pass numpy\.flatnonzero"):
        make(folder).dataset.select(mask)


@pytest.mark.parametrize("sampled", [False, True])
def test_each_place_of_a_repeated_sample_is_cropped_anew(folder: Path, sampled: bool) -> None:
    dataset = make(folder).dataset.select([5, 0, 0, 0, 3, 0])
    loader = make(dataset, transform=[T.RandomResizedCrop(16)], batch_size=6, sampler=[1, 1, 2, 3, 5, 5] if sampled else None)
    alone = make(make(folder).dataset.select([0]), transform=[T.RandomResizedCrop(16)], batch_size=1)
    (images, _), (plain, _) = next(iter(loader)), next(iter(alone))
    of_zero = images if sampled else images[[1, 2, 3, 5]]
    assert torch.equal(of_zero[0], plain[0])
    assert len({image.numpy().tobytes() for image in of_zero}) == len(of_zero)


def test_mixing_other_classes_warns(folder: Path, tmp_path: Path) -> None:
    other = make_folder(tmp_path / "other", num=4)
    (other / "ant").rename(other / "wasp")
    with pytest.warns(UserWarning, match="different classes .*wasp"):
        mixed = dp.mix([folder, other])
    with pytest.raises(AttributeError, match="they differ between its parts"):
        _ = mixed.classes
