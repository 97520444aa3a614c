"""decode="scaled" gives nearly the pixels of "exact", the same ones by every road, and only where JPEGs become much smaller."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import datapipe as dp
from datapipe.codecs.decode import open_decoder
from datapipe.codecs.probe import probe
from datapipe.errors import DecodeError, OptionError
from datapipe.kinds.images.cutting import ScaledCut
from datapipe.transforms import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from datapipe.transforms.execute import RowCut, cut_through

NUM = 6
RECIPES: dict[str, Any] = {
    "whole": [Resize((48, 56))],
    "middle": [Resize(48), CenterCrop(40)],
    "crops": [RandomResizedCrop(32, scale=(0.3, 1.0)), RandomHorizontalFlip()],
    "twice": [Resize((120, 160)), RandomResizedCrop(32)],
}


def photograph(height: int, width: int, seed: int) -> np.ndarray[Any, Any]:
    """Smooth, as large photographs are at the scale of their pixels."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(50, 200, (max(1, height // 60), width // 60, 3), dtype=np.uint8))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


def jpeg(pixels: np.ndarray[Any, Any], **options: Any) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "JPEG", quality=92, **options)
    return sink.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for number in range(NUM):
        path = root / f"c{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(photograph(480 + 13 * number, 650 - 11 * number, number)))
    return root


def images_of(folder: Path, recipe: Any, *, decode: Any, num_workers: int = 0, **options: Any) -> torch.Tensor:
    data = dp.Images(folder, decode=decode, **options)
    loader = dp.DataLoader(data, 3, shuffle=True, seed=5, transform=recipe, num_workers=num_workers)
    return torch.cat([images for _ in range(2) for images, _ in loader])


@pytest.mark.parametrize("name", RECIPES)
def test_pixels_are_nearly_those_of_exact(folder: Path, name: str) -> None:
    exact, scaled = (images_of(folder, RECIPES[name], decode=decode) for decode in ("exact", "scaled"))
    difference = (exact.int() - scaled.int()).abs().float()
    assert 0 < float(difference.mean()) < 1.5
    assert float(difference.max()) < 40


ROADS = [(how, name) for how in ("threads", "processes", "cache") for name in RECIPES if (how, name) != ("cache", "crops")]


@pytest.mark.parametrize(("how", "name"), ROADS)
def test_every_road_gives_the_same(folder: Path, name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = images_of(folder, RECIPES[name], decode="scaled")
    if how != "cache":
        monkeypatch.setenv("DATAPIPE_WORKERS", how)
    options = {"cache": "ram"} if how == "cache" else {"num_workers": 2}
    assert torch.equal(images_of(folder, RECIPES[name], decode="scaled", **options), expected)


def test_a_cache_of_exact_images_is_not_taken_for_one_of_scaled(folder: Path, tmp_path: Path) -> None:
    kept = {
        decode: images_of(folder, RECIPES["twice"], decode=decode, cache=str(tmp_path / "kept")) for decode in ("exact", "scaled")
    }
    for decode, images in kept.items():
        assert torch.equal(images, images_of(folder, RECIPES["twice"], decode=decode))


def result(data: bytes, how: RowCut, decode: Any) -> np.ndarray[Any, Any]:
    out = np.zeros((*how.window[2:], 3), np.uint8)
    decoder, header = open_decoder(), probe(data)
    if decode == "scaled":
        ScaledCut(decoder)(data, header, [how], out)
    else:
        cut_through(decoder(data, header, how.region), [how], out)
    return out


@pytest.mark.parametrize(
    ("region", "size", "scale"),
    [
        ([0, 0, 480, 640], [60, 80], 4),
        ([0, 0, 480, 640], [30, 40], 8),
        ([0, 0, 480, 640], [120, 160], 2),
        ([0, 0, 480, 640], [121, 160], 1),
        ([0, 0, 480, 640], [480, 640], 1),
        ([100, 64, 360, 480], [40, 40], 4),
        ([100, 64, 200, 300], [20, 20], 1),  # the region costs less in full
    ],
)
def test_the_scale_is_twice_what_is_wanted_or_more(region: list[int], size: list[int], scale: int) -> None:
    data = jpeg(photograph(480, 640, 1))
    how = RowCut(region, size, [0, 0, *size], [False, False], (0, 0, 0))
    exact, scaled = (result(data, how, decode) for decode in ("exact", "scaled"))
    assert np.array_equal(exact, scaled) == (scale == 1)
    if scale > 1:
        with Image.open(io.BytesIO(data)) as image:
            image.draft("RGB", (640 // scale, 480 // scale))  # libjpeg's scale, by Pillow
            reduced = np.array(image)
        assert reduced.shape[0] == 480 // scale
        box = [side // scale for side in region]
        own = how._replace(region=box)
        expected = np.zeros_like(scaled)
        cut_through(np.ascontiguousarray(reduced[box[0] : box[0] + box[2], box[1] : box[1] + box[3]]), [own], expected)
        assert np.array_equal(scaled, expected)


@pytest.mark.parametrize("kind", ["png", "progressive", "grey", "cut off"])
def test_other_files_are_decoded_as_they_were(kind: str) -> None:
    pixels = photograph(400, 400, 2)
    data = jpeg(pixels)
    if kind == "png":
        sink = io.BytesIO()
        Image.fromarray(pixels).save(sink, "PNG")
        data = sink.getvalue()
    elif kind == "progressive":
        data = jpeg(pixels, progressive=True)
    elif kind == "grey":
        data = jpeg(pixels[:, :, 0])
    elif kind == "cut off":
        data = data[: len(data) // 2]
    how = RowCut([0, 0, 400, 400], [50, 50], [0, 0, 50, 50], [False, True], (0, 0, 0))
    if kind == "cut off":
        for decode in ("exact", "scaled"):
            with pytest.raises(DecodeError, match="truncated"):
                result(data, how, decode)
        return
    exact, scaled = (result(data, how, decode).astype(int) for decode in ("exact", "scaled"))
    assert np.array_equal(exact, scaled) == (kind == "png")
    assert np.abs(exact - scaled).max() < 40


def test_a_side_of_a_pixel_keeps_it() -> None:
    data = jpeg(photograph(48, 4000, 3)[:1])
    how = RowCut([0, 0, 1, 4000], [1, 100], [0, 0, 1, 100], [False, False], (0, 0, 0))
    assert np.array_equal(result(data, how, "exact"), result(data, how, "scaled"))


def test_what_is_refused(folder: Path) -> None:
    with pytest.raises(OptionError, match="decode is 'fast'"):
        dp.Images(folder, decode="fast")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="cache would keep whole images"):
        dp.DataLoader(dp.Images(folder, decode="scaled", cache="ram"), 2, transform=RECIPES["crops"], device="cpu")
    with pytest.raises(OptionError, match="decode='exact' and decode='scaled'"):
        dp.mix([dp.Images(folder), dp.Images(folder, decode="scaled")])
    assert "a half, a quarter or an eighth" in str(
        dp.explain(dp.DataLoader(dp.Images(folder, decode="scaled"), 2, transform=RECIPES["whole"], device="cpu"))
    )


def test_dali_is_not_asked_for_it(folder: Path) -> None:
    pytest.importorskip("nvidia.dali")
    with pytest.raises(OptionError, match="decode='scaled' is for libjpeg on the CPU"):
        dp.DataLoader(dp.Images(folder, decode="scaled"), 2, transform=RECIPES["whole"], backend="dali", device="cpu")
