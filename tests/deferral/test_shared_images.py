"""What is derived of one image is made with one decode, and what several derive from is made once."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import deferral_datasets as data
import numpy as np
import pytest
import torch
from deferral_datasets import NUM, F, Images, T
from PIL import Image

from datapipe.codecs import decode
from datapipe.deferral import families
from datapipe.deferral.execution import by_engine
from datapipe.deferral.families import Decoding
from datapipe.transforms import execute


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return data.make_files(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The regions that are decoded; [] for whole images."""
    regions: list[list[int]] = []
    real = Decoding.__call__

    def decode_(self: Decoding, source: Any, region: list[int]) -> Any:
        regions.append(region)
        return real(self, source, region)

    def whole(function: Any) -> Any:
        def decode_whole(source: Any) -> Any:
            regions.append([])
            return function(source)

        return decode_whole

    monkeypatch.setattr(Decoding, "__call__", decode_)
    for name in ("whole_image", "whole_pixels"):
        monkeypatch.setattr(families, name, whole(getattr(families, name)))
    return regions


def ten_crops(image: Any) -> list[Any]:
    return [F.to_tensor(F.resized_crop(image, 2 * n, 3 * n, 30 + n, 40, [32, 32])) for n in range(10)]


def pyramid(image: Any) -> list[Any]:
    made = []
    for size in (48, 40, 24, 12):
        image = F.resize(image, [size, size])
        made.append(F.to_tensor(image))
    return made


def by_lanczos(image: Any) -> list[Any]:
    made = []
    for size in (48, 24):
        image = F.resize(image, [size, size], T.InterpolationMode.LANCZOS)
        made += [F.to_tensor(image), F.to_tensor(F.adjust_brightness(image, 1.2))]
    return made


def jittered(image: Any) -> list[Any]:
    small = F.resize(image, [32, 32])
    return [F.to_tensor(small), F.to_tensor(F.adjust_contrast(F.adjust_brightness(small, 1.1), 0.9)), small]


def five_crops(image: Any) -> list[Any]:
    return [F.to_tensor(crop) for crop in T.FiveCrop(24)(F.resize(image, [50, 50]))]


def kept_too(image: Any) -> list[Any]:
    grey = F.to_grayscale(image, 3)
    return [F.to_tensor(F.crop(grey, 1, 2, 30, 30)), grey, F.to_tensor(F.hflip(grey))]


def looked_at(image: Any) -> list[Any]:
    return [F.to_tensor(F.crop(image, n, n, 30, 30)).sqrt() for n in range(5)]


def as_arrays(image: Any) -> list[Any]:
    small = F.resize(image, [40, 40])
    crops = [F.crop(small, n, n, 20, 20) for n in range(5)]
    return [torch.from_numpy(np.array(crop)) for crop in crops]


SHARED = {
    "ten crops": (ten_crops, 1),
    "a pyramid": (pyramid, 3),
    "by Lanczos": (by_lanczos, 0),
    "jittered": (jittered, 2),
    "five crops": (five_crops, 1),
    "kept too": (kept_too, 0),
}


def values(one: Any) -> torch.Tensor:
    return (
        one.double() * (1 if one.dtype is torch.uint8 else 255)
        if isinstance(one, torch.Tensor)
        else torch.from_numpy(np.array(one).astype(float))
    )


@pytest.mark.parametrize("name", SHARED)
def test_an_image_is_decoded_once(paths: list[str], name: str, decoded: list[Any]) -> None:
    make, most = SHARED[name]
    ours, theirs = data.both_ways(Images(paths, make))
    assert len(decoded) == NUM
    for (found, _), (expected, _) in zip(ours, theirs, strict=True):
        for one, other in zip(found, expected, strict=True):
            assert type(one) is type(other)
            assert float((values(one) - values(other)).abs().max()) <= most + 1e-3


def test_only_the_union_of_the_regions_is_decoded(paths: list[str], decoded: list[Any]) -> None:
    def two(image: Any) -> list[Any]:
        return [F.to_tensor(F.crop(image, 5, 10, 20, 20)), F.to_tensor(F.crop(image, 12, 30, 24, 10))]

    data.samples_of(Images(paths, two), [0], defers=True)
    assert decoded == [[5, 10, 31, 30]]


def stacked(image: Any) -> Any:
    make = T.Compose([T.Resize(50), T.FiveCrop(24), T.Lambda(lambda crops: torch.stack([F.to_tensor(crop) for crop in crops]))])
    return make(image)


