"""Images in buckets: batches of one shape each, of photographs as their EXIF turns them, planned once and kept."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import equal
from fixtures import convert
from PIL import Image, ImageOps

import datapipe as dp
from datapipe import transforms as T
from datapipe.cli.main import main
from datapipe.kinds.images import buckets as plans

NUM = 60
BUCKETS = dp.Buckets(area=48 * 48, step=16, ratio=2.0)


def photograph(number: int) -> bytes:
    """Of any shape, smooth, turned by a camera in every way."""
    rng = np.random.default_rng(number)
    height, width = rng.integers(50, 120, 2).tolist()
    image = Image.fromarray(rng.integers(0, 255, (4, 4, 3), np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    exif, sink = Image.Exif(), io.BytesIO()
    exif[0x0112] = 1 + number % 8
    image.save(sink, "JPEG" if number % 5 else "PNG", exif=exif, quality=95)
    return sink.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shapes") / "photos"
    for number in range(NUM):
        path = root / "abc"[number % 3] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph(number))
    return root


def open_loader(source: Any, batch_size: int = 4, buckets: dp.Buckets = BUCKETS, **options: Any) -> dp.DataLoader:
    settings = {"shuffle": True, "seed": 1, "output": "dict"} | options
    return dp.DataLoader(dp.Images(source, buckets=buckets), batch_size, **settings)


def by_pillow(path: Path, shape: tuple[int, int]) -> np.ndarray:
    """The same arithmetic, carried out by Pillow."""
    with Image.open(path) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    cover = max(shape[0] / image.height, shape[1] / image.width)
    height, width = (max(round(side * cover), least) for side, least in zip((image.height, image.width), shape, strict=True))
    top, left = (height - shape[0]) // 2, (width - shape[1]) // 2
    made = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + shape[1], top + shape[0]))
    return np.asarray(made)


def test_batches_have_one_shape_and_pillows_pixels(folder: Path) -> None:
    paths = sorted(folder.rglob("*.jpg"), key=lambda path: (path.parent.name, path.name))
    loader, seen = open_loader(folder), []
    for batch in loader:
        shape = tuple(batch["image"].shape[2:])
        assert shape in BUCKETS.shapes
        for number, pixels in zip(batch["id"].tolist(), batch["image"], strict=True):
            expected = by_pillow(paths[number], shape).astype(int)
            assert np.abs(pixels.permute(1, 2, 0).numpy() - expected).max() <= 2
            seen.append(number)
    assert set(seen) == set(range(NUM))
    assert len({tuple(batch["image"].shape) for batch in loader}) > 2


def test_images_are_not_turned_where_that_is_not_wanted(folder: Path) -> None:
    loader = open_loader(folder, buckets=dp.Buckets(area=48 * 48, step=16, ratio=2.0, exif=False))
    paths = sorted(folder.rglob("*.jpg"), key=lambda path: (path.parent.name, path.name))
    for batch in loader:
        height, width = batch["image"].shape[2:]
        for number in batch["id"].tolist():
            with Image.open(paths[number]) as image:
                assert (height >= width) == (image.height >= image.width) or abs(image.height - image.width) < 40


@pytest.mark.parametrize("to", ["webdataset", "hdf5", "parquet", "tfrecord"])
def test_shards_give_the_batches_of_the_folder(folder: Path, tmp_path: Path, to: str) -> None:
    source = convert(folder, tmp_path / "set", to=to)
    assert equal(list(open_loader(source)), list(open_loader(folder)))


def test_workers_threads_and_pixel_operations(folder: Path) -> None:
    chain = [T.RandomHorizontalFlip(), T.ColorJitter(0.2), T.ToDtype(torch.float32, scale=True)]
    wanted = list(open_loader(folder, transform=chain, num_workers=0))
    assert wanted[0]["image"].dtype is torch.float32
    assert equal(wanted, list(open_loader(folder, transform=chain, num_workers=3)))
    assert equal(wanted, list(open_loader(dp.Images(folder, cache="ram"), transform=chain, num_workers=2)))


def test_ranks_have_one_shape_in_each_step_and_resume_on_others(folder: Path) -> None:
    alone = list(open_loader(folder, 8))
    ranks = [list(open_loader(folder, 4, ranks=(rank, 2))) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == len(alone)
    for whole, one, other in zip(alone, *ranks, strict=True):
        assert one["image"].shape[2:] == other["image"].shape[2:] == whole["image"].shape[2:]
        assert torch.cat([one["id"], other["id"]]).tolist()[: len(whole["id"])] == whole["id"].tolist()
    begun = open_loader(folder, 8)
    running = iter(begun)
    head = [next(running) for _ in range(3)]
    state = begun.state_dict()
    resumed = open_loader(folder, 4, ranks=(1, 2))
    resumed.load_state_dict(state)
    assert equal(list(resumed), ranks[1][3:])
    assert equal(head, alone[:3])


def test_states_are_of_the_same_buckets(folder: Path) -> None:
    state = open_loader(folder).state_dict()
    with pytest.raises(dp.errors.StateError, match="saved with other buckets"):
        open_loader(folder, buckets=dp.Buckets(area=32 * 32, step=16)).load_state_dict(state)
    with pytest.raises(dp.errors.StateError):
        dp.DataLoader(dp.Images(folder), 4, shuffle=True, seed=1, transform=[T.Resize((16, 16))]).load_state_dict(state)


def test_sizes_are_looked_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = list(open_loader(folder))
    monkeypatch.setattr(plans, "_sizes_of", lambda *_, **__: pytest.fail("looked at again"))
    assert equal(list(open_loader(folder)), first)
    again = open_loader(folder, buckets=dp.Buckets(area=32 * 32, step=16))  # other buckets, the same sizes
    assert len(list(again)) > 1


@pytest.mark.parametrize("damage", [b"", b"no array"])
def test_what_is_kept_is_made_again_where_it_is_damaged(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted = list(open_loader(folder))
    kept = list(tmp_path.rglob("*.npy"))
    assert len(kept) >= 4
    for path in kept:
        path.write_bytes(damage)
    assert equal(list(open_loader(folder)), wanted)


def test_a_changed_image_is_bad_until_its_folder_is_looked_at_again(tmp_path: Path) -> None:
    root = tmp_path / "few"
    (root / "a").mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (64, 64)).save(root / "a" / f"{number}.jpg")
    assert {tuple(batch["image"].shape[2:]) for batch in open_loader(root)} == {(48, 48)}
    Image.new("RGB", (128, 66)).save(root / "a" / "0.jpg")
    said = r"0.jpg.*is 66 x 128 now, of another bucket than when its size was looked at"
    with pytest.raises(dp.errors.DecodeError, match=said):
        list(open_loader(root))
    (root / "a" / "new.jpg").write_bytes((root / "a" / "0.jpg").read_bytes())
    assert sorted(tuple(batch["image"].shape[2:]) for batch in open_loader(root)) == [(32, 64), (48, 48)]


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_bad_image_is_left_out_or_replaced_by_one_of_its_bucket(folder: Path, tmp_path: Path, on_error: Any) -> None:
    root = tmp_path / "some"
    for path in sorted(folder.rglob("*.jpg"))[:24]:
        target = root / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    victims = sorted(root.rglob("*.jpg"))[3:5]
    victims[0].write_bytes(b"no image")
    victims[1].write_bytes(victims[1].read_bytes()[:-200])
    loader = open_loader(root, on_error=on_error)
    batches = list(loader)
    assert len(loader.bad_samples) >= 2
    assert len(batches) == len(loader)
    assert all(tuple(batch["image"].shape[2:]) in BUCKETS.shapes for batch in batches)


def test_images_that_are_too_small(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "small"
    (root / "a").mkdir(parents=True)
    for number in range(10):
        Image.new("RGB", (20, 20) if number < 3 else (64, 64)).save(root / "a" / f"{number}.jpg")
    with caplog.at_level(logging.WARNING):
        enlarged = open_loader(root)
        assert sum(len(batch["id"]) for batch in enlarged) == 10
        assert "3 images of 10 smaller than their bucket: enlarged" in caplog.text
        left_out = open_loader(root, buckets=dp.Buckets(area=48 * 48, step=16, small="leave out"))
        assert {int(one) for batch in left_out for one in batch["id"]} == set(range(3, 10))
        assert "smaller than their bucket: left out" in caplog.text
    said = r"3 images of 10 smaller than their bucket; pass Buckets\(small='enlarge'\)"
    with pytest.raises(dp.errors.OptionError, match=said):
        open_loader(root, buckets=dp.Buckets(area=48 * 48, step=16, small="error"))
    with pytest.raises(dp.errors.MissingDataError, match="no images for any bucket"):
        open_loader(root, buckets=dp.Buckets([(999, 999)], small="leave out"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transform": [T.RandomResizedCrop(24)]}, "make 24 x 24 of .*; leave out what crops and resizes"),
        ({"transform": [T.Resize(24)]}, "leave out what crops and resizes"),
        ({"transform": [lambda image: image]}, "use datapipe's transforms"),
        ({"shuffle": "windows"}, "shuffle='windows' goes by shards, and buckets by shapes"),
        ({"shuffle": False, "sampler": dp.WeightedSampler(np.ones(NUM), NUM)}, "a WeightedSampler draws images of all buckets"),
        ({"backend": "dali"}, "images would differ in size, and DALI's graph makes images of one"),
    ],
)
def test_what_does_not_go_with_buckets(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises((dp.errors.OptionError, dp.errors.DependencyError), match=said):
        list(open_loader(folder, **options))


def test_a_sampler_of_ones_own_has_to_keep_to_a_bucket(folder: Path) -> None:
    loader = open_loader(folder)
    steps = [batch["id"].tolist() for batch in loader]
    own = open_loader(folder, 1, shuffle=False, batch_sampler=steps)
    assert [batch["id"].tolist() for batch in own] == steps
    mixed = open_loader(folder, 1, shuffle=False, batch_sampler=[list(range(NUM))])
    with pytest.raises(dp.errors.OptionError, match="a batch has images of several buckets"):
        list(mixed)


def test_batches_of_so_many_pixels_and_weights(folder: Path) -> None:
    whole = open_loader(folder, buckets=dp.Buckets(area=[24 * 24, 48 * 48], step=8))
    shapes = {tuple(batch["image"].shape[2:]): set(batch["id"].tolist()) for batch in whole}
    often = max(shapes, key=lambda shape: len(shapes[shape]))
    options: dict[str, Any] = {"area": [24 * 24, 48 * 48], "step": 8, "max_pixels": 3 * 48 * 48, "weights": {often: 2.0}}
    buckets = dp.Buckets(**options)
    for tail in ("pad", "mask", "drop"):
        loader = open_loader(folder, 16, buckets=buckets, tail=tail)
        batches = list(loader)
        assert len(batches) == len(loader)
        for batch in batches[: -1 if tail == "pad" else None]:
            height, width = batch["image"].shape[2:]
            assert len(batch["id"]) == min(16, 3 * 48 * 48 // (height * width))
    counts = np.zeros(NUM, int)
    for batch in open_loader(folder, 16, buckets=buckets, tail="mask"):
        np.add.at(counts, batch["id"][batch["real"]].numpy(), 1)
    assert set(counts.tolist()) == {1, 2}
    assert counts[sorted(shapes[often])].min() == 2
    begun, resumed = open_loader(folder, 16, buckets=buckets), open_loader(folder, 16, buckets=buckets)
    running = iter(begun)
    for _ in range(4):
        next(running)
    resumed.load_state_dict(begun.state_dict())
    assert equal(list(resumed), list(running))
    with pytest.raises(dp.errors.StateError, match=r"in buckets, in steps of .* to .*; pass the same"):
        open_loader(folder, 16, buckets=dp.Buckets(**options | {"max_pixels": 4 * 48 * 48})).load_state_dict(begun.state_dict())
    lines = str(dp.explain(begun))
    assert "3 a batch" in lines
    assert "an epoch" in lines
    assert "come again, to fill up steps" in lines


def test_it_is_no_mixture(folder: Path) -> None:
    with pytest.raises(dp.errors.OptionError, match=r"buckets of what mix\(\) or repeat\(\) made"):
        dp.DataLoader(dp.Images(dp.mix([dp.Images(folder), dp.Images(folder)]), buckets=BUCKETS), 4)
    with pytest.raises(dp.errors.OptionError, match=r"pass datapipe.Buckets\(area=1024\*\*2\)"):
        dp.Images(folder, buckets=1024)  # type: ignore[arg-type]


def test_explain_shows_the_buckets(folder: Path) -> None:
    lines = str(dp.explain(open_loader(folder)))
    assert "shapes have images (" in lines
    assert "% of the pixels are cut off, on average" in lines


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("2304:x", "write AREA"),
        ("2304:16:2:1", "write AREA"),
        ("4", r"Buckets\(area=4, step=64\): no side of 64"),
        ("2304:16", None),
    ],
)
def test_inspect_shows_the_buckets(folder: Path, capsys: pytest.CaptureFixture[str], given: str, said: str | None) -> None:
    status = main(["inspect", str(folder), "--buckets", given])
    told = capsys.readouterr()
    if said is None:
        assert status == 0
        assert "shapes have images (" in told.out
    else:
        assert status != 0
        assert re.search(said, told.err)
