"""Make what image processors of transformers make of an image by `datapipe.processors`, where the numbers are the same.

Their arithmetic is a resize, a cut and a subtraction, around which they check their arguments, sort images by size and copy
them. They are replaced in samples that are recorded and in the collation of these, so that what it saves is measured with the
rest. Whether a processor, with its settings, may be replaced is tried on synthetic images: bit for bit, or not at all. So an
image has the same numbers wherever it is made.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from datapipe.deferral.pillow_seams import decoded
from datapipe.deferral.preparing import tried_once
from datapipe.deferral.recorder import current, recording
from datapipe.deferral.rules import picture
from datapipe.errors import OptionError
from datapipe.processors.fixed import FixedProcessor
from datapipe.processors.patches import PatchProcessor
from datapipe.processors.pixels import Pixels
from datapipe.processors.processor import Processor

_BASE = "transformers.image_processing_utils"
_OUTPUT = "transformers.feature_extraction_utils"
_LIBRARIES = ("transformers", "datapipe", "torch")
_TRIED_SIZES = ((150, 200), (200, 150), (31, 40), (333, 500), (500, 334), (64, 64))  # (height, width)
_MAYBE_CHANNELS = (1, 3, 4)  # transformers may take an array of so many rows for planes


class _LocalCollation(threading.local):
    counts: dict[str, int] | None = None


_local = _LocalCollation()
_there: set[type] = set()  # classes whose method is replaced


def install() -> None:
    """Replace the method that all processors have, if transformers has been imported, for the rest of the process."""
    base: Any = getattr(sys.modules.get(_BASE), "BaseImageProcessor", None)
    if base not in _there and hasattr(base, "preprocess"):
        _there.add(base)
        base.preprocess = _replacing(base.preprocess)


@contextlib.contextmanager
def replaced_in_collation(is_recorded: bool) -> Iterator[dict[str, int]]:
    """Replace what the calling thread calls, if the samples were recorded. Yields numbers of images, by what they are."""
    before, counts = _local.counts, dict[str, int]()
    _local.counts = counts if is_recorded else None
    try:
        yield counts
    finally:
        _local.counts = before


def _replacing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def preprocess(self: Any, images: Any, *args: Any, **kwargs: Any) -> Any:
        fetch = current()
        is_on = _local.counts is not None if fetch is None else not fetch.is_plain
        if args or not is_on:
            return original(self, images, *args, **kwargs)
        given = list(images) if isinstance(images, (list, tuple)) else [images]
        ours = _ours(self, original) if given and all(map(_is_plain, given)) else None
        if ours is None or not _are_own(self, kwargs):
            return original(self, images, **kwargs)
        pixels = [decoded(one) if isinstance(one, Image.Image) else one for one in given]
        with recording(None):
            made = _made(ours, pixels)
        if made is None:
            return original(self, images, **kwargs)
        what = f"an image for {type(self).__name__} at {_place()}, made at once by the same arithmetic"
        if fetch is not None:
            fetch.note_made(what)
        elif _local.counts is not None:
            _local.counts[what] = _local.counts.get(what, 0) + len(given)
        return sys.modules[_OUTPUT].BatchFeature(data=made)

    return preprocess


def _is_plain(image: Any) -> bool:
    """Return whether transformers takes it for an RGB image of 8 bits, whose channels come last."""
    if isinstance(image, Image.Image):
        return image.mode == "RGB" and min(image.size) > 0
    is_pixels = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
    return is_pixels and image.shape[0] not in _MAYBE_CHANNELS and image.shape[1] > 0


def _are_own(processor: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call asks for tensors of torch, and for nothing else that is not the processor's own setting."""
    for name, value in kwargs.items():
        own = "pt" if name == "return_tensors" else getattr(processor, name, None)
        if value is not None and not (isinstance(value, type(own)) and value == own):
            return False
    return kwargs.get("return_tensors") is not None


def _made(ours: Processor, images: Sequence[NDArray[np.uint8]]) -> dict[str, torch.Tensor] | None:
    """Return what a processor's model takes of images of (height, width, 3); None if it takes not all of them."""
    heights, widths = (np.array([image.shape[axis] for image in images]) for axis in (0, 1))
    grids = ours.grids(widths, heights)
    if (grids < 0).any():
        return None
    nums = ours.num_units(grids).tolist()
    units = torch.empty((sum(nums), *ours.unit), dtype=torch.uint8)
    for image, (rows, columns), out in zip(images, grids.tolist(), torch.split(units, nums), strict=True):
        ours.place(image, rows, columns, out)
    return {"pixel_values": ours.values(units), **{name: torch.from_numpy(value) for name, value in ours.inputs(grids).items()}}


