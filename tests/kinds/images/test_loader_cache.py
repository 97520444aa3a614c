"""`cache=`: the same batches with and without, whatever is kept and whatever happens to it."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_batches import BAD, DOUBTFUL
from crc32c import crc32c
from fixtures import NUM_SAMPLES, convert, encode, flip_bit, jpeg, listing, make_folder, npy, open_images, picture
from labelled_scenes import FIELDS, NUM, convert_scenes
from recipes import TRAIN

import datapipe as dp
from datapipe import transforms as T
from datapipe.fetch.local import LocalFiles
from datapipe.kinds.images.cache.entries import Entry, pack_entry, position_of
from datapipe.kinds.images.choice import BackendRequest
from datapipe.testing.loaders.kind import copies, same
from datapipe.transforms import Recipe

FLOAT = [T.ToDtype(torch.float32, scale=True), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]
RECIPES: dict[str, list[Any]] = {
    "no front": TRAIN,
    "no front, padded": [T.RandomCrop((30, 30), padding=4, pad_if_needed=True, fill=7), T.RandomVerticalFlip()],
    "resize": [T.Resize(28), T.RandomCrop(20), T.RandomHorizontalFlip(), *FLOAT],
    "resize, crop of another size": [T.Resize(28), T.RandomResizedCrop(20), T.RandomHorizontalFlip()],
    "crop": [T.CenterCrop((31, 27)), T.RandomResizedCrop(17), *FLOAT],
    "crop beyond the edge": [T.CenterCrop(60), T.RandomCrop(50)],
    "pad": [T.Pad((3, 1, 5, 7), fill=(9, 8, 7)), T.RandomResizedCrop((12, 18)), T.RandomHorizontalFlip()],
    "pad, resize, pad": [T.Pad(4), T.Resize((30, 20)), T.Pad(2, fill=200), T.RandomCrop(18), T.RandomVerticalFlip()],
    "nothing else": [T.Resize(30), T.CenterCrop(24), *FLOAT],
    "pixels between": [T.Resize((24, 26)), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomHorizontalFlip()],
    "flip first": [T.RandomHorizontalFlip(), T.Resize(26), T.CenterCrop(20)],
    "mixed": [T.Resize((22, 22)), T.RandomHorizontalFlip(), *FLOAT, T.MixUp(num_classes=3)],
}


def make(path: Path | dp.Images, **changes: Any) -> dp.DataLoader:
    return open_images(path, **({"batch_size": 5, "num_workers": 2, "shuffle": True, "seed": 3} | changes))


def stats(loader: dp.DataLoader) -> Any:
    assert loader.cache_stats is not None
    return loader.cache_stats


def data_file(place: Path) -> Path:
    (directory,) = (path for path in place.iterdir() if path.is_dir())
    return directory / "data"


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("source", ["folder", "uneven", "converted"])
def test_the_same_batches_with_and_without(request: pytest.FixtureRequest, tmp_path: Path, source: str, name: str) -> None:
    path, transform = request.getfixturevalue(source), RECIPES[name]
    plain, cached = make(path, transform=transform), make(path, transform=transform, cache=tmp_path)
    for epoch in range(3):
        assert same(copies(cached), copies(plain))
        assert stats(cached).hits == epoch * NUM_SAMPLES
        assert (stats(cached).misses, stats(cached).num_kept) == (NUM_SAMPLES, NUM_SAMPLES)
    again = make(path, transform=transform, cache=tmp_path, num_workers=0)
    assert same(copies(again), copies(make(path, transform=transform)))
    assert stats(again).hits == NUM_SAMPLES


@pytest.mark.parametrize("name", ["no front", "resize", "pad, resize, pad"])
def test_images_of_differing_sizes(uneven: Path, tmp_path: Path, name: str) -> None:
    """One by one, for a collate_fn of the user's."""
    transform = [*RECIPES[name][:2], T.Pad(1)] if name != "no front" else [T.Pad(2), T.RandomHorizontalFlip()]
    plain, cached = (make(uneven, transform=transform, collate_fn=_flat, cache=cache, seed=1) for cache in (None, tmp_path))
    for _ in range(2):
        assert [(a.tolist(), b) for a, b in cached] == [(a.tolist(), b) for a, b in plain]
    assert stats(cached).hits == NUM_SAMPLES


def test_a_recipe_that_ends_in_code_of_the_users(converted: Path, tmp_path: Path) -> None:
    transform = [T.Resize((24, 20)), T.RandomHorizontalFlip(), _own]
    plain, cached = (make(converted, transform=transform, cache=cache) for cache in (None, tmp_path))
    for _ in range(2):
        assert same(copies(cached), copies(plain))
    assert stats(cached).hits == NUM_SAMPLES


