"""Replace Pillow's methods by ones that record during a recording fetch and are the originals otherwise.

A stand-in is a genuine `PIL.Image.Image` (or the user's own `JpegImageFile`) whose `_im` is a `Deferred` instead of
pixels. All of Pillow reaches pixels through the property `im`, which materialises: it carries out the recorded steps by the
original methods. So an operation that is not recorded gives what it would give without datapipe.
"""

from __future__ import annotations

import functools
import io
import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageFilter, JpegImagePlugin

from datapipe.codecs.jpeg import is_whole
from datapipe.codecs.probe import probe
from datapipe.deferral.graph import INTERPOLATIONS, JpegSource, Node, Step, chain_of
from datapipe.deferral.recorder import APPROXIMATED, Fetch, current, recording, site_now
from datapipe.errors import DecodeError

MAX_CAPTURED_NBYTES = 64 << 20  # larger files are left to Pillow, which reads them piece by piece

_TURNS = (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_270, Image.Transpose.TRANSPOSE, Image.Transpose.TRANSVERSE)
_NO_HEADER: Any = None  # of a source without bytes
_lock = threading.RLock()  # one thread at a time turns stand-ins into pixels
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


class Deferred:
    """The recorded steps of an image, held in place of its pixels. `pixels`: the image, once an array was made of it."""

    __slots__ = ("fetch", "node", "pixels", "sample")
    readonly = 0

    def __init__(self, node: Node, fetch: Fetch) -> None:
        self.node, self.fetch, self.sample = node, fetch, fetch.sample
        self.pixels: NDArray[np.uint8] | None = None

    def __bool__(self) -> bool:  # Pillow evaluates `_im and _im.readonly`
        return False


