"""Batches are equal bit for bit for any number of workers, threads or processes, before and after a resume."""

from __future__ import annotations

import random
import threading
from typing import Any

import deferral_datasets as data
import numpy as np
import pytest
import torch
from deferral_datasets import MEAN, STD, F, Images, T, loaded, v2
from fixtures import mostly_nightly
from PIL import Image, ImageFilter, ImageOps

from datapipe.deferral.dataset import DeferringDataset
from datapipe.deferral.requests import BatchRequest

NUM = 24
BICUBIC = T.InterpolationMode.BICUBIC


class Blur:
    """As in Barlow Twins and DINO."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, image: Any) -> Any:
        if random.random() < self.share:
            return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))
        return image


class Solarise:
    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, image: Any) -> Any:
        return ImageOps.solarize(image) if random.random() < self.share else image


def view(size: int, blur: float, solarise: float) -> Any:
    return T.Compose([
        T.RandomResizedCrop(size, interpolation=BICUBIC),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
        T.RandomGrayscale(0.2),
        Blur(blur),
        Solarise(solarise),
        T.ToTensor(),
        T.Normalize(MEAN, STD),
    ])  # fmt: skip


class Views:
    """Several views of an image."""

    def __init__(self, *views: Any) -> None:
        self.views = views

    def __call__(self, image: Any) -> Any:
        return [one(image) for one in self.views]


def in_scales(image: Any) -> Any:
    made = []
    order, *factors = T.ColorJitter.get_params((0.8, 1.2), (0.8, 1.2), (0.8, 1.2), (-0.1, 0.1))
    for size in (48, 24, 12):
        image = F.resize(image, [size, 2 * size], T.InterpolationMode.LANCZOS if size < 48 else T.InterpolationMode.BILINEAR)
        bright = F.adjust_hue(F.adjust_brightness(image, factors[0]), factors[3])
        made += [F.to_tensor(image), F.to_tensor(bright if order[0] < 2 else image)]
    return made


def unseen_at_times(image: Any) -> Any:
    tensor = F.to_tensor(T.RandomResizedCrop(32)(image))
    if torch.rand(()) < 0.5:
        with torch._C.DisableTorchFunction():
            return tensor * 2
    return tensor


def looked_at_at_times(image: Any) -> Any:
    small = T.RandomResizedCrop(32)(image)
    if random.random() < 0.5:
        small.putpixel((0, 0), (1, 2, 3))
    return F.to_tensor(small)


TRANSFORMS: dict[str, Any] = {
    "Barlow Twins": Views(view(48, 1.0, 0.0), view(48, 0.1, 0.2)),
    "multi-crop": Views(view(48, 0.5, 0.2), *[view(24, 0.5, 0.0)] * 4),
    "strong jitter": T.Compose([T.RandomResizedCrop(32), T.ColorJitter(0.9, 0.9, 0.9, 0.5), T.ToTensor()]),
    "RandAugment": T.Compose([T.RandomResizedCrop(32), T.RandAugment(3, 12), T.ToTensor()]),
    "in scales": in_scales,
    "v2": v2.Compose([v2.ToImage(), v2.RandomResizedCrop(32), v2.ColorJitter(0.3, 0.3), v2.ToDtype(torch.float32, scale=True)]),
    "unseen at times": unseen_at_times,
    "looked at at times": looked_at_at_times,
    "erasing": T.Compose([data.TRAIN, T.RandomErasing(0.5)]),
}


class Mixed(Images):
    """Photographs of several kinds: subsamplings, a progressive one, a grey one, and noise, which resizes amplify most."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("photos")
    found = [data.make_files(root / str(kind), num=NUM // 3, subsampling=kind) for kind in range(3)]
    mixed = [path for three in zip(*found, strict=True) for path in three]
    Image.open(mixed[4]).convert("L").save(mixed[4])
    Image.open(mixed[5]).save(mixed[5], progressive=True)
    for number in (0, 9, 14):
        noise = np.random.default_rng(number).integers(0, 256, (90, 110, 3), np.uint8)
        Image.fromarray(noise).save(mixed[number], quality=95)
    return mixed


def flat(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    return [tensor for part in batch for tensor in flat(part)]


def batches(loader: Any) -> list[list[torch.Tensor]]:
    return [[tensor.clone() for tensor in flat(batch)] for batch in loader]


def same(ours: list[list[torch.Tensor]], theirs: list[list[torch.Tensor]]) -> bool:
    pairs = [pair for these, those in zip(ours, theirs, strict=True) for pair in zip(these, those, strict=True)]
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_batches_are_the_same_for_any_number_of_workers(paths: list[str], name: str) -> None:
    def make(num_workers: int, **options: Any) -> Any:
        return loaded(Mixed(paths, TRANSFORMS[name]), batch_size=3, shuffle=True, num_workers=num_workers, **options)

    alone = make(0)
    epochs = [batches(alone), batches(alone)]
    for num_workers in (1, 2, 3, 5):
        found = make(num_workers, persistent_workers=num_workers == 2)
        assert same(batches(found), epochs[0])
        if num_workers < 3:
            assert same(batches(found), epochs[1])


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", mostly_nightly(["Barlow Twins", "unseen at times", "looked at at times"], "unseen at times"))
@pytest.mark.parametrize(("before", "after"), [(0, 3), (2, 0), (3, 2)])
def test_batches_are_the_same_after_a_resume(paths: list[str], name: str, before: int, after: int) -> None:
    def make(num_workers: int) -> Any:
        return loaded(Mixed(paths, TRANSFORMS[name]), batch_size=3, shuffle=True, num_workers=num_workers)

    expected = batches(make(0))
    loader = make(before)
    iterator = iter(loader)
    first = [[tensor.clone() for tensor in flat(next(iterator))] for _ in range(3)]
    state = loader.state_dict()
    again = make(after)
    again.load_state_dict(state)
    assert same(first + batches(again), expected)


@pytest.mark.nightly
def test_batches_are_the_same_where_workers_are_spawned(paths: list[str]) -> None:
    dataset = Mixed(paths[:9], TRANSFORMS["Barlow Twins"])
    spawned = loaded(dataset, batch_size=3, num_workers=2, multiprocessing_context="spawn")
    assert same(batches(spawned), batches(loaded(dataset, batch_size=3)))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_samples_are_the_same_in_any_order_and_any_batches(paths: list[str], name: str) -> None:
    def samples(keys: list[int], size: int) -> dict[int, list[torch.Tensor]]:
        dataset = DeferringDataset(Mixed(paths, TRANSFORMS[name]), defers=True)
        made = {}
        for first in range(0, len(keys), size):
            some = keys[first : first + size]
            for image, number in dataset.__getitems__(BatchRequest(some, [number + 70 for number in some])):
                made[number] = flat(image)
        return made

    forwards, backwards = samples(list(range(NUM)), 5), samples(list(range(NUM - 1, -1, -1)), 2)
    assert all(same([forwards[number]], [backwards[number]]) for number in range(NUM))


def test_loaders_in_threads_make_the_same_batches(paths: list[str]) -> None:
    dataset = Mixed(paths, T.Compose([T.CenterCrop(60), T.Resize(32), T.ColorJitter((1.2, 1.2)), T.ToTensor()]))
    expected = batches(loaded(dataset, batch_size=3))
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        found[number] = batches(loaded(dataset, batch_size=3))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(found[number], expected) for number in range(3))