def _own(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).copy()).float() * 2


def _flat(samples: list[Any]) -> tuple[torch.Tensor, list[Any]]:
    return torch.cat([image.flatten() for image, _ in samples]), [tuple(image.shape) for image, _ in samples]


def test_a_second_epoch_reads_and_announces_nothing(converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make(converted, transform=RECIPES["resize"], cache=tmp_path)
    list(loader)
    for name in ("read", "will_need"):
        monkeypatch.setattr(LocalFiles, name, lambda *arguments: pytest.fail("the dataset was touched"))
    assert sum(len(labels) for _, labels in loader) == NUM_SAMPLES


def test_masks_boxes_and_twins_go_where_the_pixels_go(tmp_path: Path) -> None:
    scenes = convert_scenes(tmp_path / "scenes")
    transform = [T.Resize((60, 50)), T.CenterCrop((48, 44)), T.RandomResizedCrop(30), T.RandomHorizontalFlip()]
    plain, cached = (
        make(scenes, transform=transform, batch_size=4, output="dict", boxes="padded", cache=cache)
        for cache in (None, tmp_path / "cache")
    )
    for _ in range(3):
        for ours, theirs in zip(cached, plain, strict=True):
            assert ours.keys() == theirs.keys() == {*FIELDS, "id"}
            for name, value in ours.items():
                assert torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else value == theirs[name], name
    assert stats(cached).hits == 2 * NUM


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_bad_samples_are_not_kept(tmp_path: Path, on_error: str, num_workers: int) -> None:
    folder = make_folder(tmp_path / "set")
    cut, broken = listing(folder)[4], listing(folder)[20]
    cut.write_bytes(cut.read_bytes()[:300])
    broken.write_bytes(b"no image")
    options: dict[str, Any] = {"transform": RECIPES["resize"], "on_error": on_error, "num_workers": num_workers}
    plain, cached = (make(folder, **options, cache=cache) for cache in (None, tmp_path / "cache"))
    for _ in range(2):
        assert same(copies(cached), copies(plain))
    assert {repr(bad) for bad in cached.bad_samples} == {repr(bad) for bad in plain.bad_samples}
    assert len(cached.bad_samples) == 4
    assert stats(cached).num_kept == NUM_SAMPLES - 2
    raising = make(folder, transform=RECIPES["resize"], cache=tmp_path / "cache")
    with pytest.raises(dp.errors.DecodeError, match=r"not an image|end marker"):
        list(raising)


def test_damaged_images_are_what_they_are_without(tmp_path: Path) -> None:
    """Some do not decode as a whole, others have damage that a crop may miss."""
    folder = make_folder(tmp_path / "set", num=10)
    for number, data in enumerate([*BAD.values(), *DOUBTFUL.values()]):
        (folder / "ant" / f"damaged {number}.jpg").write_bytes(data)
    options: dict[str, Any] = {"transform": TRAIN, "on_error": "skip", "batch_size": 8}
    plain, cached = (make(folder, **options, cache=cache) for cache in (None, tmp_path / "cache"))
    for _ in range(3):
        assert same(copies(cached), copies(plain))
    assert 2 * len(BAD) <= len(plain.bad_samples) == len(cached.bad_samples)


def test_a_full_cache_stays_as_it_is(converted: Path, tmp_path: Path) -> None:
    transform, limit = RECIPES["resize"], 20_000
    cached = make(converted, transform=transform, cache=dp.Cache(tmp_path, limit))
    plain = make(converted, transform=transform)
    for _ in range(3):
        assert same(copies(cached), copies(plain))
    found = stats(cached)
    assert found.capacity == limit
    assert limit / 2 < found.nbytes <= limit
    assert data_file(tmp_path).stat().st_size < limit
    assert 0 < found.num_kept < NUM_SAMPLES
    assert found.hits == 2 * found.num_kept
    assert "takes no more" in "\n".join(dp.explain(cached).lines)


def test_damage_in_the_cache_is_a_miss(converted: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"transform": RECIPES["resize"]}
    list(make(converted, **options, cache=tmp_path))
    path = data_file(tmp_path)
    places = random.Random(0)
    for _ in range(8):
        flip_bit(path, places.randrange(path.stat().st_size))
    cached = make(converted, **options, cache=tmp_path)
    assert same(copies(cached), copies(make(converted, **options)))
    assert 1 <= stats(cached).misses <= 8
    assert stats(cached).hits == NUM_SAMPLES - stats(cached).misses
    list(cached)
    assert stats(cached).hits == 2 * NUM_SAMPLES - stats(cached).misses


@pytest.mark.parametrize("planted", [b"no image", jpeg(3), npy(np.zeros((4, 4), np.uint8)), npy(np.zeros((9, 9, 3), np.float32))])
def test_what_others_put_into_the_cache_is_a_miss(planted: bytes, converted: Path, tmp_path: Path) -> None:
    """Under entries whose checksums are right."""
    options: dict[str, Any] = {"transform": RECIPES["resize"]}
    list(make(converted, **options, cache=tmp_path))
    path = data_file(tmp_path)
    end = path.stat().st_size
    with path.open("ab") as data:
        data.write(planted)
    with path.with_name("index").open("r+b") as index:
        for sample in range(10):
            index.seek(position_of(sample))
            index.write(pack_entry(sample, Entry(end, len(planted), 0, 40, 48, crc32c(planted))))
    cached = make(converted, **options, cache=tmp_path)
    assert same(copies(cached), copies(make(converted, **options)))
    assert stats(cached).misses == 10


def test_a_file_that_changes_is_decoded_anew(tmp_path: Path) -> None:
    """Written over in place, which the times of directories do not show."""
    folder = make_folder(tmp_path / "set", size=(40, 48))
    options: dict[str, Any] = {"transform": RECIPES["resize"], "shuffle": False}
    before = copies(make(folder, **options, cache=tmp_path / "cache"))
    victim = listing(folder)[7]
    victim.write_bytes(jpeg(1000))
    cached = make(folder, **options, cache=tmp_path / "cache")
    after = copies(cached)
    assert same(after, copies(make(folder, **options)))
    assert not same(after, before)
    assert stats(cached).hits == NUM_SAMPLES - 1
    victim.unlink()
    with pytest.raises(dp.errors.MissingDataError):
        list(make(cached.dataset, **options, cache=tmp_path / "cache"))


def test_other_data_and_other_fronts_have_other_caches(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "cache"
    other = make_folder(tmp_path / "other" / "set", size=(40, 48))
    for path, transform in (
        (folder, RECIPES["resize"]),
        (other, RECIPES["resize"]),
        (folder, RECIPES["crop"]),
        (convert(folder, tmp_path / "one"), RECIPES["crop"]),
    ):
        loader = make(path, transform=transform, cache=place)
        list(loader)
        assert stats(loader).hits == 0
    # what follows the front, the order, and what is taken of the dataset have no part in it
    follow = make(folder, transform=[T.CenterCrop((31, 27))], cache=place, seed=9)
    part = make(follow.dataset.select(range(5, 15)), transform=RECIPES["crop"], cache=place)
    (train, validation), *_ = follow.dataset.folds(3)
    copy = make(convert(folder, tmp_path / "two"), transform=RECIPES["crop"], cache=place)  # the same bytes
    loaders = [follow, part, copy, *(make(fold, transform=RECIPES["crop"], cache=place) for fold in (train, validation))]
    for loader in loaders:
        assert sum(len(labels) for _, labels in loader) == stats(loader).hits


def test_folders_that_look_alike_are_told_apart(tmp_path: Path) -> None:
    """By names, sizes and times of their files: as of images in BMP, unpacked from an archive."""
    for name, number in (("one", 0), ("two", 1)):
        path = tmp_path / name / "class" / "image.bmp"
        path.parent.mkdir(parents=True)
        path.write_bytes(encode(picture(number), "BMP"))
        os.utime(path, ns=(0, 0))
    options: dict[str, Any] = {"transform": RECIPES["resize"], "batch_size": 1, "cache": tmp_path / "cache"}
    one, two = (copies(make(tmp_path / name, **options)) for name in ("one", "two"))
    assert not same(one, two)


def test_several_datasets_as_one(folder: Path, uneven: Path, tmp_path: Path) -> None:
    data = dp.mix([folder, uneven], weights=[0.5, 0.5])
    options: dict[str, Any] = {"transform": RECIPES["resize"]}
    plain, cached = make(data, **options), make(data, **options, cache=tmp_path)
    for _ in range(2):
        assert same(copies(cached), copies(plain))
    assert stats(cached).hits >= NUM_SAMPLES


@pytest.mark.nightly
def test_memory_is_shared_by_loaders_ranks_and_processes(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "set")  # no other loader has its cache
    options: dict[str, Any] = {"transform": RECIPES["resize"], "cache": "ram"}
    ranks = [make(path, **options, ranks=(rank, 2)) for rank in range(2)]
    for rank in ranks:
        list(rank)
    assert stats(ranks[0]).num_kept == stats(ranks[1]).num_kept == NUM_SAMPLES
    sent = pickle.loads(pickle.dumps(ranks[1]))
    assert same(copies(sent), copies(make(path, **(options | {"cache": None}), ranks=(1, 2))))
    assert stats(sent).hits == len(sent.dataset) // 2 + 1
    (tmp_path / "sent").write_bytes(pickle.dumps(ranks[0]))
    code = (
        "import pickle, sys\n"
        "loader = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(sum(len(labels) for _, labels in loader), loader.cache_stats.hits)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "sent"], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == (f"{NUM_SAMPLES // 2 + 1} {NUM_SAMPLES // 2 + 1}\n", "")


def test_a_forked_child_goes_on_with_the_cache(converted: Path, tmp_path: Path) -> None:
    loader = make(converted, transform=RECIPES["resize"], cache=tmp_path, num_workers=0)
    expected = [copies(make(converted, transform=RECIPES["resize"], num_workers=0)), copies(loader)][0]
    child = os.fork()
    if child == 0:
        loader.set_epoch(0)
        right = same(copies(loader), expected)
        os._exit(0 if right and stats(loader).hits == NUM_SAMPLES and stats(loader).misses == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_observing_keeps_the_cache(converted: Path, tmp_path: Path) -> None:
    loader, read = make(converted, transform=RECIPES["resize"], cache=tmp_path), []
    list(loader)
    loader.observe(lambda event: read.append(event) if event.stage is dp.Stage.READ else None)
    list(loader)
    assert stats(loader).hits == NUM_SAMPLES
    assert sum(event.num_samples for event in read) == NUM_SAMPLES
    assert sum(event.nbytes for event in read) + NUM_SAMPLES * 48 == stats(loader).nbytes


def test_explain_says_what_is_kept_and_where(converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loader = make(converted, transform=RECIPES["resize"], cache=dp.Cache("disk", 5_000_000))
    (line,) = (line for line in dp.explain(loader).lines if line.startswith("cache"))
    assert f"images behind [Resize(28)], in {tmp_path}/datapipe/decoded/" in line
    assert "has 0 in 0.0 MB of at most 5.0 MB" in line
    (line,) = (line for line in dp.explain(make(converted, transform=TRAIN, cache="ram")).lines if line.startswith("cache"))
    assert "whole decoded images, in memory" in line
    assert make(converted, transform=TRAIN).cache_stats is None
    assert not any(line.startswith("cache") for line in dp.explain(make(converted, transform=TRAIN)).lines)


def test_dali_is_refused(converted: Path) -> None:
    arguments: dict[str, Any] = {"recipe": Recipe.of(TRAIN), "stored_size": None, "has_collate_fn": False, "has_cache": True}
    choice = BackendRequest("auto", **arguments).choose(torch.device("cuda", 0), _NoEvidence())
    assert choice.backend == "images_cpu"
    assert "a cache keeps decoded images" in choice.reason
    try:
        make(converted, transform=TRAIN, backend="dali")
    except dp.errors.DependencyError as exc:
        pytest.skip(str(exc))
    with pytest.raises(dp.errors.OptionError, match=r"backend='dali': a cache keeps decoded images"):
        make(converted, transform=TRAIN, backend="dali", cache="ram")


class _NoEvidence:
    def share_for_dali(self) -> float:
        raise AssertionError("not asked")

    def rates(self) -> list[Any]:
        raise AssertionError("not asked")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cache": "memory"}, "cache is 'memory'; choose 'ram', 'gpu' or 'disk'"),
        ({"cache": "ram", "fields": ["label"], "transform": None}, "cache is for images, and batches have none"),
    ],
)
def test_wrong_arguments_are_refused(converted: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(dp.errors.OptionError, match=problem):
        make(converted, **({"transform": TRAIN} | changes))


def test_a_place_that_cannot_be_had_is_an_error_of_its_own(converted: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    loader = make(converted, transform=TRAIN, cache=tmp_path / "file")
    with pytest.raises(dp.errors.StorageError, match="cannot be written"):
        next(iter(loader))


def test_the_front_is_what_draws_nothing() -> None:
    for transform, num in ((RECIPES["pad, resize, pad"], 3), (RECIPES["nothing else"], 2), (RECIPES["flip first"], 0), ([], 0)):
        recipe = Recipe.of(transform)
        front, behind = recipe.split_front()
        assert list(front.transforms) == transform[:num]
        assert (*front.geometry, *behind.geometry) == recipe.geometry
        assert (front.pixels, front.batch, front.output_dtype) == ((), (), torch.uint8)
        assert (behind.pixels, behind.batch, behind.rest) == (recipe.pixels, recipe.batch, recipe.rest)
