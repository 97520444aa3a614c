"""Whole recipes by DALI within the published distance of images_cpu's and torchvision's, and of the same crops."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures import encode
from torchvision_reference import torchvision_v2

torchvision_v2()
pytest.importorskip("nvidia.dali", reason="DALI is not installed")

from benchmarks.parity import backend_table, measure_backend  # noqa: E402
from benchmarks.parity_backends import BackendCase, Photos, backend_cases, loaded  # noqa: E402
from datapipe import transforms as T  # noqa: E402
from datapipe.testing.synthetic_images import make_image_folder  # noqa: E402


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    return Photos.of(make_image_folder(tmp_path_factory.mktemp("parity") / "photos", num_images=5, num_classes=5, seed=1))


def name_of(case: BackendCase) -> str:
    return f"{case.recipe} / {case.backend} / {case.against}"


@pytest.mark.nightly
@pytest.mark.parametrize("case", backend_cases(), ids=name_of)
def test_within_the_published_bound(case: BackendCase, photos: Photos) -> None:
    result = measure_backend(case, photos)
    assert result["within_bound"], result


def test_what_is_published_is_what_is_tested() -> None:
    root = Path(__file__).parents[2]
    results = json.loads((root / "benchmarks" / "results" / "parity.json").read_text())["backends"]
    assert backend_table(results) in (root / "docs" / "transforms.md").read_text()
    ours = [result for result in results if result["device"] == "cpu"]
    names = ("recipe", "backend", "against")
    assert [tuple(result[name] for name in names) for result in ours] == [
        tuple(getattr(case, name) for name in names) for case in backend_cases()
    ]
    for result, case in zip(ours, backend_cases(), strict=True):
        bound = {
            "max": case.bound.largest,
            "p99.9": case.bound.p999,
            "mean": case.bound.mean,
            "max_inside": case.inside,
        }
        assert result["bound"] == bound
    assert all(result["within_bound"] for result in results)


RAMP_SIDE = 64
SHIFT = 255 / (RAMP_SIDE - 1)  # what a pixel of the source is worth


def write_ramps(root: Path, num: int) -> Path:
    """Images that say where their pixels lie: red grows by the column, green by the row; linear, so that a resize keeps it."""
    pixels = np.zeros((RAMP_SIDE, RAMP_SIDE, 3), np.uint8)
    pixels[:, :, 0] = np.rint(np.arange(RAMP_SIDE) * SHIFT)
    pixels[:, :, 1] = pixels[:, :, 0].T
    (root / "class").mkdir(parents=True)
    for number in range(num):
        (root / "class" / f"{number:03d}.png").write_bytes(encode(pixels, "PNG"))
    return root


@pytest.mark.parametrize("transforms", [
    [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    [T.Resize((50, 46)), T.RandomCrop(24), T.RandomHorizontalFlip()], [T.Resize(30), T.CenterCrop(24)],
], ids=str)  # fmt: skip
def test_the_crops_are_the_same(transforms: list[object], tmp_path: Path) -> None:
    """Were a box off by one pixel of the source, the values inside it would be by four."""
    ramps = Photos.of(write_ramps(tmp_path / "ramps", 40))
    ours, theirs = (loaded(ramps, transforms, backend).float()[:, :, 1:-1, 1:-1] for backend in ("dali", "images_cpu"))
    assert SHIFT > 4
    assert float((ours - theirs).abs().max()) <= 1
    assert len({tuple(image.flatten().tolist()) for image in ours}) == (40 if "Random" in str(transforms) else 1)


def test_a_difference_at_the_border_alone_is_told_from_one_inside(photos: Photos) -> None:
    case, *_ = [c for c in backend_cases() if (c.recipe, c.against) == ("RandomCrop with padding, flips", "images_cpu")]
    for rows, inside in ((slice(0, 1), 0.0), (slice(1, 2), 3.0)):

        def off(_: Photos, rows: slice = rows) -> torch.Tensor:
            images = case.ours(photos).clone()
            images[:, 0, rows] += 3
            return images

        result = measure_backend(BackendCase(**{**vars(case), "theirs": off}), photos)
        assert (result["max_inside"], result["within_bound"]) == (inside, False)
        assert "exceeded" in backend_table([result])
