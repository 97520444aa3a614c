"""Processors give the tokens, grids and pixels of transformers' own, bit for bit, read from the same files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("transformers")
from vision_models import FAMILIES, image_processor, model_folder, text_processor

from datapipe.codecs.model_folder import ModelFolder
from datapipe.errors import DependencyError, FormatError, MissingDataError, OptionError
from datapipe.processors.pixels import Pixels
from datapipe.processors.processor import Processor
from datapipe.processors.reading import read_processor

SIZES = [  # (width, height)
    (500, 375), (375, 500), (64, 64), (97, 31), (30, 200), (1, 1), (336, 112), (113, 111), (640, 90), (251, 196), (172, 237),
]  # fmt: skip
NESTED = ("idefics3", "idefics3_whole", "gemma3")  # whose processors take a list of images for each text


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: model_folder(root / family, family) for family in FAMILIES}


@pytest.fixture(scope="module")
def processors(folders: dict[str, Path]) -> dict[str, Processor]:
    return {family: read_processor(path) for family, path in folders.items()}


def pictures() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for width, height in SIZES]


def has_lanczos() -> bool:
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def grids_of(processor: Processor) -> np.ndarray[Any, Any]:
    widths, heights = np.array(SIZES).T
    return processor.grids(widths, heights)


@pytest.mark.parametrize("family", FAMILIES)
def test_pixels_are_those_of_transformers(processors: dict[str, Processor], family: str) -> None:
    if family.startswith("idefics3") and not has_lanczos():
        with pytest.raises(DependencyError, match="has no Lanczos filter: pip install 'torch>="):
            Pixels("lanczos", (0.5,) * 3, (0.5,) * 3, 1 / 255).resized(pictures()[0], 10, 10)
        return
    processor, theirs = processors[family], image_processor(family)
    for picture, grid in zip(pictures(), grids_of(processor), strict=True):
        (num,) = processor.num_units(grid[None]).tolist()
        units = torch.zeros((num, *processor.unit), dtype=torch.uint8)
        processor.place(picture, *grid.tolist(), units)
        expected = theirs(images=[picture], return_tensors="pt", input_data_format="channels_last")
        values = processor.values(units, torch.empty((num, *processor.value)))
        assert torch.equal(processor.batched(values), expected["pixel_values"])
        for name, value in processor.inputs(grid[None]).items():
            assert np.array_equal(value, expected[name])


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_transformers(processors: dict[str, Processor], folders: dict[str, Path], family: str) -> None:
    """A text with an image becomes the same ids, whatever stands around the image."""
    processor, theirs = processors[family], text_processor(folders[family], family)
    written, kept, token, _ = ModelFolder(folders[family]).image_tokens
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folders[family] / "tokenizer.json"))
    own = tokenizer.token_to_id(token)
    for picture, grid in zip(pictures(), grids_of(processor), strict=True):
        text = f"a dog\n{written}\nlooks up {written}"
        image = Image.fromarray(picture)  # of an array transformers would guess which side has the channels
        expected = theirs(text=[text], images=[[image, image]] if family in NESTED else [image, image])
        found: list[int] = []
        for one in tokenizer.encode(text.replace(written, kept), add_special_tokens=False).ids:
            found += processor.tokens(*grid.tolist()).tolist() if one == own else [one]
        assert found == np.asarray(expected["input_ids"][0]).tolist()
        assert processor.num_tokens(grid[None]).tolist() == [len(processor.tokens(*grid.tolist()))]


@pytest.mark.parametrize("family", FAMILIES)
def test_many_sizes_at_once_are_as_each_alone(processors: dict[str, Processor], family: str) -> None:
    processor, theirs = processors[family], image_processor(family)
    rng = np.random.default_rng(1)
    widths, heights = np.exp(rng.uniform(0, 8.5, (2, 3000))).astype(np.int64)
    grids = processor.grids(widths, heights)
    refused = grids[:, 0] < 0
    expected_num = processor.num_units(grids)
    for width, height, grid, num, is_refused in zip(
        widths.tolist(), heights.tolist(), grids, expected_num.tolist(), refused, strict=True
    ):
        if is_refused:
            assert family in ("qwen", "qwen3")
            assert max(width, height) / min(width, height) > 200
            assert f"{width} x {height} pixels" in processor.refusal(width, height)
        elif hasattr(theirs, "get_number_of_image_patches"):
            found = theirs.get_number_of_image_patches(height, width, {})
            of_cut = num if num > 1 else 0  # where Idefics3 cuts nothing, it counts nothing
            assert (found == num) if isinstance(found, int) else (found == (of_cut, *grid.tolist()))
        else:
            assert num == 1
    lengths = processor.num_tokens(grids[~refused])
    some = rng.integers(0, len(lengths), 50)
    assert lengths[some].tolist() == [len(processor.tokens(*grid)) for grid in grids[~refused][some].tolist()]


def test_a_folder_may_have_its_configuration_in_another_file(folders: dict[str, Path], tmp_path: Path) -> None:
    """Newer folders hold the processor of images within processor_config.json."""
    path = model_folder(tmp_path / "new", "internvl")
    of_images = json.loads((path / "preprocessor_config.json").read_text())
    (path / "preprocessor_config.json").unlink()
    (path / "processor_config.json").write_text(json.dumps({"image_seq_length": 16, "image_processor": of_images}))
    assert read_processor(path).name == read_processor(folders["internvl"]).name


@pytest.mark.parametrize(
    ("family", "change", "problem"),
    [
        ("qwen", {"image_processor_type": "FuyuImageProcessor"}, "is of FuyuImageProcessor, which is not known here; known"),
        ("qwen", {"patch_size": 0}, "patch_size is 0; it must be a whole number from 1 to"),
        ("qwen", {"size": {"shortest_edge": 10, "longest_edge": 5}}, "images have from 10 to 5 pixels"),
        ("qwen", {"image_std": [1, 2]}, "no image_mean and image_std of three channels"),
        ("qwen", {"do_rescale": False}, "do_rescale is false"),
        ("qwen", {"resample": 5}, "resample is 5; images are resized by lanczos, bilinear, bicubic"),
        ("internvl", {"size": {"height": 112, "width": 56}}, "tiles are squares"),
        ("idefics3", {"size": {"longest_edge": 8000}}, "must say longest_edge, of 4096 pixels at most"),
        ("llava", {"do_center_crop": False}, "do_center_crop is false"),
        ("gemma3", {"do_pan_and_scan": True}, "do_pan_and_scan is true"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(tmp_path: Path, family: str, change: dict[str, Any], problem: str) -> None:
    path = model_folder(tmp_path / "model", family)
    file = path / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(OptionError, match=re.escape(str(file)) + ".*" + re.escape(problem)):
        read_processor(path)


def test_folders_that_are_none_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"has no preprocessor_config\.json and no processor_config\.json"):
        read_processor(tmp_path)
    path = model_folder(tmp_path / "model", "qwen")
    (path / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(MissingDataError, match="needs the tokenizer of its model"):
        read_processor(path)
    from tokenizers_of_tests import byte_level

    byte_level(path)
    with pytest.raises(FormatError, match=r"has no token '<\|image_pad\|>', which stands for images"):
        read_processor(path)
    (path / "preprocessor_config.json").write_text("[1")
    with pytest.raises(FormatError, match="not JSON"):
        read_processor(path)
