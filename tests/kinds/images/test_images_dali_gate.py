"""What DALI may see: which files, which geometry, and that nothing that passes takes its process down."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from encoded_images import BY_HAND, FOR_DALI, HEIGHT, PIXELS, WIDTH, jpeg_with_frame, png_block, png_with_wrong_crc, whole
from fixtures import encode

import datapipe as dp
from datapipe import transforms as T
from datapipe.codecs.decode import checked_header, open_decoder
from datapipe.codecs.probe import probe
from datapipe.kinds.images.dali.gate import CutForm, can_decode, choose_cut_form
from datapipe.kinds.images.dali.pipeline import DaliPipeline, RunError
from datapipe.kinds.images.dali.settings import GraphOptions
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe

pytest.importorskip("nvidia.dali", reason="DALI is not installed")


# -- the gate --------------------------------------------------------------------------------------


def test_what_dali_may_see_it_decodes_as_pillow_does() -> None:
    decode = open_decoder("pillow")
    headers = {name: checked_header(data) for name, data in FOR_DALI.items()}
    refused = [name for name, data in FOR_DALI.items() if not can_decode(data, headers[name])]
    assert refused == []
    options = GraphOptions(HEIGHT, WIDTH, len(FOR_DALI), None, CutForm(False, (0, 0, 0)), True, 2, 0.0)
    images = DaliPipeline(options).run(list(FOR_DALI.values()), whole(len(FOR_DALI)), None)[0]
    differing = [
        name for row, (name, data) in enumerate(FOR_DALI.items()) if (images[row].numpy() != decode(data, headers[name])).any()
    ]
    assert differing == []


@pytest.mark.parametrize("name", BY_HAND)
def test_what_dali_decodes_otherwise_is_made_by_hand(name: str) -> None:
    data = BY_HAND[name]
    header = checked_header(data)
    assert not can_decode(data, header)
    assert open_decoder()(data, header).shape == (HEIGHT, WIDTH, 3)


def test_twelve_bits_are_kept_from_dali() -> None:
    data = jpeg_with_frame(0xC1, 12)
    assert not can_decode(data, probe(data))


def test_damage_that_dali_passes_over_is_kept_from_it() -> None:
    """Pillow, which refuses the last two, decides."""
    good, png = encode(PIXELS), FOR_DALI["png"]
    junk = good[:20] + b"junk" + good[20:]
    stray_marker = good[:-200] + b"\xff\x3a" + good[-198:]
    wrong_checksum = png[:33] + png_block(b"gAMA", b"\0\0\xb1\x8f")[:-1] + b"!" + png[33:]
    assert can_decode(good, probe(good))
    assert can_decode(png, probe(png))
    for data in (junk, stray_marker, wrong_checksum):
        assert not can_decode(data, probe(data))


def test_doubts_of_nvimagecodecs_parser_count() -> None:
    """About the size, a region beyond which takes the process down; and about what it has no type for."""
    data = FOR_DALI["png"]
    header = checked_header(data)
    assert can_decode(data, header)
    assert not can_decode(data, header._replace(height=header.height + 1))
    assert not can_decode(data, header._replace(width=header.width + 1))
    assert not can_decode(BY_HAND["bmp, 16 bits"], header)


def test_a_png_that_dali_alone_refuses() -> None:
    """Our example of one, for the loader's tests."""
    data = png_with_wrong_crc()
    header = checked_header(data)
    assert can_decode(data, header)
    assert np.array_equal(open_decoder()(data, header), PIXELS)
    options = GraphOptions(HEIGHT, WIDTH, 1, None, CutForm(False, (0, 0, 0)), True, 2, 0.0)
    with pytest.raises(RunError, match="Failed to decode sample #0"):
        DaliPipeline(options).run([data], whole(1), None)


# -- which geometry --------------------------------------------------------------------------------


@pytest.mark.parametrize("transforms", [
    [T.RandomCrop(32)], [T.RandomCrop(32, padding=4)], [T.RandomCrop(1800)], [T.Pad(4), T.RandomCrop(32)],
    [T.Resize(256), T.CenterCrop(224)], [T.CenterCrop(44), T.Resize((24, 24))],
], ids=str)  # fmt: skip
def test_recipes_that_some_images_do_not_fit_are_taken(transforms: list[object]) -> None:
    """A crop that some of the sizes tried are too small for; a crop that pads some images before a resize."""
    assert isinstance(choose_cut_form(Recipe.of(transforms), None), CutForm)


def test_an_image_size_that_fits_no_crop_is_said() -> None:
    with pytest.raises(dp.errors.OptionError, match=r"RandomCrop\(32\): an image of 8 x 8 pixels"):
        choose_cut_form(Recipe.of([T.RandomCrop(32)]), (8, 8))


def test_geometry_of_two_resizes_is_refused() -> None:
    with pytest.raises(dp.errors.OptionError, match=r"resamples more than once .* pass backend='images_cpu'"):
        choose_cut_form(Recipe.of([T.RandomResizedCrop(40), T.Resize((24, 24))]), None)


def test_each_sample_fits_or_not_by_itself() -> None:
    recipe = Recipe.of([T.CenterCrop(24)])
    form = choose_cut_form(recipe, (40, 48))
    assert not form.is_windowed
    sizes = np.array([(40, 48), (20, 48), (24, 24), (23, 24)])
    chain = recipe.draw_cuts(Draws(0, 0, np.arange(4)), sizes)
    assert form.takes(chain).tolist() == [True, False, True, False]
    assert form.takes([*chain, *chain]).tolist() == [False] * 4
    filled = CutForm(is_windowed=True, fill=(1, 2, 3))
    assert filled.takes(chain).tolist() == [True, False, True, False]
    assert CutForm(is_windowed=True, fill=(0, 0, 0)).takes(chain).all()


# -- bytes that only look like images ----------------------------------------------------------------


@pytest.mark.nightly
def test_no_damaged_header_takes_the_process_down(run_fuzz: Callable[..., str]) -> None:
    closing = run_fuzz("--inputs", "700")
    assert "of 700 inputs" in closing
    assert int(closing.split()[0]) > 160, f"few came as far as DALI: {closing}"


@pytest.fixture
def run_fuzz() -> Callable[..., str]:
    """Runs the fuzzer in a process of its own: DALI dies of what it should not have seen."""

    def run(*arguments: str) -> str:
        here = Path(__file__).parent
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (here.parents[2], here, here.parents[1])))}
        command = [sys.executable, str(here / "fuzz_images_dali.py"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout[-500:]} {done.stderr[-1500:]}"
        return done.stdout.splitlines()[-1]

    return run
