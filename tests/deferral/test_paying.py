"""Batches made without recording where that is cheaper: the choice, and that no value depends on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deferral_datasets as data
import numpy as np
import pytest
import torch
from deferral_datasets import F, Images, T, deferral
from PIL import Image
from torch.utils.data import DataLoader

import datapipe as dp
from datapipe.deferral.paying import MIN_SAMPLES, MOST_SAMPLES, TRIED_AGAIN, Cost, Paying, paying_of
from datapipe.deferral.requests import BatchRequest

NUM, BATCH = 16, 8
PASSES = 3 * MIN_SAMPLES // NUM + 2  # enough to know both ways


def asked(paying: Paying, num: int) -> list[bool]:
    """Which of the next batches are recorded."""
    keys = [(BatchRequest([0], None), place) for place in range(num)]
    return [key.is_recorded for key, _ in paying.marked(keys)]


def known(*, recorded: float, plain: float, **facts: Any) -> Paying:
    """Costs of both ways, in seconds per sample."""
    paying = Paying()
    for _ in range(2):
        paying.take(Cost(False, True, MIN_SAMPLES // 2, recorded * MIN_SAMPLES / 2, **facts))
        paying.take(Cost(True, True, MIN_SAMPLES // 2, plain * MIN_SAMPLES / 2))
    return paying


def test_every_batch_is_recorded_until_one_has_come() -> None:
    assert asked(Paying(), 50) == [True] * 50


def test_then_both_ways_are_tried_in_turn() -> None:
    paying = Paying()
    assert asked(paying, 4) == [True] * 4
    paying.take(Cost(False, True, 8))
    assert asked(paying, 8) == [False] * 4 + [True, False, True, False]


def test_both_go_on_while_the_costs_differ_by_less_than_their_errors() -> None:
    paying = Paying()
    for seconds in (0.001, 0.003) * 4:
        paying.take(Cost(False, True, MIN_SAMPLES // 4, seconds * MIN_SAMPLES))
        paying.take(Cost(True, True, MIN_SAMPLES // 4, 1.01 * seconds * MIN_SAMPLES))
    assert sum(asked(paying, 100)) == 50
    assert "not decided yet" in paying.measured("Own")
    for seconds in (0.001, 0.003):
        paying.take(Cost(False, True, MOST_SAMPLES // 2, seconds * MOST_SAMPLES))
        paying.take(Cost(True, True, MOST_SAMPLES // 2, 1.01 * seconds * MOST_SAMPLES))
    assert sum(asked(paying, 100)) >= 98


@pytest.mark.parametrize("pays", [True, False])
def test_the_cheaper_way_is_taken_and_the_other_one_tried_again(pays: bool) -> None:
    paying = known(recorded=0.001 if pays else 0.002, plain=0.0015)
    recorded = asked(paying, 10 * TRIED_AGAIN)
    assert sum(recorded) == (10 * TRIED_AGAIN - 10 if pays else 10)


def test_a_cost_may_change() -> None:
    paying = known(recorded=0.001, plain=0.002)
    paying.take(Cost(False, True, 10 * MIN_SAMPLES, 10 * MIN_SAMPLES * 0.003))
    paying.take(Cost(False, True, 10 * MIN_SAMPLES, 10 * MIN_SAMPLES * 0.003))
    for _ in range(4):
        paying.take(Cost(True, True, MIN_SAMPLES, MIN_SAMPLES * 0.002))
    assert sum(asked(paying, TRIED_AGAIN)) == 1


def test_what_a_process_needs_once_counts_by_the_samples_that_it_makes() -> None:
    paying = Paying()
    paying.begin(1000, 2)
    paying.take(Cost(False, True, 8, setup=5.0))  # in the first pass, of which later processes take over what was found
    paying.begin(100, 2)
    for _ in range(2):
        paying.take(Cost(False, True, MIN_SAMPLES, 0.001 * MIN_SAMPLES, setup=0.1))
        paying.take(Cost(True, True, MIN_SAMPLES, 0.002 * MIN_SAMPLES))
    assert sum(asked(paying, TRIED_AGAIN)) == 1, "50 samples share 0.1 s"
    paying.begin(1000, 2)
    assert sum(asked(paying, TRIED_AGAIN)) == TRIED_AGAIN - 1
    paying.begin(100, 0)
    assert sum(asked(paying, TRIED_AGAIN)) == TRIED_AGAIN - 1


def test_where_there_is_nothing_to_record_the_users_code_goes_on_alone() -> None:
    paying = Paying()
    paying.take(Cost(False, True, 8, has_images=False))
    assert sum(asked(paying, TRIED_AGAIN)) == 1
    paying.take(Cost(False, True, 8))  # there are images after all
    assert sum(asked(paying, 200)) > 50


def test_costs_of_a_process_that_warms_up_do_not_count() -> None:
    paying = known(recorded=0.001, plain=0.002)
    paying.take(Cost(False, True, 1000, None))
    assert paying.recorded.mean == pytest.approx(0.001)
    assert (paying.recorded.num_samples, paying.recorded.num_measured) == (1000 + MIN_SAMPLES, MIN_SAMPLES)


def test_loaders_of_a_dataset_share_what_is_known() -> None:
    one, other = data.Images([], None), data.Images([], None)
    assert paying_of(one, as_given) is paying_of(one, as_given)
    assert paying_of(one, as_given) is not paying_of(other, as_given)
    assert paying_of(one, as_given) is not paying_of(one, resized_array)
    assert paying_of([], as_given) is not paying_of([], as_given), "a list cannot be known again"


@pytest.mark.parametrize("is_plain", [True, False])
def test_what_is_not_exact_once_is_recorded_for_ever(is_plain: bool) -> None:
    paying = known(recorded=0.002, plain=0.001)
    paying.take(Cost(is_plain, False, 8, 0.1))
    paying.take(Cost(False, True, 1000, 5.0))
    assert asked(paying, 40) == [True] * 40
    assert "would give other pixels" in paying.measured("Own")


def test_what_was_measured_is_told_in_one_line() -> None:
    assert Paying().measured("Own") == "nothing yet: ask again once batches have come"
    assert known(recorded=0.002, plain=0.001).measured("Own") == (
        "2 ms of CPU per sample with deferral, 1 ms by Own's code alone (64 and 64 samples): deferral does not pay; its code ran "
        "alone, as in torch's loader, for 64 of 128 samples, with the same pixels"
    )
    assert "1 ms of CPU per sample with deferral, 2 ms by Own's" in known(recorded=0.001, plain=0.002).measured("Own")
    undecided = Paying()
    undecided.take(Cost(False, True, 8, 0.1))
    assert undecided.measured("Own").endswith("in turn (8 and 0 samples measured)")
    nothing = Paying()
    nothing.take(Cost(False, True, 8, 0.1, has_images=False))
    nothing.take(Cost(True, True, 24, 0.1, has_images=False))
    assert nothing.measured("Own").startswith("Own gave nothing to defer, so its code ran alone")
    assert nothing.measured("Own").endswith("for 24 of 32 samples")
    changed = Paying()
    changed.take(Cost(False, False, 8, 0.016))
    assert changed.measured("Own").startswith("2 ms of CPU per sample; Own's code alone would give other pixels")


# -- loaders ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return data.make_files(tmp_path_factory.mktemp("photos"), num=NUM)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what the two ways cost, in seconds per sample, wherever a batch is made."""
    take = Paying.take

    def set_costs(*, recorded: float, plain: float) -> None:
        def learn(self: Paying, cost: Cost) -> None:
            take(self, cost._replace(seconds=cost.num_samples * (plain if cost.is_plain else recorded), has_images=True))

        monkeypatch.setattr(Paying, "take", learn)

    return set_costs


