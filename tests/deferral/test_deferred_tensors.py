"""What is done with a tensor that has no values yet is recorded, and gives what it gives without deferral, bit for bit."""

from __future__ import annotations

from typing import Any

import deferral_datasets as data
import numpy as np
import pytest
import torch
from deferral_datasets import MEAN, NUM, STD, F, Images, T, both_ways, v2
from PIL import Image

from datapipe.deferral.recorder import Fetch

SCALED = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
V2 = v2.functional


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return data.make_files(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was made at once."""
    noted: list[str] = []
    real = Fetch._note

    def note(self: Fetch, what: str, reason: str | None, needed_by: str) -> None:
        noted.append(needed_by)
        real(self, what, reason, needed_by)

    monkeypatch.setattr(Fetch, "_note", note)
    return noted


def segmentation(image: Any) -> Any:
    """As torchvision's references write it: padded if it is too small, cut, flipped."""
    tensor = F.pil_to_tensor(image)
    if torch.rand(1) < 0.5:
        tensor = F.hflip(tensor)
    height, width = tensor.shape[-2:]
    tensor = F.pad(tensor, [0, 0, max(100 - width, 0), max(100 - height, 0)], fill=0)
    tensor = F.crop(tensor, *T.RandomCrop.get_params(tensor, (90, 80)))
    return F.normalize(F.convert_image_dtype(tensor, torch.float32), MEAN, STD)


def around_lambda(image: Any) -> Any:
    chain = T.Compose([T.Lambda(lambda one: one.crop((3, 4, 40, 50))), T.ToTensor(), T.Lambda(lambda one: one * 2 - 1)])
    return chain(image)


def beyond(image: Any) -> list[Any]:
    tensor = F.pil_to_tensor(image)
    return [
        F.crop(tensor, -3, 5, 30, 40),
        V2.crop(tensor, 30, 30, 60, 70),
        V2.center_crop(tensor, [150, 40]),
        torch.nn.functional.pad(tensor, (1, 2)),
        F.pad(F.crop(tensor, 1, 2, 30, 40), 0),
    ]


RECIPES: dict[str, Any] = {
    "v2, first an image": v2.Compose([v2.ToImage(), v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), SCALED]),
    "v2, first a tensor": v2.Compose([v2.PILToTensor(), v2.RandomResizedCrop(32), v2.RandomVerticalFlip(), SCALED]),
    "v2, evaluation": v2.Compose([v2.ToImage(), v2.Resize(40), v2.CenterCrop(32), SCALED, v2.ToPureTensor()]),
    "v2, bicubic": v2.Compose([v2.ToImage(), v2.Resize((32, 40), interpolation=T.InterpolationMode.BICUBIC)]),
    "v2, flipped and then resized": v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(1.0), v2.Resize((32, 41)), SCALED]),
    "v2, resized twice": v2.Compose([v2.Resize(60), v2.ToImage(), v2.RandomCrop(50), v2.Resize((32, 32))]),
    "v2, enlarged": v2.Compose([v2.ToImage(), v2.RandomCrop(30), v2.Resize((70, 65))]),
    "v2, padded": v2.Compose([v2.ToImage(), v2.Pad(4, fill=7), v2.RandomCrop(60, padding=(3, 5)), SCALED]),
    "v2, padded at last": v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Pad((1, 2, 3, 4))]),
    "v2, the same size": v2.Compose([v2.ToImage(), v2.CenterCrop(48), v2.Resize((48, 48)), SCALED]),
    "v2, no ToImage": v2.Compose([v2.RandomCrop(40, padding=4), v2.ToImage(), v2.CenterCrop(38)]),
    "v1, first a tensor": T.Compose([T.ToTensor(), T.RandomCrop(64, padding=4), T.Normalize(MEAN, STD)]),
    "v1, normalised and cut": T.Compose([T.ToTensor(), T.Normalize(MEAN, STD), T.CenterCrop(40), T.RandomVerticalFlip()]),
    "v1, converted": T.Compose([T.PILToTensor(), T.RandomCrop(50), T.ConvertImageDtype(torch.float32)]),
    "segmentation": segmentation,
    "Lambda": around_lambda,
    "five crops": lambda image: list(F.five_crop(F.to_tensor(image), [32, 32])),
    "beyond the edges": beyond,
    "from -1 to 1": lambda image: F.to_tensor(image.crop((0, 0, 40, 40))) * 2 - 1,
    "of bytes": lambda image: F.pil_to_tensor(image) / 127.5 - 1,
    "backwards": lambda image: 1 - F.to_tensor(image),
    "functions": lambda image: torch.add(torch.mul(torch.div(torch.sub(F.to_tensor(image), 0.5), 0.5), 3), 1),
    "float": lambda image: F.pil_to_tensor(image).float().div(255).to(torch.float32),
    "to": lambda image: F.pil_to_tensor(image).to(dtype=torch.float32)[:, 3:40, 5:],
    "slices": lambda image: [F.to_tensor(image)[..., :20, 3:], F.pil_to_tensor(image)[:, -9:], F.to_tensor(image)[..., -30:]],
    "flips": lambda image: [F.pil_to_tensor(image).flip(1, 2), torch.flip(F.to_tensor(image), [-1])],
    "functions that flip": lambda image: [F.vflip(F.to_tensor(image)), V2.hflip(V2.vflip(F.pil_to_tensor(image)))],
    "grey": T.Compose([T.Grayscale(), T.ToTensor(), T.RandomCrop(40), T.RandomHorizontalFlip(), T.Normalize((0.5,), (0.2,))]),
    "grey bytes": T.Compose([T.Grayscale(), T.PILToTensor(), T.Pad(3, fill=9), T.ConvertImageDtype(torch.float32)]),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_it_is_recorded_and_bit_for_bit_the_same(paths: list[str], name: str, looked_at: list[str]) -> None:
    ours, theirs = both_ways(Images(paths, RECIPES[name]))
    assert looked_at == []
    most = 1 if name == "v2, resized twice" else 0  # the first resize is Pillow's
    for (found, _), (expected, _) in zip(ours, theirs, strict=True):
        for one, other in zip(*([made] if torch.is_tensor(made) else made for made in (found, expected)), strict=True):
            assert type(one) is type(other)
            assert one.dtype is other.dtype
            assert one.stride() == other.stride()
            assert float((one.double() - other.double()).abs().max()) <= most


