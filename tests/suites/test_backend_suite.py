"""What every image backend promises: same pixels, whatever the block, and bad samples that harm nobody else.

A new backend (or decoder) joins by one entry in ENGINES: a function that makes a block worker.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures import encode, jpeg, picture, quick
from hypothesis import given
from hypothesis import strategies as st

import datapipe as dp
from datapipe.backends.images_cpu import BlockReport, BlockWorker
from datapipe.containers import open_index
from datapipe.decode import DECODER_NAMES
from datapipe.draws import Draws
from datapipe.errors import DecodeError, DependencyError, MissingDataError
from datapipe.fetch.local import LocalFiles
from datapipe.index import Entries, SampleIndex
from datapipe.transforms import Recipe

NUM = 12
SIZE = 24
RECIPES: dict[str, list[object]] = {
    "uint8": [dp.RandomResizedCrop(SIZE), dp.RandomHorizontalFlip()],
    "float32": [
        dp.RandomResizedCrop(SIZE), dp.RandomHorizontalFlip(), dp.ToDtype(torch.float32, scale=True),
        dp.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.1)),
    ],
    "resize, pad and crop": [
        dp.Resize((30, 28)), dp.RandomCrop(SIZE, padding=4), dp.RandomVerticalFlip(), dp.ToDtype(torch.float32),
    ],
}  # fmt: skip
CONTENTS: list[bytes] = [
    jpeg(0), jpeg(1, 64, 40), jpeg(2, subsampling=0), jpeg(3, progressive=True), encode(picture(4), mode="CMYK"),
    encode(picture(5), mode="L"), encode(picture(6), "PNG"), encode(picture(7), "WEBP"), encode(picture(8), "BMP"),
    encode(picture(9), "GIF"), jpeg(10, 25, 90), jpeg(11),
]  # fmt: skip
BAD: dict[str, bytes] = {
    "empty": b"",
    "text": b"<html>not found</html>",
    "cut": CONTENTS[0][: len(CONTENTS[0]) // 2],
    "cut header": CONTENTS[0][:30],
    "png without pixels": CONTENTS[6][:60] + CONTENTS[6][-12:],
}
ENGINES: dict[str, Callable[[Recipe], BlockWorker]] = {
    f"images_cpu, {name}": lambda recipe, name=name: BlockWorker(recipe, LocalFiles(), decoder=name)  # type: ignore[misc]
    for name in DECODER_NAMES
}


@pytest.fixture(params=ENGINES)
def make_worker(request: pytest.FixtureRequest) -> Callable[[Recipe], BlockWorker]:
    make = ENGINES[request.param]
    try:
        make(Recipe.of(None))
    except DependencyError as exc:
        pytest.skip(str(exc))
    return make


def write(root: Path, contents: list[bytes]) -> SampleIndex:
    (root / "class").mkdir(parents=True)
    for number, data in enumerate(contents):
        (root / "class" / f"{number:03d}.jpg").write_bytes(data)
    return open_index(root)


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> SampleIndex:
    return write(tmp_path_factory.mktemp("mixed") / "set", CONTENTS)


def load(
    worker: BlockWorker, recipe: Recipe, index: SampleIndex, ids: list[int], *, cuts: tuple[int, ...] = ()
) -> tuple[torch.Tensor, list[BlockReport]]:
    """The samples' rows, loaded in blocks that end at `cuts`."""
    entries, draws = look_up(index, ids)
    out = torch.full((len(ids), SIZE, SIZE, 3), 77, dtype=recipe.output_dtype)
    reports = []
    for start, stop in itertools.pairwise((0, *cuts, len(ids))):
        reports.append(worker.load(entries, range(start, stop), draws[slice(start, stop)], out[start:stop]))
    return out, reports


def look_up(index: SampleIndex, ids: list[int]) -> tuple[Entries, Draws]:
    array = np.array(ids, np.int64)
    return index.look_up(array, "image"), Draws(3, 1, array)


@pytest.mark.parametrize("name", RECIPES)
def test_pixels_are_those_of_pillow(make_worker: Callable[[Recipe], BlockWorker], name: str, index: SampleIndex) -> None:
    recipe = Recipe.of(RECIPES[name])
    expected, _ = load(BlockWorker(recipe, LocalFiles(), decoder="pillow"), recipe, index, list(range(NUM)))
    found, reports = load(make_worker(recipe), recipe, index, list(range(NUM)))
    assert not reports[0].bad
    assert torch.equal(found, expected)
    assert len({row.tobytes() for row in found.numpy()}) == NUM


