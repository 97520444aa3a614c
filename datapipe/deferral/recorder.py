"""Hold what one fetch of one thread records. Only `__getitem__` in that thread is recorded."""

from __future__ import annotations

import os
import sys
import threading
import traceback
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from datapipe.deferral.graph import Node, Step, chain_of


@dataclass(slots=True)
class PendingPixels:
    """A tensor whose values are made when the fetch ends: what makes them, and how they are to lie in memory."""

    node: Step
    sample: int  # within the fetch
    shape: tuple[int, int, int]
    dtype: torch.dtype
    strides: tuple[int, ...]
    offset: int  # in the memory, in elements: not 0 only for views
    memory: SharedMemory


@dataclass(slots=True, eq=False)
class SharedMemory:
    """The memory in which a tensor and the views of it are to lie, as its owner has it."""

    owner: PendingPixels | None = None
    members: list[int] = field(default_factory=list)  # ids of the tensors, dead ones too, so that others may have their ids


@dataclass(slots=True, eq=False)
class Fetch:
    """The images and tensors that the samples of one fetch recorded, and the state of the sample that runs now."""

    notes_sites: bool = False  # whether steps record their call sites
    is_plain: bool = False  # whether nothing is recorded, only whether recording would have given the same pixels
    images: list[weakref.ref[Any]] = field(default_factory=list)  # those that still have no pixels hold a `Deferred`
    tensors: dict[int, tuple[torch.Tensor, PendingPixels]] = field(default_factory=dict)  # by id(tensor)
    sample: int = 0
    num_images: int = 0  # when the sample at work began
    mode: Any = None  # the TensorMode while a sample runs
    engine: Any = None  # makes what the sample's code needs at once
    is_eager: bool = False  # whether tensors of the sample that runs now are made at once, rather than when the fetch ends
    holders: dict[int, weakref.ref[Any]] = field(default_factory=dict)  # images of the sample that runs now, by id of their node
    has_shared_tensors: bool = False  # whether somebody besides a sample may hold its tensors, until their values are there
    has_recorded: bool = False  # in the sample that runs now
    has_recorded_tensors: bool = False  # in the sample that runs now
    has_images: bool = False  # whether an image was recorded
    doubtful: list[Node] = field(default_factory=list)  # of images that samples hold, or made tensors of, with approximated steps
    traced: dict[int, tuple[weakref.ref[Any], Node]] = field(default_factory=dict)  # see `trace`
    has_traced: bool = False  # whether a plain fetch had an image that would have been recorded
    has_failed: bool = False  # in the sample that runs now: bytes turned out bad where the user's code did not expect it
    # samples, by what was made at once, why by Pillow, and what needed it (None: it was made as if it had been deferred)
    materialised: dict[tuple[str, str | None, str | None], list[int]] = field(default_factory=dict)

    def begin_sample(self, number: int, *, is_eager: bool = False) -> None:
        """Record what follows as that of another sample."""
        self.sample, self.is_eager = number, is_eager
        self.has_recorded = self.has_recorded_tensors = self.has_failed = False
        self.num_images = len(self.images)

    def end_sample(self) -> None:
        """Forget the sample's images that nobody holds, and what was made during it."""
        self.holders.clear()
        if self.engine is not None:
            self.engine.end_sample()
        kept = [image for reference in self.images[self.num_images :] if (image := reference()) is not None]
        self.images[self.num_images :] = map(weakref.ref, kept)
        for image in kept:
            if hasattr(image._im, "node"):
                self.doubt(image._im.node)
        for image, node in self.traced.values():
            if image() is not None:
                self.doubt(node)
        self.traced.clear()

    def trace(self, image: Any, node: Node) -> None:
        """Note, in a plain fetch, an image that would have been recorded, and as what."""
        self.has_traced = True
        self.traced[id(image)] = weakref.ref(image), node

    def doubt(self, node: Node) -> None:
        """Note an image whose pixels are a sample's, if they may depend on whether it was recorded."""
        if any(step.name in APPROXIMATED for step in chain_of(node)[1]):
            self.doubtful.append(node)

    def needed_besides(self, asked: Node) -> set[int]:
        """Return the ids of nodes that the sample's code may yet derive from, besides what `asked` alone derives from.

        They are those of images that it holds without pixels, and what another of those or a tensor without values derives from.
        """
        held = [
            image._im.node
            for reference in self.holders.values()
            if (image := reference()) is not None and hasattr(image._im, "node")
        ]
        needed = {id(node) for node in held}
        tensors = [pending.node for _, pending in self.tensors.values() if pending.sample == self.sample]
        for node in (*held, *tensors):
            while node is not asked and isinstance(node, Step):
                node = node.parent
                needed.add(id(node))
        return needed

    def note_image(self) -> None:
        """Count an image whose pixels were needed before the fetch ends, by operation and call site."""
        name, site = _operation("the code")
        self._note(f"an image{site}", f"{name} needs its pixels at once", name + site)

    def note_array(self) -> None:
        """Count an array that was decoded as such before the fetch ends, as `note_image`."""
        name, site = _operation("the code")
        self._note(f"an array for {name}, decoded at once{site}", None, name + site)

    def note_tensor(self, function: Any) -> None:
        """Count a tensor whose values a function needed before the fetch ends, as `note_image`."""
        name, site = _operation(getattr(function, "__name__", "the code"))
        self._note(f"a tensor, made at once since {name} needs its values{site}", None, name + site)

    def note_made(self, what: str) -> None:
        """Count an image that was made before the fetch ends, in less time than its code would take."""
        self.has_images = True
        self._note(what, None, None)

    def _note(self, what: str, reason: str | None, needed_by: str | None) -> None:
        self.materialised.setdefault((what, reason, needed_by), []).append(self.sample)