def load(dataset: Any, *, defer: bool = True, **options: Any) -> Any:
    with deferral(defer):
        return dp.from_torch(DataLoader(dataset, batch_size=BATCH, shuffle=True, **options), seed=3, device="cpu")


def passes(loader: Any, num: int = PASSES) -> list[Any]:
    return [batch for _ in range(num) for batch in loader]


def assert_equal(ours: list[Any], theirs: list[Any]) -> None:
    pairs = zip(ours, theirs, strict=True)
    assert all(torch.equal(found, expected) for one, other in pairs for found, expected in zip(one, other, strict=True))


def as_given(samples: list[Any]) -> Any:
    return samples


def resized_array(image: Any) -> Any:
    return np.array(image.resize((40, 30)))


RESIZED = T.Compose([T.Resize((30, 40)), T.ToTensor()])


def test_the_users_code_goes_on_alone_where_recording_costs_more(paths: list[str], costs: Any) -> None:
    costs(recorded=0.002, plain=0.001)
    loader = load(Images(paths, resized_array))
    found = passes(loader)
    paying = loader._tally.paying
    assert paying.plain.num_samples > MIN_SAMPLES
    expected = passes(load(Images(paths, resized_array), defer=False))
    assert all(torch.equal(one, other) for a, b in zip(found, expected, strict=True) for one, other in zip(a, b, strict=True))
    lines = loader.explanation
    assert any("measured  2 ms of CPU per sample with deferral, 1 ms by Images's code alone" in line for line in lines)
    assert not any(line.startswith("backend") for line in lines), "nothing is decoded by us"
    assert "decoder   that of Images's code, in the training process, which runs alone" in lines


