"""The folder of a model that takes images, as transformers saves it: configurations, which are numbers alone, and tokens."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from datapipe.codecs.tokenizer_facts import MAX_TOKENIZER_NBYTES, look_at_tokenizer, panics_as_errors
from datapipe.codecs.tokens import import_tokenizers
from datapipe.core.printable import listed
from datapipe.core.regular_files import read_bytes
from datapipe.errors import FormatError, MissingDataError, OptionError

_NAMES = ("preprocessor_config.json", "processor_config.json")  # the second has the first's contents in it, or adds to it
_MAX_CONFIG_NBYTES = 1 << 22
_MAX_SIDE = 1 << 14  # pixels
_WHO = "processor="


class ImageTokens(NamedTuple):
    """The tokens of which a model's texts make images."""

    written: str  # what stands for an image in the text of a chat, as the model's template writes it
    kept: str  # what is put there before the text becomes ids: `token` once, and whatever else always surrounds it
    token: str  # the one whose place the tokens of an image take
    alone: str  # what is put in the place of an image in a text that no template makes


class ModelFolder:
    """The configuration of a processor, as the files of a model's folder have it."""

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

    @property
    def image_tokens(self) -> ImageTokens:
        """The tokens of its images. Raises OptionError for a processor that is not known."""
        of_type = _IMAGE_TOKENS.get(self.type)
        if of_type is None:
            raise OptionError(
                f"{self.where}: is of {self.type}, which is not known here; known are {listed(list(_IMAGE_TOKENS))}; pass an"
                " object of your own with the methods of datapipe.processors.processor.Processor"
            )
        return of_type(self)

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


def _plain(token: str) -> ImageTokens:
    return ImageTokens(token, token, token, token)


def _of_patches(model: ModelFolder) -> ImageTokens:
    token = model.token("image_token", "<|image_pad|>")
    before, after = model.token("vision_bos_token", "<|vision_start|>"), model.token("vision_eos_token", "<|vision_end|>")
    return _plain(token)._replace(alone=f"{before}{token}{after}")


def _of_canvas(model: ModelFolder) -> ImageTokens:
    return _plain(model.token("context_image_token", "<IMG_CONTEXT>"))


def _of_split(model: ModelFolder) -> ImageTokens:
    return _plain(model.token("image_token", "<image>"))


def _of_llava(model: ModelFolder) -> ImageTokens:
    return _plain(model.token("image_token", str(model.of_text.get("image_token", "<image>"))))


def _of_gemma(model: ModelFolder) -> ImageTokens:
    token = model.token("image_token", "<image_soft_token>")
    before, after = model.token("boi_token", "<start_of_image>"), model.token("eoi_token", "<end_of_image>")
    kept = f"\n\n{before}{token}{after}\n\n"
    return ImageTokens(before, kept, token, kept)


_IMAGE_TOKENS: dict[str, Callable[[ModelFolder], ImageTokens]] = {
    "Qwen2VLImageProcessor": _of_patches,
    "GotOcr2ImageProcessor": _of_canvas,
    "Idefics3ImageProcessor": _of_split,
    "SmolVLMImageProcessor": _of_split,
    "CLIPImageProcessor": _of_llava,
    "SiglipImageProcessor": _of_llava,
    "Gemma3ImageProcessor": _of_gemma,
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
