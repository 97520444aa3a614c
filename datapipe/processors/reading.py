"""Read a model's processor from its `preprocessor_config.json`: numbers alone, no code."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from datapipe.codecs.tokenizer_facts import MAX_TOKENIZER_NBYTES, look_at_tokenizer, panics_as_errors
from datapipe.codecs.tokens import import_tokenizers
from datapipe.core.checks import path_name
from datapipe.core.printable import listed
from datapipe.core.regular_files import read_bytes
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.processors.fixed import FixedProcessor
from datapipe.processors.patches import PatchProcessor
from datapipe.processors.pixels import Filter, Pixels
from datapipe.processors.processor import ImageTokens, Processor
from datapipe.processors.tiles import CanvasProcessor, SplitProcessor

_NAMES = ("preprocessor_config.json", "processor_config.json")  # the second has the first's contents in it, or adds to it
_MAX_CONFIG_NBYTES = 1 << 22
_MAX_SIDE = 1 << 14  # pixels
_MOST_LONGEST = 4096  # pixels, beyond which transformers makes images smaller once more
_MAX_TOKENS = 1 << 16  # of a tile
_WHO = "processor="


class ModelFolder:
    """What a model's folder says of its processor."""

    def __init__(self, path: Path) -> None:
        """Raises MissingDataError without a configuration of a processor, FormatError for one that does not parse."""
        self.path = path
        found = {name: config for name in _NAMES if (config := _config(path / name)) is not None}
        if not found:
            raise MissingDataError(f"{path}: has no {' and no '.join(_NAMES)}; pass the folder of a model that takes images")
        self.of_text = found.get("processor_config.json", {})
        own = found.get("preprocessor_config.json")
        self.of_images = own if own is not None else self.of_text.get("image_processor", {})
        if not isinstance(self.of_images, dict):
            raise FormatError(f"{path}: its image_processor is no object; get the model again")
        self.where = str(path / next(iter(found)))
        self.names = _config(path / "tokenizer_config.json") or {}

    @property
    def type(self) -> str:
        """The name of the class of the processor of its images, in transformers."""
        found = self.of_images.get("image_processor_type") or self.of_images.get("feature_extractor_type")
        return str(found).removesuffix("Fast").removesuffix("Pil")

    def whole(self, name: str, default: int | None = None, *, least: int = 1, most: int = _MAX_SIDE) -> int:
        """Return a whole number. Raises OptionError if it is none, or not in these bounds."""
        found = self.of_images.get(name, self.of_text.get(name, default))
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
            raise OptionError(f"{self.where}: {name} is {found!r:.40}; it must be a whole number from {least} to {most}")
        return found

    def sides(self, name: str, default: Mapping[str, int]) -> dict[str, int]:
        """Return a size, by the names of its sides. Raises OptionError if it is none."""
        found = self.of_images.get(name, default)
        if isinstance(found, int):
            found = dict.fromkeys(default, found)
        values = {key: value for key, value in found.items() if value is not None} if isinstance(found, dict) else {}
        if not values or not all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in values.values()):
            raise OptionError(f"{self.where}: {name} is {found!r:.80}; it must say lengths in pixels")
        return values

    def pixels(self, default: Filter) -> Pixels:
        """Return how images are resized, by default by this filter, and normalised. Raises OptionError for other ways."""
        return Pixels.of_config(self.of_images, self.where, default=default)

    def token(self, name: str, default: str) -> str:
        """Return the text of a token that the configuration of the tokenizer names."""
        found = self.names.get(name, default)
        found = found.get("content") if isinstance(found, dict) else found
        return found if isinstance(found, str) else default

    @functools.cached_property
    def _tokenizer(self) -> bytes:
        path = self.path / "tokenizer.json"
        try:
            return read_bytes(path, at_most=MAX_TOKENIZER_NBYTES)
        except FileNotFoundError as exc:
            raise MissingDataError(f"{path}: no such file; a processor needs the tokenizer of its model") from exc

    def ids(self, *tokens: str) -> list[int]:
        """Return the ids of tokens. Raises FormatError for those that the tokenizer has not."""
        try:
            found = look_at_tokenizer(self._tokenizer, tokens, _WHO).asked
        except FormatError as exc:
            raise FormatError(f"{self.path / 'tokenizer.json'}: {exc}; get the model again") from exc
        missing = [one for one in tokens if one not in found]
        if missing:
            raise FormatError(
                f"{self.path / 'tokenizer.json'}: has no token {missing[0]!r}, which stands for images; get the model again"
            )
        return [found[one] for one in tokens]

    def encoder(self) -> Callable[[str], tuple[int, ...]]:
        """Return what makes ids of a text, without those that begin and end one."""
        with panics_as_errors():
            tokenizer = import_tokenizers(_WHO).Tokenizer.from_buffer(self._tokenizer)
        return lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def read_processor(path: str | os.PathLike[str]) -> Processor:
    """Return the processor of the model in a folder.

    Raises MissingDataError, FormatError or OptionError for a folder that has none, or one that is not known here;
    DependencyError without the package tokenizers.
    """
    model = ModelFolder(Path(path_name(path, "processor")))
    make = _PROCESSORS.get(model.type)
    if make is None:
        raise OptionError(
            f"{model.where}: is of {model.type}, which is not known here; known are {listed(list(_PROCESSORS))}; pass an"
            " object of your own with the methods of datapipe.processors.processor.Processor"
        )
    return make(model)