@pytest.mark.nightly
def test_what_was_learned_is_known_to_fresh_workers(paths: list[str], costs: Any) -> None:
    costs(recorded=0.002, plain=0.001)
    loader = load(Images(paths, resized_array), num_workers=2, multiprocessing_context="fork")
    passes(loader)
    before = loader._tally.paying.plain.num_samples
    passes(loader, 1)
    assert loader._tally.paying.plain.num_samples >= before + NUM - BATCH


@pytest.mark.nightly
def test_recording_goes_on_where_it_pays(paths: list[str], costs: Any) -> None:
    costs(recorded=0.001, plain=0.002)
    loader = load(Images(paths, resized_array))
    passes(loader, 4 * PASSES)
    paying = loader._tally.paying
    assert paying.recorded.num_samples > 2 * paying.plain.num_samples > 0


@pytest.mark.parametrize("kind", ["tensors", "images"])
def test_resized_images_are_recorded_whatever_it_costs(paths: list[str], costs: Any, kind: str) -> None:
    """As their pixels would depend on what was measured."""
    costs(recorded=1.0, plain=0.001)
    if kind == "tensors":
        loader = load(Images(paths, RESIZED))
    else:
        loader = load(Images(paths, T.Resize((30, 40))), collate_fn=as_given)
    passes(loader)
    assert loader._tally.paying.plain.num_asked == 0


def looked_at(image: Any) -> Any:
    """Resized after all its pixels were needed, which Pillow does either way."""
    return RESIZED(Image.fromarray(np.asarray(image)))


def looked_at_in_place(image: Any) -> Any:
    image.getpixel((0, 0))
    return RESIZED(image)


@pytest.mark.parametrize("make", [looked_at, looked_at_in_place])
def test_what_is_resized_after_it_was_looked_at_may_be_left_out(paths: list[str], costs: Any, make: Any) -> None:
    costs(recorded=0.002, plain=0.001)
    loader = load(Images(paths, make))
    assert_equal(passes(loader), passes(load(Images(paths, make), defer=False)))
    assert loader._tally.paying.plain.num_samples > MIN_SAMPLES


@pytest.mark.daily(2)
@pytest.mark.parametrize("after", ["tensors", "images", "made a tensor before", "loaded before", "blurred"])
def test_a_batch_that_turns_out_to_resize_is_made_again(paths: list[str], costs: Any, after: str) -> None:
    """So that it has the values that it would have if recording were cheap."""
    transform = {
        "tensors": RESIZED,
        "images": T.Resize((30, 40)),
        "made a tensor before": lambda image: (F.to_tensor(image), RESIZED(image))[1],
        "loaded before": lambda image: (image.load(), RESIZED(image))[1],
        "blurred": lambda image: F.to_tensor(F.gaussian_blur(image.crop((0, 0, 40, 30)), [3, 3], [0.8, 0.8])),
    }[after]
    found, num_plain = [], []
    for recorded, plain in ((0.002, 0.001), (0.001, 0.002)):
        costs(recorded=recorded, plain=plain)
        dataset = Images(paths, resized_array)
        loader = load(dataset, collate_fn=as_given)
        passes(loader)
        num_plain.append(loader._tally.paying.plain.num_samples)
        dataset.make = transform
        found.append([np.asarray(image) for batch in passes(loader, 2) for image, _ in batch])
        assert loader._tally.paying.plain.num_samples == num_plain[-1]
        assert asked(loader._tally.paying, 40) == [True] * 40
    assert num_plain[0] > num_plain[1] > 0
    assert len(found[0]) == 2 * NUM
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_an_image_that_is_no_jpeg_is_the_same_either_way(tmp_path: Path, costs: Any) -> None:
    costs(recorded=0.002, plain=0.001)
    pixels = np.random.default_rng(0).integers(0, 256, (NUM, 30, 40, 3), np.uint8)
    files = []
    for number, image in enumerate(pixels):
        files.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(image).save(files[-1])
    cut = T.Compose([T.CenterCrop(16), T.ToTensor()])
    loader = load(Images(files, cut))
    assert_equal(passes(loader), passes(load(Images(files, cut), defer=False)))
    assert loader._tally.paying.plain.num_samples > 0
