"""Chains with code of the user's: what is before it is ours, it runs per sample, and the result is what torch's is."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import jpeg, make_folder
from PIL import Image
from torchvision_reference import torchvision_v2

import datapipe as dp
from datapipe import transforms as T

v2 = torchvision_v2()
v1 = importlib.import_module("torchvision.transforms")
folders = importlib.import_module("torchvision.datasets")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("chains") / "set")


def inverted(image: Any) -> Any:
    """Of a PIL image, as somebody may write it."""
    assert isinstance(image, Image.Image)
    return Image.fromarray(255 - np.asarray(image))


def doubled(image: torch.Tensor) -> torch.Tensor:
    assert image.dtype == torch.float32
    return image * 2


CHAINS: dict[str, Any] = {
    "lowered, v1": v1.Compose([v1.Resize(32), v1.CenterCrop(24), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "lowered, v2": v2.Compose(
        [v2.Resize((28, 24)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    ),
    "PIL in the middle": v1.Compose([v1.Resize(32), v1.CenterCrop(24), inverted, v1.ToTensor()]),
    "a tensor at the end": v2.Compose(
        [v2.CenterCrop(24), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Lambda(doubled)]
    ),
    "from the very start": v1.Compose([inverted, v1.Resize((24, 24)), v1.ToTensor()]),
}
OURS = {name for name in CHAINS if "lowered" in name}


def theirs(root: Path, chain: Any, **arguments: Any) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(folders.ImageFolder(root, chain), **({"batch_size": 5} | arguments))


@pytest.mark.daily(7)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", CHAINS)
def test_batches_are_torchs(root: Path, name: str, num_workers: int) -> None:
    loader = theirs(root, CHAINS[name], num_workers=num_workers)
    ours = dp.from_torch(loader)
    assert isinstance(ours, dp.DataLoader) == (name in OURS)
    assert len(ours) == len(loader)
    for (images, labels), (expected, targets) in zip(ours, loader, strict=True):
        assert torch.equal(labels, targets)
        assert (images.dtype, images.shape) == (expected.dtype, expected.shape)
        assert float((images - expected).abs().max()) < 2.5 / 255 / min(STD)


def test_our_loader_runs_them_in_its_threads(root: Path) -> None:
    chain = CHAINS["PIL in the middle"]
    loader = dp.DataLoader(folders.ImageFolder(root, chain), batch_size=5, num_workers=2)
    for (images, labels), (expected, targets) in zip(loader, theirs(root, chain), strict=True):
        assert torch.equal(labels, targets)
        assert float((images - expected).abs().max()) < 2.5 / 255
    sizes = dp.DataLoader(root, batch_size=4, transform=[T.CenterCrop(24), lambda image: {"size": image.size, "n": 1}])
    batch, _ = next(iter(sizes))
    assert [part.tolist() for part in batch["size"]] == [[24] * 4, [24] * 4]
    lists = dp.DataLoader(root, batch_size=3, transform=lambda image: image.size, collate_fn=list)
    assert [size for size, _ in next(iter(lists))] == [Image.open(path).size for path, _ in folders.ImageFolder(root).samples[:3]]


def test_random_cuts_before_them_are_ours_and_resume(root: Path) -> None:
    """The same crop by seed, epoch and id as without them; the place can be saved."""
    chain = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), inverted, v1.ToTensor()])
    ours = dp.from_torch(theirs(root, chain, shuffle=True), seed=4)
    plain = dp.DataLoader(root, batch_size=5, shuffle=True, seed=4, transform=[T.RandomResizedCrop(24), T.RandomHorizontalFlip()])
    for _ in range(2):
        for (images, labels), (expected, targets) in zip(ours, plain, strict=True):
            assert torch.equal(labels, targets)
            assert torch.equal((images * 255).round().to(torch.uint8), 255 - expected)
    steps = iter(ours)
    for _ in range(3):
        next(steps)
    again = dp.from_torch(theirs(root, chain, shuffle=True), seed=4)
    again.load_state_dict(ours.state_dict())
    for (one, _), (other, _) in zip(again, steps, strict=True):
        assert torch.equal(one, other)


def dropped(image: torch.Tensor) -> torch.Tensor:
    return image * (torch.rand(1) > 0.5)


WITHOUT_CUTS: dict[str, Any] = {
    "first": v1.Compose([inverted, v1.RandomCrop(24), v1.ToTensor()]),
    "after a flip": v1.Compose([v1.RandomHorizontalFlip(), inverted, v1.RandomCrop(24), v1.ToTensor()]),
    "after padding": v1.Compose([v1.Pad(2), inverted, v1.RandomCrop(24), v1.ToTensor()]),
    "of tensors": v1.Compose([v1.ToTensor(), dropped, v1.RandomCrop(24)]),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", WITHOUT_CUTS)
def test_before_any_that_cuts_the_datasets_code_runs_unchanged(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only to decode would cost more than Pillow. What is recorded or not, the batches are the same."""
    chain, found = WITHOUT_CUTS[name], []
    for num_workers in (0, 2, 3):
        ours = dp.from_torch(theirs(root, chain, shuffle=True, num_workers=num_workers), seed=4)
        assert ours.origin.startswith("ImageFolder: left to torch's workers: ")
        found.append(list(ours))
    for same in zip(*found, strict=True):
        for images, labels in same[1:]:
            assert torch.equal(images, same[0][0])
            assert torch.equal(labels, same[0][1])
    monkeypatch.setenv("DATAPIPE_DEFER", "0")
    seen = dp.from_torch(theirs(root, chain), seed=4)
    assert seen.origin.startswith("ImageFolder: datapipe reads its files, in torch's workers, since ")


def fails(image: Any) -> Any:
    raise ArithmeticError("by the user")


def test_what_they_raise_comes_through(root: Path) -> None:
    with pytest.raises(ArithmeticError, match="by the user"):
        next(iter(dp.DataLoader(root, batch_size=2, transform=[T.CenterCrop(8), fails], num_workers=2)))
    with pytest.raises(ArithmeticError, match="by the user") as caught:
        next(iter(dp.from_torch(theirs(root, v1.Compose([fails]), num_workers=1))))
    traceback.clear_frames(caught.tb)  # torch's workers, found by the garbage collector, would be waited for


def test_bad_samples_are_named(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / "set" / "a" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if number == 2 else jpeg(number))
    ours = dp.from_torch(theirs(tmp_path / "set", CHAINS["PIL in the middle"], num_workers=1))
    with pytest.raises(dp.errors.DecodeError, match=r"2\.jpg: sample 2: not an image: empty file") as caught:
        list(ours)
    traceback.clear_frames(caught.tb)
    skipping = dp.DataLoader(tmp_path / "set", batch_size=4, transform=CHAINS["from the very start"], on_error="skip")
    assert [len(images) for images, _ in skipping] == [3]


def test_explain_says_what_was_lowered(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print(dp.explain(dp.from_torch(theirs(root, CHAINS["lowered, v1"]))))
    told = capsys.readouterr().out
    assert "ImageFolder: datapipe reads its files" in told
    assert "Resize" in told
    print(dp.explain(dp.from_torch(theirs(root, CHAINS["PIL in the middle"]))))
    assert "inverted" in capsys.readouterr().out
    print(dp.explain(dp.DataLoader(root, transform=[T.CenterCrop(8), inverted])))
    assert "inverted" in capsys.readouterr().out


def test_dali_does_not_run_them(root: Path) -> None:
    with pytest.raises(dp.errors.OptionError, match=r"inverted.*per sample on the CPU"):
        dp.DataLoader(root, transform=[T.CenterCrop(8), inverted], backend="dali")