@quick
@given(ids=st.lists(st.integers(0, NUM - 1), min_size=1, max_size=10), data=st.data(), name=st.sampled_from(sorted(RECIPES)))
def test_a_sample_is_the_same_in_any_block(index: SampleIndex, ids: list[int], data: st.DataObject, name: str) -> None:
    recipe = Recipe.of(RECIPES[name])
    worker = BlockWorker(recipe, LocalFiles())
    cuts = tuple(sorted(data.draw(st.sets(st.integers(1, len(ids)), max_size=3)) - {len(ids)}))
    alone = torch.cat([load(worker, recipe, index, [sample])[0] for sample in ids])
    assert torch.equal(load(worker, recipe, index, ids, cuts=cuts)[0], alone)


@pytest.mark.parametrize("name", RECIPES)
def test_images_one_by_one_are_those_of_the_block(
    make_worker: Callable[[Recipe], BlockWorker], name: str, index: SampleIndex
) -> None:
    recipe = Recipe.of(RECIPES[name])
    worker = make_worker(recipe)
    expected, _ = load(worker, recipe, index, list(range(NUM)))
    entries, draws = look_up(index, list(range(NUM)))
    images, report = worker.load_each(entries, range(2, NUM), draws[slice(2, NUM)])
    assert not report.bad
    assert all(image is not None and torch.equal(image, row) for image, row in zip(images, expected[2:], strict=True))


def test_without_geometry_sizes_stay(make_worker: Callable[[Recipe], BlockWorker], index: SampleIndex) -> None:
    entries, draws = look_up(index, [0, 1, 10])
    images, _ = make_worker(Recipe.of(None)).load_each(entries, range(3), draws)
    assert [tuple(image.shape) for image in images if image is not None] == [(40, 48, 3), (64, 40, 3), (25, 90, 3)]


@pytest.mark.parametrize("name", ["uint8", "float32"])
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("places", [(0,), (3,), (6,), (0, 1), (5, 6), (0, 3, 6), tuple(range(7))], ids=str)
def test_bad_samples_are_named_and_harm_nobody(
    make_worker: Callable[[Recipe], BlockWorker], name: str, kind: str, places: tuple[int, ...], tmp_path: Path
) -> None:
    recipe = Recipe.of(RECIPES[name])
    good = [jpeg(number) for number in range(7)]
    worker = make_worker(recipe)
    expected, _ = load(worker, recipe, write(tmp_path / "good", good), list(range(7)))
    damaged = write(tmp_path / "bad", [BAD[kind] if number in places else data for number, data in enumerate(good)])
    found, reports = load(worker, recipe, damaged, list(range(7)))
    assert sorted(bad.row for bad in reports[0].bad) == list(places)
    assert all(isinstance(bad.reason, DecodeError) for bad in reports[0].bad)
    for row in set(range(7)) - set(places):
        assert torch.equal(found[row], expected[row])
    images, report = worker.load_each(*look_up(damaged, list(range(7)))[:1], range(7), look_up(damaged, list(range(7)))[1])
    assert sorted(bad.row for bad in report.bad) == list(places)
    assert [row for row, image in enumerate(images) if image is None] == list(places)


def test_a_file_that_is_gone_is_no_bad_sample(make_worker: Callable[[Recipe], BlockWorker], tmp_path: Path) -> None:
    recipe = Recipe.of(RECIPES["uint8"])
    index = write(tmp_path / "set", CONTENTS[:3])
    (tmp_path / "set" / "class" / "001.jpg").unlink()
    with pytest.raises(MissingDataError, match=r"001\.jpg"):
        load(make_worker(recipe), recipe, index, [0, 1, 2])


def test_reports_say_what_was_read_and_how_long_it_took(make_worker: Callable[[Recipe], BlockWorker], index: SampleIndex) -> None:
    import time

    recipe = Recipe.of(RECIPES["float32"])
    worker = make_worker(recipe)
    start_ns = time.perf_counter_ns()
    _, (report,) = load(worker, recipe, index, list(range(NUM)))
    elapsed_ns = time.perf_counter_ns() - start_ns
    assert report.nbytes == sum(map(len, CONTENTS))
    assert min(report.read_ns, report.decode_ns, report.augment_ns) > 0
    assert report.read_ns + report.decode_ns + report.augment_ns <= elapsed_ns


def test_the_next_block_does_not_disturb_the_last(make_worker: Callable[[Recipe], BlockWorker], index: SampleIndex) -> None:
    """Workers use their memory again; what they wrote must not live in it."""
    recipe = Recipe.of(RECIPES["float32"])
    worker = make_worker(recipe)
    first, _ = load(worker, recipe, index, [0, 1, 2])
    kept = first.clone()
    load(worker, recipe, index, [5, 6, 7, 8, 9])
    assert torch.equal(first, kept)