def _patches(model: ModelFolder) -> Processor:
    size = model.sides("size", {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280})
    least, most = (
        model.of_images.get(name) or size.get(side)
        for name, side in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
    )
    if not isinstance(least, int) or not isinstance(most, int) or not 0 < least <= most:
        raise OptionError(f"{model.where}: images have from {least!r:.20} to {most!r:.20} pixels; these must be whole numbers")
    token = model.token("image_token", "<|image_pad|>")
    return PatchProcessor(
        patch=model.whole("patch_size", 14),
        merge=model.whole("merge_size", 2),
        frames=model.whole("temporal_patch_size", 2),
        least=least,
        most=most,
        pixels=model.pixels("bicubic"),
        image_tokens=ImageTokens(token, token, token),
        id=model.ids(token)[0],
    )


def _canvas(model: ModelFolder) -> Processor:
    size = model.sides("size", {"height": 448, "width": 448})
    if size.get("height") != size.get("width") or "height" not in size:
        raise OptionError(f"{model.where}: size is {size}; tiles are squares")
    token = model.token("context_image_token", "<IMG_CONTEXT>")
    around = model.token("start_image_token", "<img>"), model.token("end_image_token", "</img>")
    own, *others = model.ids(token, *around)
    return CanvasProcessor(
        side=size["height"],
        least=model.whole("min_patches", 1),
        most=model.whole("max_patches", 12, most=256),
        pixels=model.pixels("bicubic"),
        per_tile=model.whole("image_seq_length", 256, most=_MAX_TOKENS),
        image_tokens=ImageTokens(token, token, token),
        id=own,
        around=(others[0], others[1]),
    )


def _split(model: ModelFolder) -> Processor:
    token = model.token("image_token", "<image>")
    own, before, whole = model.ids(token, "<fake_token_around_image>", "<global-img>")
    longest = model.sides("size", {"longest_edge": 4 * 364}).get("longest_edge")
    side = model.sides("max_image_size", {"longest_edge": 364}).get("longest_edge")
    if longest is None or side is None or longest > _MOST_LONGEST:
        raise OptionError(f"{model.where}: size and max_image_size must say longest_edge, of {_MOST_LONGEST} pixels at most")
    encode, most = model.encoder(), -(-longest // side)
    return SplitProcessor(
        longest=longest,
        side=side,
        pixels=model.pixels("lanczos"),
        per_tile=model.whole("image_seq_len", 169, most=_MAX_TOKENS),
        image_tokens=ImageTokens(token, token, token),
        id=own,
        before=before,
        whole=whole,
        marks=tuple(tuple(encode(f"<row_{row}_col_{column}>") for column in range(1, most + 1)) for row in range(1, most + 1)),
        line=encode("\n"),
        lines=encode("\n\n"),
        splits=model.of_images.get("do_image_splitting", True) is not False,
    )


def _llava(model: ModelFolder) -> Processor:
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
    token = model.token("image_token", str(model.of_text.get("image_token", "<image>")))
    return _fixed(model, height, width, shortest, per_image, ImageTokens(token, token, token))


def _gemma(model: ModelFolder) -> Processor:
    if model.of_images.get("do_pan_and_scan"):
        raise OptionError(f"{model.where}: do_pan_and_scan is true, which is not known here; pass a processor of your own")
    size = model.sides("size", {"height": 896, "width": 896})
    token = model.token("image_token", "<image_soft_token>")
    before, after = model.token("boi_token", "<start_of_image>"), model.token("eoi_token", "<end_of_image>")
    kept = f"\n\n{before}{token}{after}\n\n"
    per_image = model.whole("image_seq_length", 256, most=_MAX_TOKENS)
    return _fixed(model, size["height"], size["width"], None, per_image, ImageTokens(before, kept, token))


def _fixed(
    model: ModelFolder, height: int, width: int, shortest: int | None, per_image: int, tokens: ImageTokens
) -> FixedProcessor:
    default: Filter = "bilinear" if model.type == "Gemma3ImageProcessor" else "bicubic"
    return FixedProcessor(
        height=height,
        width=width,
        shortest=shortest,
        pixels=model.pixels(default),
        per_image=per_image,
        image_tokens=tokens,
        id=model.ids(tokens.token)[0],
    )


_PROCESSORS: dict[str, Callable[[ModelFolder], Processor]] = {
    "Qwen2VLImageProcessor": _patches,
    "GotOcr2ImageProcessor": _canvas,
    "Idefics3ImageProcessor": _split,
    "SmolVLMImageProcessor": _split,
    "CLIPImageProcessor": _llava,
    "SiglipImageProcessor": _llava,
    "Gemma3ImageProcessor": _gemma,
}


def _config(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None if there is no such file. Raises FormatError."""
    try:
        found = json.loads(read_bytes(path, at_most=_MAX_CONFIG_NBYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as exc:
        raise FormatError(f"{path}: not JSON ({exc}); get the model again") from exc
    if not isinstance(found, dict):
        raise FormatError(f"{path}: no JSON object; get the model again")
    return found
