"""Which cuts the graph takes, and that what is made by hand in its place is made by the same interpolation."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("nvidia.dali", reason="DALI is not installed")

from fixtures import encode

from datapipe.codecs.decode import checked_header
from datapipe.fetch.local import LocalFiles
from datapipe.kinds.images.dali.gate import choose_cut_form
from datapipe.kinds.images.dali.settings import GraphOptions
from datapipe.kinds.images.dali_stage import Fetched, FetchWorker
from datapipe.kinds.images.images_cpu import BlockReport, BlockWorker, EncodedSample, sizes_of
from datapipe.order.draws import Draws
from datapipe.transforms import CenterCrop, RandomResizedCrop, Recipe, Resize

CUBIC, LINEAR = Recipe.of(RandomResizedCrop(24, interpolation="bicubic")), Recipe.of(RandomResizedCrop(24))


def test_the_interpolation_is_part_of_the_form() -> None:
    assert choose_cut_form(CUBIC, None).interpolation == "bicubic"
    assert choose_cut_form(LINEAR, None).interpolation == "bilinear"
    assert choose_cut_form(Recipe.of([Resize(30, "bicubic"), CenterCrop(24)]), None).interpolation == "bicubic"
    assert choose_cut_form(Recipe.of(CenterCrop(24)), None).interpolation == "bilinear"


def test_cuts_of_another_interpolation_are_taken_where_nothing_is_resampled() -> None:
    sizes = np.array([(24, 24), (40, 50)])
    chain = Recipe.of(Resize((24, 24), "bicubic")).draw_cuts(Draws(0, 0, np.arange(2)), sizes)
    assert choose_cut_form(LINEAR, None).takes(chain).tolist() == [True, False]
    assert choose_cut_form(CUBIC, None).takes(chain).tolist() == [True, True]


@pytest.mark.parametrize("recipe", [CUBIC, LINEAR], ids=["bicubic", "bilinear"])
def test_what_is_taken_back_is_made_as_it_was_asked_for(recipe: Recipe) -> None:
    data = encode(np.random.default_rng(0).integers(0, 256, (60, 70, 3), dtype=np.uint8), "PNG")
    sample = EncodedSample(0, data, checked_header(data))
    worker = BlockWorker(recipe, LocalFiles())
    cuts = recipe.draw_cuts(Draws(0, 0, np.array([5])), sizes_of([sample]))
    graph = GraphOptions(24, 24, 1, None, choose_cut_form(recipe, None), True, num_threads=1, hw_decoder_load=0.0)
    batch = Fetched(1, 24, 24)
    batch.give(0, [sample], cuts[0])
    assert FetchWorker(worker, recipe.geometry_alone(), graph).take_over(batch, [0]) == []
    expected = np.empty((1, 24, 24, 3), np.uint8)
    worker.cut([sample], cuts, expected, BlockReport())
    np.testing.assert_array_equal(batch.by_hand[0], expected[0])