# Operations that the engine may carry out otherwise than Pillow does.
APPROXIMATED = frozenset(["resize", "gaussian_blur", "adjust_hue"])


class _LocalFetch(threading.local):
    fetch: Fetch | None = None


_local = _LocalFetch()
_OURS = f"{os.sep}{os.path.join('datapipe', 'deferral')}{os.sep}"
_NOT_THE_USERS = (_OURS, *(f"{os.sep}{package}{os.sep}" for package in ("PIL", "torchvision", "torch")))
_KNOWN_AS = {"__array_interface__": "numpy.array", "__getitem__": "indexing", "__setitem__": "assignment"}


def current() -> Fetch | None:
    """Return the fetch into which the calling thread records; None if it does not record."""
    return _local.fetch


class recording:  # noqa: N801  # a context manager that is entered for each sample: by contextlib it takes thrice as long
    """Record what the calling thread does; None: record nothing, as inside the engine and while Pillow replays."""

    __slots__ = ("_before", "_fetch")

    def __init__(self, fetch: Fetch | None) -> None:
        self._fetch = fetch

    def __enter__(self) -> None:
        self._before, _local.fetch = _local.fetch, self._fetch

    def __exit__(self, *_: object) -> None:
        _local.fetch = self._before


def place_of(exc: BaseException) -> str:
    """Return "file:line" of the user's innermost frame among those that an exception left, or of the innermost of all."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(exc.__traceback__)]
    users = [place for place in places if not any(part in place[0] for part in _NOT_THE_USERS)]
    file, line = (users or places or [("?", 0)])[-1]
    return f"{file}:{line}"


def _operation(default: str) -> tuple[str, str]:
    """Return the name of the transform or function that the user's code called, and " at file:line" of that call.

    The innermost transform counts, or the outermost function of a library; `default` if there is none.
    """
    frame, name, transform = sys._getframe(2), default, ""
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _NOT_THE_USERS):
        function, is_ours = frame.f_code.co_name, _OURS in frame.f_code.co_filename
        if function in ("forward", "__call__") and not transform:
            transform = type(frame.f_locals.get("self")).__name__
        elif not is_ours and not function.startswith(("<", "_wrapped", "_call_impl", "__torch")):
            name = _KNOWN_AS.get(function, function)
        frame = frame.f_back
    return transform or name, f" at {frame.f_code.co_filename}:{frame.f_lineno}"


def site_now() -> str | None:
    """Return "file:line" of the innermost caller that is neither a library whose functions are recorded nor datapipe.

    None while call sites are not recorded.
    """
    fetch = current()
    if fetch is None or not fetch.notes_sites:
        return None
    frame = sys._getframe(1)
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _NOT_THE_USERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
