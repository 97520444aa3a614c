"""The contract of every image backend: the same pixels in any block, and bad samples that do not affect others.

A new backend (or decoder) joins by one entry in ENGINES.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
import torch
from fixtures import convert, encode, jpeg, picture, quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe import transforms as T
from datapipe.codecs.decode import DECODER_NAMES
from datapipe.errors import DecodeError, DependencyError, MissingDataError, MissingSampleError
from datapipe.fetch.local import LocalFiles
from datapipe.index.entries import Entries
from datapipe.index.sample_index import SampleIndex
from datapipe.kinds.images.dali.gate import choose_cut_form
from datapipe.kinds.images.dali.installation import installation
from datapipe.kinds.images.dali.settings import GraphOptions
from datapipe.kinds.images.dali_stage import DaliStage, Fetched, FetchWorker
from datapipe.kinds.images.images_cpu import BlockReport, BlockWorker
from datapipe.opening.samples import open_index
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe

NUM = 12
SIZE = 24
RECIPES: dict[str, list[object]] = {
    "uint8": [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip()],
    "float32": [
        T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True),
        T.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.1)),
    ],
    "resize, pad and crop": [
        T.Resize((30, 28)), T.RandomCrop(SIZE, padding=4), T.RandomVerticalFlip(), T.ToDtype(torch.float32),
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


class Worker(Protocol):
    def load(self, entries: Entries, rows: range, draws: Draws, out: torch.Tensor) -> BlockReport: ...


class DaliWorker:
    """Loads a block as if it were a batch, by way of DALI."""

    def __init__(self, recipe: Recipe) -> None:
        installation()
        geometry, size = recipe.geometry_alone(), recipe.check_equal_sizes()
        graph = GraphOptions(*size, 8, None, choose_cut_form(recipe, None), True, 2, 0.0)
        self._recipe, self._size, self._stage = recipe, size, DaliStage(graph, num_pipelines=1)
        self._worker = FetchWorker(BlockWorker(geometry, LocalFiles()), geometry, graph)

    def load(self, entries: Entries, rows: range, draws: Draws, out: torch.Tensor) -> BlockReport:
        batch = Fetched(len(rows), *self._size)
        report = self._worker.load(entries, rows, draws, batch, 0)
        start_ns = time.perf_counter_ns()
        pipeline = self._stage.lanes.pool.borrow()
        pixels, _ = self._stage.run(batch, pipeline, self._worker, stream=None, settle=report.bad.append)
        self._stage.lanes.pool.give_back(pipeline)
        block = torch.zeros((len(rows), *self._size, 3), dtype=torch.uint8) if pixels is None else pixels
        for row, image in batch.by_hand.items():
            block[row] = torch.from_numpy(image)
        augment_ns = time.perf_counter_ns()
        self._recipe.run_pixels(block, draws, out)
        report.decode_ns += augment_ns - start_ns
        report.augment_ns = time.perf_counter_ns() - augment_ns
        return report


@dataclass(frozen=True)
class Engine:
    """A backend, and how far its pixels may be from Pillow's decoding and torch's resize, of 255."""

    make: Callable[[Recipe], Worker]
    largest: float = 0.0
    mean: float = 0.0


# DALI repeats the pixels of a region's border where the filter reaches beyond it, torch leaves them out.
ENGINES: dict[str, Engine] = {
    f"images_cpu, {name}": Engine(lambda recipe, name=name: BlockWorker(recipe, LocalFiles(), decoder=name))  # type: ignore[misc]
    for name in DECODER_NAMES
} | {"dali": Engine(DaliWorker, largest=8, mean=0.3)}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    chosen = ENGINES[request.param]
    try:
        chosen.make(Recipe.of(RECIPES["uint8"]))
    except DependencyError as exc:
        pytest.skip(str(exc))
    return chosen


@pytest.fixture
def make_worker(engine: Engine) -> Callable[[Recipe], Worker]:
    return engine.make


@pytest.fixture
def make_block_worker(make_worker: Callable[[Recipe], Worker]) -> Callable[[Recipe], BlockWorker]:
    """Of those engines that can load images one by one."""
    if not isinstance(make_worker(Recipe.of(RECIPES["uint8"])), BlockWorker):
        pytest.skip("makes images of one size only")
    return make_worker  # type: ignore[return-value]


def write(root: Path, contents: list[bytes]) -> SampleIndex:
    (root / "class").mkdir(parents=True)
    for number, data in enumerate(contents):
        (root / "class" / f"{number:03d}.jpg").write_bytes(data)
    return open_index(root)


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> SampleIndex:
    return write(tmp_path_factory.mktemp("mixed") / "set", CONTENTS)


def load(
    worker: Worker, recipe: Recipe, index: SampleIndex, ids: list[int], *, cuts: tuple[int, ...] = ()
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
def test_pixels_are_those_of_pillow(engine: Engine, name: str, index: SampleIndex) -> None:
    recipe = Recipe.of(RECIPES[name])
    expected, _ = load(BlockWorker(recipe, LocalFiles(), decoder="pillow"), recipe, index, list(range(NUM)))
    found, reports = load(engine.make(recipe), recipe, index, list(range(NUM)))
    assert not reports[0].bad
    unit = 255 * 0.1 if name == "float32" else 1.0  # by the smallest std
    difference = (found.float() - expected.float()).abs() * unit
    assert float(difference.max()) <= engine.largest
    assert float(difference.mean()) <= engine.mean
    assert len({row.tobytes() for row in found.numpy()}) == NUM


@pytest.mark.daily(1)
@quick
@given(ids=st.lists(st.integers(0, NUM - 1), min_size=1, max_size=10), data=st.data(), name=st.sampled_from(sorted(RECIPES)))
def test_a_sample_is_the_same_in_any_block(
    make_worker: Callable[[Recipe], Worker], index: SampleIndex, ids: list[int], data: st.DataObject, name: str
) -> None:
    recipe = Recipe.of(RECIPES[name])
    worker = make_worker(recipe)
    cuts = tuple(sorted(data.draw(st.sets(st.integers(1, len(ids)), max_size=3)) - {len(ids)}))
    alone = torch.cat([load(worker, recipe, index, [sample])[0] for sample in ids])
    assert torch.equal(load(worker, recipe, index, ids, cuts=cuts)[0], alone)


@pytest.mark.parametrize("name", RECIPES)
def test_images_one_by_one_are_those_of_the_block(
    make_block_worker: Callable[[Recipe], BlockWorker], name: str, index: SampleIndex
) -> None:
    recipe = Recipe.of(RECIPES[name])
    worker = make_block_worker(recipe)
    expected, _ = load(worker, recipe, index, list(range(NUM)))
    entries, draws = look_up(index, list(range(NUM)))
    images, report = worker.load_each(entries, range(2, NUM), draws[slice(2, NUM)])
    assert not report.bad
    assert all(image is not None and torch.equal(image, row) for image, row in zip(images, expected[2:], strict=True))


def test_without_geometry_sizes_stay(make_block_worker: Callable[[Recipe], BlockWorker], index: SampleIndex) -> None:
    entries, draws = look_up(index, [0, 1, 10])
    images, _ = make_block_worker(Recipe.of(None)).load_each(entries, range(3), draws)
    assert [tuple(image.shape) for image in images if image is not None] == [(40, 48, 3), (64, 40, 3), (25, 90, 3)]


@pytest.mark.daily(26)
@pytest.mark.parametrize("name", ["uint8", "float32"])
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("places", [(0,), (3,), (6,), (0, 1), (5, 6), (0, 3, 6), tuple(range(7))], ids=str)
def test_bad_samples_are_named_and_harm_nobody(
    make_worker: Callable[[Recipe], Worker], name: str, kind: str, places: tuple[int, ...], tmp_path: Path
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
    if isinstance(worker, BlockWorker):
        entries, draws = look_up(damaged, list(range(7)))
        images, report = worker.load_each(entries, range(7), draws)
        assert sorted(bad.row for bad in report.bad) == list(places)
        assert [row for row, image in enumerate(images) if image is None] == list(places)


def test_a_loose_file_that_is_gone_is_a_bad_sample(make_worker: Callable[[Recipe], Worker], tmp_path: Path) -> None:
    recipe = Recipe.of(RECIPES["uint8"])
    index = write(tmp_path / "set", CONTENTS[:3])
    (tmp_path / "set" / "class" / "001.jpg").unlink()
    _, (report,) = load(make_worker(recipe), recipe, index, [0, 1, 2])
    assert [bad.row for bad in report.bad] == [1]
    assert isinstance(report.bad[0].reason, MissingSampleError)


def test_a_shard_that_is_gone_is_no_bad_sample(make_worker: Callable[[Recipe], Worker], tmp_path: Path) -> None:
    recipe = Recipe.of(RECIPES["uint8"])
    write(tmp_path / "set", CONTENTS[:3])
    index = open_index(convert(tmp_path / "set", tmp_path / "shards"))
    (shard,) = (tmp_path / "shards").glob("*.tar")
    shard.unlink()
    with pytest.raises(MissingDataError, match=rf"{shard.name}: is missing"):
        load(make_worker(recipe), recipe, index, [0, 1, 2])


def test_reports_say_what_was_read_and_how_long_it_took(make_worker: Callable[[Recipe], Worker], index: SampleIndex) -> None:
    recipe = Recipe.of(RECIPES["float32"])
    worker = make_worker(recipe)
    start_ns = time.perf_counter_ns()
    _, (report,) = load(worker, recipe, index, list(range(NUM)))
    elapsed_ns = time.perf_counter_ns() - start_ns
    assert report.nbytes == sum(map(len, CONTENTS))
    assert min(report.read_ns, report.decode_ns, report.augment_ns) > 0
    assert report.read_ns + report.decode_ns + report.augment_ns <= elapsed_ns


def test_the_next_block_does_not_disturb_the_last(make_worker: Callable[[Recipe], Worker], index: SampleIndex) -> None:
    """Workers use their memory again; what they wrote must not live in it."""
    recipe = Recipe.of(RECIPES["float32"])
    worker = make_worker(recipe)
    first, _ = load(worker, recipe, index, [0, 1, 2])
    kept = first.clone()
    load(worker, recipe, index, [5, 6, 7, 8, 9])
    assert torch.equal(first, kept)
