"""A block on CPU threads: read, and its geometry drawn, at once, whatever else becomes of its samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fixtures import jpeg

from datapipe import transforms as T
from datapipe.fetch.local import LocalFiles
from datapipe.index.sample_index import SampleIndex
from datapipe.kinds.images import images_cpu
from datapipe.kinds.images.images_cpu import BlockReport, BlockWorker
from datapipe.opening.samples import open_index
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe

NUM, SIZE, BAD = 30, 24, (7, 8, 21)
RECIPES: dict[str, list[object]] = {
    "uint8": [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip()],
    "float32": [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)],
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SampleIndex:
    root = tmp_path_factory.mktemp("block")
    (root / "class").mkdir()
    for number in range(NUM):
        data = b"no image" if number in BAD else jpeg(number, 40 + number, 60)
        (root / "class" / f"{number:03d}.jpg").write_bytes(data)
    return open_index(root)


def load(recipe: Recipe, index: SampleIndex, rows: range) -> tuple[torch.Tensor, BlockReport]:
    ids = np.arange(NUM)
    draws, out = Draws(3, 1, ids), torch.zeros((len(rows), SIZE, SIZE, 3), dtype=recipe.output_dtype)
    worker, some = BlockWorker(recipe, LocalFiles()), slice(rows.start, rows.stop)
    return out, worker.load(index.look_up(ids, "image"), rows, draws[some], out)


@pytest.fixture(params=[images_cpu.MAX_HELD_NBYTES, 4000, 1], ids=["at once", "in parts", "in small parts"])
def _held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_cpu, "MAX_HELD_NBYTES", request.param)


@pytest.mark.usefixtures("_held")
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("rows", [range(NUM), range(3, 28), range(5, 9)], ids=str)
def test_rows_are_what_they_are_alone(name: str, rows: range, index: SampleIndex) -> None:
    recipe = Recipe.of(RECIPES[name])
    found, report = load(recipe, index, rows)
    assert sorted(bad.row + rows.start for bad in report.bad) == [row for row in BAD if row in rows]
    assert sorted(report.sizes) == [row - rows.start for row in rows if row not in BAD]
    for row in set(rows) - set(BAD):
        alone, _ = load(recipe, index, range(row, row + 1))
        assert torch.equal(found[row - rows.start], alone[0]), row


def test_geometry_is_drawn_once_for_a_block(index: SampleIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs tens of microseconds, for one image or for many."""
    drawn: list[int] = []
    draw_cuts: Callable[..., object] = Recipe.draw_cuts
    monkeypatch.setattr(Recipe, "draw_cuts", lambda *args: (drawn.append(len(args[1])), draw_cuts(*args))[1])
    load(Recipe.of(RECIPES["float32"]), index, range(NUM))
    assert drawn == [NUM - len(BAD)]


def test_bytes_held_are_bounded(index: SampleIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where images are large, a block is worked on in parts, of eight at least."""
    drawn: list[int] = []
    draw_cuts: Callable[..., object] = Recipe.draw_cuts
    monkeypatch.setattr(Recipe, "draw_cuts", lambda *args: (drawn.append(len(args[1])), draw_cuts(*args))[1])
    monkeypatch.setattr(images_cpu, "MAX_HELD_NBYTES", 1)
    load(Recipe.of(RECIPES["float32"]), index, range(NUM))
    assert drawn == [7, 7, 7, 6]