class DeferredPixels:
    """The pixel access that `load()` of a stand-in returns; computes the pixels when one is read or set."""

    __slots__ = ("_image",)

    def __init__(self, image: Image.Image) -> None:
        self._image = image

    def __getitem__(self, place: Any) -> Any:
        return self._access()[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._access()[place] = value

    def _access(self) -> Any:
        return self._image.im.pixel_access(self._image.readonly)


def is_available() -> bool:
    """Return whether Pillow is as the seams need it: pixels are reached through a property `im` over `_im`.

    And whether its methods are its own, or these: what others have put in their place would be passed over.
    """
    there = _there[0] if _there else _ORIGINALS
    return _is_made_so() and all(kind.__dict__.get(name) is method for (kind, name), method in there.items())


@functools.cache
def _is_made_so() -> bool:
    properties = (_ORIGINALS.get((Image.Image, name)) for name in ("im", "__array_interface__"))
    return all(isinstance(one, property) for one in properties) and hasattr(Image.Image(), "_im")


def install() -> None:
    """Replace the methods."""
    _put(_recording_methods())


def listen() -> None:
    """Replace only the method that sets off the alarm.

    It costs a worker that was forked a fraction of what `install` does. In a worker this takes back what was installed, as other
    methods cost small images a tenth of their time; elsewhere other threads may be recording.
    """
    if torch.utils.data.get_worker_info() is not None or Image.Image.resize is PILLOW_STEPS["resize"]:
        _put(_listening_methods())


_Methods = dict[tuple[type, str], Any]  # by class and name
_there: list[_Methods] = []  # the methods that are in place; empty at first


def _put(methods: _Methods) -> None:
    if _there and _there[0] is methods:
        return
    put: Any = setattr
    for (kind, name), method in methods.items():
        if kind.__dict__.get(name) is not method:
            put(kind, name, method)
    _there[:] = [methods]


@functools.cache
def _recording_methods() -> _Methods:
    _im = _ORIGINALS[Image.Image, "im"]
    steps = {name: recording_method(PILLOW_STEPS[name], plan) for name, plan in _PLANS.items()}
    array = property(functools.partial(_array_interface, _ORIGINALS[Image.Image, "__array_interface__"].fget))
    return {
        (Image.Image, "im"): property(functools.partial(_pixels, _im.fget), _im.fset, _im.fdel),
        **{(Image.Image, name): method for name, method in steps.items()},
        (Image.Image, "__copy__"): steps["copy"],
        (Image.Image, "__array_interface__"): array,
        (Image.Image, "load"): _lazy_load(_ORIGINALS[Image.Image, "load"]),
        (ImageFile.ImageFile, "load"): _lazy_load(_ORIGINALS[ImageFile.ImageFile, "load"]),
    }


@functools.cache
def _listening_methods() -> _Methods:
    return _ORIGINALS | {(Image.Image, "resize"): recording_method(PILLOW_STEPS["resize"], _resize)}


# -- from stand-in to pixels ------------------------------------------------------------------------


def _pixels(original: Callable[[Image.Image], Any], image: Image.Image) -> Any:
    if deferred_of(image) is not None:
        materialise(image)
    elif (fetch := current()) is not None:
        fetch.traced.pop(id(image), None)  # its pixels would have been made at once, by Pillow's methods
    return original(image)


def _array_interface(original: Callable[[Image.Image], Any], image: Image.Image) -> Any:
    """Return the memory that numpy reads: decoded as an array where the image is only cut out of its JPEG, else Pillow's."""
    fetch = current()
    pixels, is_new = (None, False) if fetch is None or fetch.is_plain else _as_array(image, fetch)
    if pixels is None:
        return original(image)
    if is_new and fetch is not None:
        fetch.note_array()
    data: Any = pixels.reshape(-1)
    return {"shape": pixels.shape, "typestr": "|u1", "version": 3, "data": memoryview(data).toreadonly()}


def decoded(image: Image.Image) -> NDArray[np.uint8]:
    """Return (h, w, 3) of an RGB image, as numpy would read it."""
    fetch = current()
    pixels = None if fetch is None else _as_array(image, fetch)[0]
    return np.asarray(image) if pixels is None else pixels


def _as_array(image: Image.Image, fetch: Fetch) -> tuple[NDArray[np.uint8] | None, bool]:
    """Return (h, w, 3) of an image that is only cut out of its JPEG, and whether it was decoded now; None for another."""
    deferred = deferred_of(image)
    if deferred is not None and deferred.pixels is not None:
        return deferred.pixels, False
    if image.mode != "RGB" or (node := node_of(image, fetch)) is None:
        return None, False
    try:
        pixels = fetch.engine.array_now(node, fetch.needed_besides(node))
    except DecodeError:  # of which Pillow says what is to be said
        return None, False
    if pixels is not None:
        there: Any = image._im
        there.pixels = pixels
    return pixels, pixels is not None


def deferred_of(image: Image.Image) -> Deferred | None:
    """Return what a stand-in has in place of pixels; None for an image that has pixels."""
    there: Any = image._im
    return there if type(there) is Deferred else None


def materialise(image: Image.Image) -> None:
    """Give a stand-in its pixels by the original methods. Raises what they raise."""
    with _lock:
        deferred: Any = image._im
        if type(deferred) is not Deferred:  # another thread was first
            return
        fetch = current()
        if fetch is not None and deferred.pixels is None:
            fetch.note_image()
        try:
            if deferred.pixels is not None:
                made = Image.fromarray(deferred.pixels)
            elif fetch is deferred.fetch:
                made = fetch.engine.image_now(deferred.node, fetch.needed_besides(deferred.node))
            else:  # another thread, which has no engine, or another fetch
                made = replay(deferred.node)
        except Exception:
            deferred.fetch.has_failed = True  # the error comes later than without deferral, so the sample is made again
            raise
        image.im = made.im


def replay(node: Node) -> Image.Image:
    """Return the image by Pillow alone: the original methods with the arguments that were recorded."""
    source, steps = chain_of(node)
    with recording(None):
        image: Any = Image.open(io.BytesIO(source.data))
        image.load()
        for step in steps:
            image = PILLOW_STEPS[step.name](image, *step.args)
        return image  # type: ignore[no-any-return]


# -- from file to stand-in --------------------------------------------------------------------------


def node_of(image: Image.Image, fetch: Fetch) -> Node | None:
    """Return the chain of an image; captures the bytes of a JPEG that was not read yet. None: it has pixels of its own."""
    there: Any = image._im
    if type(there) is Deferred:
        return there.node if there.fetch is fetch and there.pixels is None else None
    if there is None and type(image) is JpegImagePlugin.JpegImageFile:
        return _capture(image, fetch)
    return None


def _capture(image: JpegImagePlugin.JpegImageFile, fetch: Fetch) -> JpegSource | None:
    if not _is_unread(image) or image.fp is None:
        return None
    try:
        if image.fp.seek(0, io.SEEK_END) > MAX_CAPTURED_NBYTES:
            return None
        image.fp.seek(0)
        data = bytes(image.fp.read())
        header = probe(data)
    except (OSError, ValueError, TypeError, DecodeError):  # Pillow then raises the error itself
        return None
    if header.bit_depth != 8 or header.scan is None or not is_whole(data, header.scan):
        return None
    if (header.width, header.height) != image.size or {"RGB": 3, "L": 1}[image.mode] != header.num_channels:
        return None
    source = JpegSource(data, header, image.mode, image.size, _kind_of(image))
    image.tile = []
    image.readonly = 0
    image.map = None
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        image.fp.close()
    image.fp = None
    _defer(image, source, fetch)
    return source


def _is_unread(image: JpegImagePlugin.JpegImageFile) -> bool:
    """Whether the image is a JPEG that nobody has decoded, of those that may be recorded."""
    if ImageFile.LOAD_TRUNCATED_IMAGES or image.decoderconfig or image.mode not in ("RGB", "L") or image.fp is None:
        return False
    return len(image.tile) == 1 and tuple(image.tile[0]) == ("jpeg", (0, 0, *image.size), 0, (image.mode, ""))


def _kind_of(image: JpegImagePlugin.JpegImageFile) -> Hashable:
    layers = tuple(layer[:3] for layer in image.layer)
    return (image.mode, layers, image.info.get("adobe_transform"), "progressive" in image.info, "jfif" in image.info)


def _defer(image: Image.Image, node: Node, fetch: Fetch) -> None:
    image._im = Deferred(node, fetch)  # type: ignore[assignment]
    reference = fetch.holders[id(node)] = weakref.ref(image)
    fetch.images.append(reference)
    fetch.has_recorded = fetch.has_images = True


def stand_in(image: Image.Image, step: Step, fetch: Fetch) -> Image.Image:
    """Return the image that `step` will make of `image`, with the attributes that Pillow's `_new` would set."""
    new = Image.Image()
    new._mode, new._size = step.mode, step.size
    new.info = {key: value.copy() if isinstance(value, list) else value for key, value in image.info.items()}
    _defer(new, step, fetch)
    return new


# -- the methods ------------------------------------------------------------------------------------

Planned = tuple[str, tuple[Any, ...], str, tuple[int, int], Any]  # name, args, mode, size, trait of a step
Planner = Callable[..., Planned | None]


def recording_method(original: Callable[..., Any], plan: Planner) -> Callable[..., Any]:
    """Return a method that records the calls that `plan` understands, and calls `original` otherwise."""

    @functools.wraps(original)
    def method(self: Image.Image, *args: Any, **kwargs: Any) -> Any:
        fetch = current()
        if fetch is None or not isinstance(self, Image.Image):
            if alarm.is_set:
                alarm.listen(plan, self, *args, **kwargs)
            return original(self, *args, **kwargs)
        if fetch.is_plain:
            return _watched(self, fetch, plan, original, *args, **kwargs)
        parent = node_of(self, fetch)
        if parent is None:
            return original(self, *args, **kwargs)
        planned = plan(self, *args, **kwargs)
        if planned is None:
            return original(self, *args, **kwargs)
        name, given, mode, size, trait = planned
        return stand_in(self, Step(parent, name, given, mode, size, trait, site_now()), fetch)

    return method


def watch(image: Image.Image, fetch: Fetch) -> Node | None:
    """Trace an image in a plain fetch. Returns as what it would be recorded, without its bytes; None: it would not be."""
    reference, node = fetch.traced.get(id(image), (None, None))
    if reference is not None and reference() is image:
        return node
    if image._im is not None or type(image) is not JpegImagePlugin.JpegImageFile or not _is_unread(image):
        return None
    source = JpegSource(b"", _NO_HEADER, image.mode, image.size, _kind_of(image))
    fetch.trace(image, source)
    return source


def _watched(image: Image.Image, fetch: Fetch, plan: Planner, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    node = watch(image, fetch)
    planned = None if node is None else plan(image, *args, **kwargs)
    if planned is None:  # its pixels would be needed, and what is made of it not be recorded
        fetch.traced.pop(id(image), None)
    with recording(None):
        made = original(image, *args, **kwargs)
    if node is not None and planned is not None and isinstance(made, Image.Image):
        name, given, mode, size, trait = planned
        fetch.trace(made, Step(node, name, given, mode, size, trait))
    return made


class _Alarm(threading.local):
    """Rings where the user's code alone comes to an operation whose result may depend on whether it is recorded.

    Rings in the thread that fetches, as only there samples are recorded.
    """

    has_rung = False
    _depth = 0  # a sample may be made of batches of another loader

    @property
    def is_set(self) -> bool:
        """Whether the user's code runs alone now."""
        return self._depth > 0

    def __enter__(self) -> _Alarm:
        self.has_rung = self.has_rung and self._depth > 0
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def listen(self, plan: Planner, image: Any, *args: Any, **kwargs: Any) -> None:
        """Ring if the operation is one of those."""
        planned = plan(image, *args, **kwargs) if isinstance(image, Image.Image) and image.mode in ("RGB", "L") else None
        if planned is None or planned[0] not in APPROXIMATED:
            return
        if planned[0] != "resize" or (planned[1][1] in INTERPOLATIONS and planned[3] != image.size):
            self.has_rung = True


alarm = _Alarm()


def _lazy_load(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(self: Image.Image) -> Any:
        fetch = current()
        if fetch is not None and fetch.is_plain:
            watch(self, fetch)
            with recording(None):
                return original(self)
        if fetch is None or not (self._im is None or deferred_of(self) is not None):
            return original(self)
        return original(self) if node_of(self, fetch) is None else DeferredPixels(self)

    return load


def _convert(image: Image.Image, *args: Any, **kwargs: Any) -> Planned | None:
    mode = args[0] if args else kwargs.get("mode")
    if len(args) > 1 or set(kwargs) - {"mode"} or mode not in ("RGB", "L") or "transparency" in image.info:
        return None
    return ("convert", (mode,), mode, image.size, (image.mode, mode))


def _copy(image: Image.Image) -> Planned | None:
    return ("copy", (), image.mode, image.size, None)


def _crop(image: Image.Image, box: Any = None) -> Planned | None:
    if box is None:
        return _copy(image)
    try:
        left, upper, right, lower = (int(round(value)) for value in box)  # noqa: RUF046 (numpy rounds to floats)
    except (TypeError, ValueError, OverflowError):
        return None
    if right <= left or lower <= upper:
        return None
    width, height = image.size
    inside = left >= 0 and upper >= 0 and right <= width and lower <= height
    if not inside and (right - left) * (lower - upper) > 4 * width * height:
        return None
    return ("crop", ((left, upper, right, lower),), image.mode, (right - left, lower - upper), inside)


def _resize(image: Image.Image, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Planned | None:
    if box is not None or reducing_gap is not None:
        return None
    try:
        width, height = size
        filter_ = int(Image.Resampling.BICUBIC if resample is None else Image.Resampling(resample))
    except (TypeError, ValueError):
        return None
    if not (isinstance(width, (int, np.integer)) and isinstance(height, (int, np.integer)) and width > 0 and height > 0):
        return None
    enlarges = (width > image.size[0], height > image.size[1])
    return ("resize", ((int(width), int(height)), filter_), image.mode, (int(width), int(height)), (filter_, enlarges))


def _filter(image: Image.Image, filter: Any) -> Planned | None:
    blur = filter() if filter is ImageFilter.GaussianBlur else filter
    if type(blur) is not ImageFilter.GaussianBlur or image.mode != "RGB":
        return None
    radius = blur.radius
    if not isinstance(radius, (int, float)) or not 0 <= radius < float("inf"):
        return None
    return ("filter", (ImageFilter.GaussianBlur(radius),), "RGB", image.size, None)


def _point(image: Image.Image, lut: Any, mode: Any = None) -> Planned | None:
    if mode is not None or image.mode != "RGB" or not isinstance(lut, (list, tuple)) or len(lut) != 768:
        return None
    if not all(type(value) is int and 0 <= value <= 255 for value in lut):
        return None
    return ("point", (list(lut),), "RGB", image.size, None)


def _transpose(image: Image.Image, method: Any) -> Planned | None:
    try:
        turn = Image.Transpose(method)
    except ValueError:
        return None
    width, height = image.size
    return ("transpose", (turn,), image.mode, (height, width) if turn in _TURNS else (width, height), int(turn))


_PLANS: dict[str, Planner] = {
    "convert": _convert,
    "copy": _copy,
    "crop": _crop,
    "filter": _filter,
    "point": _point,
    "resize": _resize,
    "transpose": _transpose,
}
# The original methods, by the names of the steps; `torchvision_seams` adds its functions.
PILLOW_STEPS: dict[str, Callable[..., Any]] = {name: getattr(Image.Image, name) for name in _PLANS}
_NAMES = ("im", "__copy__", "__array_interface__", "load", *_PLANS)
_ORIGINALS: _Methods = {
    (kind, name): kind.__dict__[name]
    for kind, names in ((Image.Image, _NAMES), (ImageFile.ImageFile, ("load",)))
    for name in names
    if name in kind.__dict__
}
