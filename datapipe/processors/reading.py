"""Read a model's processor from its `preprocessor_config.json`: numbers alone, no code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from datapipe.codecs.model_folder import ModelFolder
from datapipe.core.checks import path_name
from datapipe.errors import OptionError
from datapipe.processors.fixed import FixedProcessor
from datapipe.processors.patches import PatchProcessor
from datapipe.processors.pixels import Filter, Pixels
from datapipe.processors.processor import Processor
from datapipe.processors.tiles import CanvasProcessor, SplitProcessor

_MOST_LONGEST = 4096  # pixels, beyond which transformers makes images smaller once more
_MAX_TOKENS = 1 << 16  # of a tile


def read_processor(path: str | os.PathLike[str]) -> Processor:
    """Return the processor of the model in a folder.

    Raises MissingDataError, FormatError or OptionError for a folder that has none, or one that is not known here;
    DependencyError without the package tokenizers.
    """
    model = ModelFolder(Path(path_name(path, "processor")))
    token = model.image_tokens.token  # which refuses what is not known
    return _PROCESSORS[model.type](model, token)


def _patches(model: ModelFolder, token: str) -> Processor:
    size = model.sides("size", {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280})
    least, most = (
        model.of_images.get(name) or size.get(side)
        for name, side in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
    )
    if not isinstance(least, int) or not isinstance(most, int) or not 0 < least <= most:
        raise OptionError(f"{model.where}: images have from {least!r:.20} to {most!r:.20} pixels; these must be whole numbers")
    return PatchProcessor(
        patch=model.whole("patch_size", 14),
        merge=model.whole("merge_size", 2),
        frames=model.whole("temporal_patch_size", 2),
        least=least,
        most=most,
        pixels=_pixels(model, "bicubic"),
        id=model.ids(token)[0],
    )


def _canvas(model: ModelFolder, token: str) -> Processor:
    size = model.sides("size", {"height": 448, "width": 448})
    if size.get("height") != size.get("width") or "height" not in size:
        raise OptionError(f"{model.where}: size is {size}; tiles are squares")
    around = model.token("start_image_token", "<img>"), model.token("end_image_token", "</img>")
    own, *others = model.ids(token, *around)
    return CanvasProcessor(
        side=size["height"],
        least=model.whole("min_patches", 1),
        most=model.whole("max_patches", 12, most=256),
        pixels=_pixels(model, "bicubic"),
        per_tile=model.whole("image_seq_length", 256, most=_MAX_TOKENS),
        id=own,
        around=(others[0], others[1]),
    )


def _split(model: ModelFolder, token: str) -> Processor:
    own, before, whole = model.ids(token, "<fake_token_around_image>", "<global-img>")
    longest = model.sides("size", {"longest_edge": 4 * 364}).get("longest_edge")
    side = model.sides("max_image_size", {"longest_edge": 364}).get("longest_edge")
    if longest is None or side is None or longest > _MOST_LONGEST:
        raise OptionError(f"{model.where}: size and max_image_size must say longest_edge, of {_MOST_LONGEST} pixels at most")
    encode, most = model.encoder(), -(-longest // side)
    return SplitProcessor(
        longest=longest,
        side=side,
        pixels=_pixels(model, "lanczos"),
        per_tile=model.whole("image_seq_len", 169, most=_MAX_TOKENS),
        id=own,
        before=before,
        whole=whole,
        marks=tuple(tuple(encode(f"<row_{row}_col_{column}>") for column in range(1, most + 1)) for row in range(1, most + 1)),
        line=encode("\n"),
        lines=encode("\n\n"),
        splits=model.of_images.get("do_image_splitting", True) is not False,
    )


def _llava(model: ModelFolder, token: str) -> Processor:
    size = model.sides("size", {"shortest_edge": 336})
    shortest, box = size.get("shortest_edge"), size
    if shortest is not None:
        if model.of_images.get("do_center_crop", True) is False:
            raise OptionError(f"{model.where}: do_center_crop is false, so that images differ in size; its model takes one size")
        box = model.sides("crop_size", {"height": shortest, "width": shortest})
    height, width = box.get("height"), box.get("width")
    if height is None or width is None:
        raise OptionError(f"{model.where}: size is {size}; it must say height and width, or shortest_edge")
    patch = model.whole("patch_size", None)
    per_image = (height // patch) * (width // patch) + model.whole("num_additional_image_tokens", 0, least=0)
    if model.of_text.get("vision_feature_select_strategy") == "default":
        per_image -= 1
    return _fixed(model, height, width, shortest, per_image, token)


def _gemma(model: ModelFolder, token: str) -> Processor:
    if model.of_images.get("do_pan_and_scan"):
        raise OptionError(f"{model.where}: do_pan_and_scan is true, which is not known here; pass a processor of your own")
    size = model.sides("size", {"height": 896, "width": 896})
    per_image = model.whole("image_seq_length", 256, most=_MAX_TOKENS)
    return _fixed(model, size["height"], size["width"], None, per_image, token)


def _fixed(model: ModelFolder, height: int, width: int, shortest: int | None, per_image: int, token: str) -> FixedProcessor:
    default: Filter = "bilinear" if model.type == "Gemma3ImageProcessor" else "bicubic"
    return FixedProcessor(
        height=height,
        width=width,
        shortest=shortest,
        pixels=_pixels(model, default),
        per_image=per_image,
        id=model.ids(token)[0],
        token_types="token_type_ids" if model.type == "Gemma3ImageProcessor" else "",
    )


def _pixels(model: ModelFolder, default: Filter) -> Pixels:
    """Return how images are resized, by default by this filter, and normalised. Raises OptionError for other ways."""
    return Pixels.of_config(model.of_images, model.where, default=default)


_PROCESSORS: dict[str, Callable[[ModelFolder, str], Processor]] = {
    "Qwen2VLImageProcessor": _patches,
    "GotOcr2ImageProcessor": _canvas,
    "Idefics3ImageProcessor": _split,
    "SmolVLMImageProcessor": _split,
    "CLIPImageProcessor": _llava,
    "SiglipImageProcessor": _llava,
    "Gemma3ImageProcessor": _gemma,
}