PADDED = {
    "constant": T.Compose([T.Pad(5), T.RandomCrop(60), T.ToTensor()]),
    "filled": T.Compose([T.Pad((5, 3), fill=(9, 8, 7)), T.CenterCrop(90), T.PILToTensor()]),
    "one value": T.Compose([T.RandomCrop(150, pad_if_needed=True, fill=5), T.PILToTensor()]),
    "reflected": T.Compose([T.Pad(5, padding_mode="reflect"), T.ToTensor()]),
    "v2": v2.Compose([v2.Pad(5), v2.ToImage()]),
}


@pytest.mark.parametrize("name", PADDED)
def test_images_of_pillow_are_padded_later(paths: list[str], name: str, looked_at: list[str]) -> None:
    ours, theirs = both_ways(Images(paths, PADDED[name]))
    assert looked_at == []
    assert all(torch.equal(one[0], other[0]) for one, other in zip(ours, theirs, strict=True))


def written_to_a_view(image: Any) -> Any:
    whole = F.pil_to_tensor(image)
    part = F.crop(whole, 5, 6, 20, 30)
    part.fill_(7)
    return [whole, part]


def written_to_the_whole(image: Any) -> Any:
    whole = F.to_tensor(image)
    part, inner = whole[:, 3:40, 4:50], whole[:, 3:40, 4:50][..., 2:9, 1:5]
    whole.mul_(2)
    inner.zero_()
    return [whole, part, inner]


def of_one_kind(image: Any) -> Any:
    one = data.tv_tensors.Image(V2.to_image(image))
    two = one.as_subclass(torch.Tensor)
    two.fill_(3)
    return [one, two]


@pytest.mark.parametrize("make", [written_to_a_view, written_to_the_whole, of_one_kind])
def test_views_share_the_memory_of_what_they_are_views_of(paths: list[str], make: Any) -> None:
    for (ours, _), (theirs, _) in zip(*both_ways(Images(paths, make)), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_views_that_nobody_looked_at_share_memory_afterwards(paths: list[str]) -> None:
    def make(image: Any) -> Any:
        whole = F.to_tensor(image)
        return [whole, whole[:, 2:20, 3:30], whole.to(torch.float32)]

    for (whole, part, same), _ in data.samples_of(Images(paths, make), list(range(NUM)), defers=True):
        part.fill_(5.0)
        same[0, 0, 0] = 9.0
        assert torch.equal(whole[:, 2:20, 3:30], torch.full((3, 18, 27), 5.0))
        assert whole[0, 0, 0] == 9


def test_only_the_part_that_remains_is_decoded(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from datapipe.deferral.engine import Decoding

    regions: list[list[int]] = []
    real = Decoding.__call__
    monkeypatch.setattr(Decoding, "__call__", lambda self, source, region: regions.append(region) or real(self, source, region))
    make = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Lambda(lambda one: V2.crop(one, 5, 6, 20, 30))])
    data.samples_of(Images(paths, make), [0], defers=True)
    assert regions == [[5, 6, 20, 30]]


def test_in_inference_mode_nothing_is_recorded_of_tensors(paths: list[str]) -> None:
    def make(image: Any) -> Any:
        whole = F.to_tensor(image)
        with torch.inference_mode():
            return whole * 2

    for (ours, _), (theirs, _) in zip(*both_ways(Images(paths, make)), strict=True):
        assert ours.is_inference() is theirs.is_inference() is True
        assert torch.equal(ours, theirs)


def test_the_last_step_may_be_numpys(paths: list[str]) -> None:
    make = T.Compose([T.RandomCrop(40), T.RandomHorizontalFlip(), np.array])
    for (ours, _), (theirs, _) in zip(*both_ways(Images(paths, make)), strict=True):
        assert np.array_equal(ours, theirs)
        assert ours.dtype == np.uint8


def test_an_array_of_a_resized_image_is_pillows(paths: list[str]) -> None:
    make = lambda image: np.array(image.resize((40, 30), Image.Resampling.BILINEAR))  # noqa: E731
    assert all(np.array_equal(one[0], other[0]) for one, other in zip(*both_ways(Images(paths, make)), strict=True))