def one_by_one(image: Any) -> Any:
    crops = T.FiveCrop(24)(F.resize(image, [50, 60]))
    return [F.to_tensor(crop) * 0.5 + F.to_tensor(crop).sqrt() for crop in crops]


@pytest.mark.parametrize("make", [stacked, one_by_one])
def test_what_several_that_are_looked_at_derive_from_is_resized_once(
    paths: list[str], make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    resizes = Counter[str]()

    def counted(name: str, resize: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            resizes[name] += 1
            return resize(*args, **kwargs)

        return call

    keys = list(range(NUM))
    alone = data.samples_of(Images(paths, make), keys, defers=False)
    data.samples_of(Images(paths, make), keys, defers=True)  # what is tried first is tried here
    monkeypatch.setitem(execute.RESIZES, "bilinear", counted("bilinear", execute.RESIZES["bilinear"]))
    made = data.samples_of(Images(paths, make), keys, defers=True)
    assert resizes.total() == NUM
    for (found, _), (expected, _) in zip(made, alone, strict=True):
        assert max(float((values(one) - values(other)).abs().max()) for one, other in zip(found, expected, strict=True)) < 60


@pytest.mark.parametrize(("make", "first"), [(looked_at, 2), (as_arrays, 1)])
def test_pixels_that_are_looked_at_are_decoded_once_or_twice(paths: list[str], make: Any, first: int, decoded: list[Any]) -> None:
    ours, theirs = data.both_ways(Images(paths, make))
    assert len(decoded) == first + NUM - 1  # the first sample shows how often its images are looked at
    for (found, _), (expected, _) in zip(ours, theirs, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_two_images_that_are_looked_at_in_turn_are_not_confused(paths: list[str]) -> None:
    class Pairs(Images):
        def __getitem__(self, number: int) -> Any:
            one, two = self.open(self.paths[number]), self.open(self.paths[(number + 1) % NUM])
            return [F.to_tensor(F.crop(image, n, n, 30, 30)) + 1 for n in range(3) for image in (one, two, one)]

    for ours, theirs in zip(*data.both_ways(Pairs(paths, ten_crops)), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_what_several_derive_from_is_made_once_and_then_freed(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0

    def apply(image: Image.Image, steps: Any) -> Image.Image:
        nonlocal most
        made = by_engine(image, steps)
        alive.append(weakref.ref(made))
        gc.collect()
        most = max(most, sum(one() is not None for one in alive))
        return made

    def chain(image: Any) -> Any:
        for size in (60, 50, 40, 30, 20, 10):
            image = F.resize(image, [size, size], T.InterpolationMode.LANCZOS)
            made.append(F.to_tensor(image))
        return made

    made: list[Any] = []
    monkeypatch.setattr(families, "FAST", families.FAST._replace(apply=apply))
    from datapipe.deferral import engine

    monkeypatch.setattr(engine, "FAST", families.FAST)
    data.samples_of(Images(paths, chain), [0], defers=True)
    assert len(alive) == 6
    assert most <= 2


@pytest.mark.parametrize("name", SHARED)
def test_pixels_do_not_depend_on_what_else_is_made(paths: list[str], name: str) -> None:
    make, _ = SHARED[name]
    together = data.samples_of(Images(paths, make), [0, 1], defers=True)
    for number in range(len(together[0][0])):
        alone = data.samples_of(Images(paths, lambda image, n=number: make(image)[n]), [0, 1], defers=True)
        for (found, _), (expected, _) in zip(alone, together, strict=True):
            assert torch.equal(values(found), values(expected[number]))


def test_a_broken_decoder_makes_samples_again_not_others(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that cannot decode one of a batch leaves that sample to Pillow."""
    from datapipe.errors import DecodeError

    real = decode.open_decoder()

    class Failing:
        def __call__(self, source: Any, header: Any, region: Any = None) -> Any:
            if header.width == 70 + 9 * 3 or header.height == 70 + 9 * 3:
                raise DecodeError("cannot")
            return real(source, header, region)

    monkeypatch.setattr(decode, "open_decoder", Failing)
    ours, theirs = data.both_ways(Images(paths, ten_crops))
    for number, ((found, _), (expected, _)) in enumerate(zip(ours, theirs, strict=True)):
        equal = [torch.equal(one, other) for one, other in zip(found, expected, strict=True)]
        assert all(equal) if number == 3 else len(equal) == 10