def _place() -> str:
    """Return "file:line" of the innermost caller outside of these libraries."""
    frame = sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


# -- which processors ------------------------------------------------------------------------------------


def _fixed(of: Any) -> Processor | None:
    size, crop = of.size, of.crop_size
    if of.do_pad or size is None or size.longest_edge or size.max_height:
        return None
    if size.height and size.width and not of.do_center_crop:
        return FixedProcessor(size.height, size.width, None, _pixels(of), per_image=0, id=0)
    if size.shortest_edge and of.do_center_crop and crop is not None and crop.height and crop.width:
        return FixedProcessor(crop.height, crop.width, size.shortest_edge, _pixels(of), per_image=0, id=0)
    return None


def _patches(of: Any) -> Processor | None:
    least, most = of.size.shortest_edge, of.size.longest_edge
    if not least or not most:
        return None
    pixels = _pixels(of)
    return PatchProcessor(of.patch_size, of.merge_size, of.temporal_patch_size, least, most, pixels, id=0)


def _pixels(of: Any) -> Pixels:
    names = ("resample", "rescale_factor", "image_mean", "image_std")
    return Pixels.of_config({name: getattr(of, name) for name in names}, type(of).__name__, default="bilinear")


class _Family(NamedTuple):
    """Processors that differ in their settings alone."""

    module: str
    name: str  # of the class whose methods all of them have
    arithmetic: Callable[[Any], Processor | None]  # of a processor; None, OptionError: not known for these settings


_FAMILIES = (
    _Family("transformers.models.qwen2_vl.image_processing_qwen2_vl", "Qwen2VLImageProcessor", _patches),
    _Family("transformers.image_processing_backends", "TorchvisionBackend", _fixed),
)


class _Replaceable(NamedTuple):
    """A processor as its settings were, and what is to make its numbers."""

    theirs: Callable[..., Any]
    ours: Processor


_known: dict[str, _Replaceable | None] = {}  # by the class and all settings, as text
_MOST_KNOWN = 64  # as each is tried first; code may change settings from sample to sample
_METHODS = (staticmethod, classmethod, property)


@functools.cache
def _family(kind: Any) -> tuple[_Family | None, frozenset[str]]:
    """Return the family of a class that has all of its methods, and the names of these; None: it has others."""
    for family in _FAMILIES:
        known = getattr(sys.modules.get(family.module), family.name, None)
        if known is None or not issubclass(kind, known):
            continue
        there = {name: inspect.getattr_static(known, name) for name in dir(known) if not name.startswith("__")}
        methods = {name: one for name, one in there.items() if inspect.isroutine(one) or isinstance(one, _METHODS)}
        is_same = all(inspect.getattr_static(kind, name) is method for name, method in methods.items())
        return (family if is_same else None), frozenset(methods)
    return None, frozenset()


def _ours(processor: Any, original: Callable[..., Any]) -> Processor | None:
    """Return what makes the numbers of a processor of transformers; None for one that is not known, or differs."""
    kind: Any = type(processor)
    family, methods = _family(kind)
    if family is None or not methods.isdisjoint(vars(processor)):
        return None
    settings = [(name, getattr(processor, name, None)) for name in processor._valid_kwargs_names]
    key = f"{type(processor).__qualname__} {settings}"
    if key not in _known and len(_known) < _MOST_KNOWN:
        _known[key] = _replaceable(family, processor, original)
    there = _known.get(key)
    return None if there is None or _reason_against_replacing(key) is not None else there.ours


def _replaceable(family: _Family, processor: Any, original: Callable[..., Any]) -> _Replaceable | None:
    does_all = processor.do_resize and processor.do_rescale and processor.do_normalize
    if not does_all or any(getattr(processor, name, None) is not None for name in ("device", "input_data_format", "data_format")):
        return None
    try:
        ours = family.arithmetic(processor)
    except OptionError:
        return None
    return None if ours is None else _Replaceable(functools.partial(original, processor), ours)


@tried_once
def _reason_against_replacing(key: str) -> str | None:
    """Return why a processor is not replaced; None: synthetic images become the same numbers, alone and several at once."""
    there = _known[key]
    assert there is not None
    images = [picture(*size) for size in _TRIED_SIZES]
    for some in ([images[0]], [images[1]], images[2:]):
        with recording(None):
            theirs: Mapping[str, Any] = there.theirs([Image.fromarray(one) for one in some], return_tensors="pt")
            ours = _made(there.ours, some)
        if ours is None or ours.keys() != theirs.keys():
            return "other inputs of a model are made"
        for name, value in ours.items():
            other = theirs[name]
            if value.dtype != other.dtype or value.stride() != other.stride() or not torch.equal(value, other):
                return f"{name} of a synthetic image differ"
    return None
