"""Sort a list of transforms by the part of the loader that executes them, and check that their order can be kept.

Transforms of other libraries are converted to datapipe's as they arrive. From the first that cannot be, all are kept
unchanged, to be called per sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from datapipe.errors import OptionError
from datapipe.transforms.geometry import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from datapipe.transforms.lowering import Kind, described, lower, mixes_batches
from datapipe.transforms.pixels.dtype import Normalize, ScaleAndShift, ToDtype, scale_and_shift
from datapipe.transforms.protocols import BatchOp, GeometryOp, Locality, PixelOp

Size = tuple[int, int]  # height, width in pixels


@dataclass(frozen=True)
class PixelStep:
    """A pixel operation, its number in draws, and the dtype of its input. `stands_for`: the operations it was made of."""

    operation: int
    op: PixelOp
    dtype: torch.dtype
    stands_for: tuple[object, ...]


@dataclass(frozen=True)
class Sorted:
    """The transforms sorted so far. A number is the position of a transform in `ops`."""

    kind: Kind  # of the last transform's output
    dtype: torch.dtype = torch.uint8  # of the same output
    ops: tuple[object, ...] = ()  # all of datapipe's transforms
    origins: tuple[str | None, ...] = ()  # the other library's transform that each was, if any
    geometry: tuple[tuple[int, GeometryOp], ...] = ()
    pixels: tuple[PixelStep, ...] = ()
    batch: tuple[tuple[int, BatchOp], ...] = ()
    passed_over: tuple[str, ...] = ()  # transforms with nothing to do
    rest: tuple[Callable[[Any], Any], ...] = ()
    rest_reason: str | None = None
    wrapper: Callable[[Any], Any] | None = None  # the transform that made the image a tv_tensors.Image

    def with_transform(self, transform: object) -> Sorted:
        """Return this with one more. Raises OptionError for an object that is not a transform, or that cannot be executed."""
        if isinstance(transform, type):
            raise OptionError(f"{transform.__name__} is a class; pass an instance, {transform.__name__}(...)")
        if isinstance(transform, (GeometryOp, PixelOp, BatchOp)):
            if self.rest:
                raise OptionError(
                    f"{transform!r} comes after {described(self.rest[0])}; from there on, transforms are called per sample "
                    f"({self.rest_reason}); move it before that, or use torchvision's instead"
                )
            return self._with_op(transform, None)
        if not callable(transform):
            raise OptionError(
                f"{transform!r} (of type {type(transform).__module__}.{type(transform).__qualname__}) is not a known transform "
                "and not callable; use those of datapipe.transforms, named as in torchvision.transforms.v2"
            )
        return self._with_foreign(transform)

    def with_kind(self, kind: Kind | None) -> Sorted:
        """Return this with images of `kind` from here on, if the kind is known."""
        return self if kind in (None, "any") else dataclasses.replace(self, kind=kind)

    def _with_foreign(self, transform: Callable[[Any], Any]) -> Sorted:
        name = described(transform)
        if self.rest:
            if mixes_batches(transform):
                raise OptionError(
                    f"{name} mixes whole batches but comes after {described(self.rest[0])}, which is called per sample; "
                    "call it in the training loop, or pass it as batch_transform"
                )
            return dataclasses.replace(self, rest=(*self.rest, transform))
        if self.batch and not mixes_batches(transform):
            raise OptionError(f"{name} comes after {self.batch[-1][1]!r}, which mixes whole batches; move it before that")
        try:
            lowered = lower(transform, self.kind)
        except OptionError as exc:
            if mixes_batches(transform):
                raise OptionError(f"{name}: {exc}") from exc
            return self._with_rest(transform, f"{name} runs unchanged: {exc}")
        grown = self
        for op in lowered.ops:
            try:
                grown = grown._with_op(op, name)
            except OptionError as exc:
                if isinstance(op, Normalize) or not isinstance(op, (GeometryOp, PixelOp)):  # it would fail per sample, too
                    raise
                return self._with_rest(transform, f"{name} runs unchanged: {exc}")
        if not lowered.ops:
            grown = dataclasses.replace(grown, passed_over=(*grown.passed_over, name))
        if lowered.kind is not None:
            grown = dataclasses.replace(grown, kind=lowered.kind, wrapper=transform if lowered.kind == "image" else None)
        return grown

    def _with_rest(self, transform: Callable[[Any], Any], reason: str) -> Sorted:
        wrapped = (self.wrapper,) if self.kind == "image" and self.wrapper is not None else ()
        return dataclasses.replace(self, rest=(*wrapped, transform), rest_reason=reason)

    def _with_op(self, op: object, origin: str | None) -> Sorted:
        number = len(self.ops)
        grown = dataclasses.replace(self, ops=(*self.ops, op), origins=(*self.origins, origin))
        if self.batch and isinstance(op, (GeometryOp, PixelOp)):
            raise OptionError(f"{op!r} comes after {self.batch[-1][1]!r}, which mixes whole batches; move it before that")
        if isinstance(op, GeometryOp):
            _check_movable(op, self.geometry, self.pixels)
            return dataclasses.replace(grown, geometry=(*self.geometry, (number, op)))
        if isinstance(op, PixelOp):
            dtype = op.output_dtype(self.dtype)
            step = PixelStep(number, op, self.dtype, (op,))
            is_converted = isinstance(op, ToDtype) and self.kind in ("any", "pil")
            kind: Kind = "tensor" if is_converted else self.kind
            return dataclasses.replace(grown, pixels=(*self.pixels, step), dtype=dtype, kind=kind)
        assert isinstance(op, BatchOp)
        return dataclasses.replace(grown, batch=(*self.batch, (number, op)))


def fuse(steps: Sequence[PixelStep]) -> tuple[PixelStep, ...]:
    """Fuse each conversion from uint8, with a Normalize directly after it, into one operation; drop those that do nothing."""
    fused: list[PixelStep] = []
    for step in steps:
        op, previous = step.op, fused[-1] if fused else None
        if isinstance(op, ToDtype) and op.dtype == step.dtype:
            continue
        if isinstance(op, ToDtype) and step.dtype == torch.uint8:
            fused.append(dataclasses.replace(step, op=scale_and_shift(op, None)))
        elif isinstance(op, Normalize) and previous and isinstance(previous.op, ScaleAndShift) and len(previous.stands_for) == 1:
            conversion = previous.stands_for[0]
            assert isinstance(conversion, ToDtype)
            fused[-1] = dataclasses.replace(previous, op=scale_and_shift(conversion, op), stands_for=(conversion, op))
        else:
            fused.append(step)
    return tuple(fused)


def _check_movable(op: GeometryOp, geometry: Sequence[tuple[int, GeometryOp]], pixels: Sequence[PixelStep]) -> None:
    """Raise OptionError unless `op` gives the same result, bit for bit, before all of `pixels`."""
    if not pixels:
        return
    flips = isinstance(op, (RandomHorizontalFlip, RandomVerticalFlip))
    crops = isinstance(op, (RandomCrop, CenterCrop)) and not _may_pad(op, geometry)
    for step in pixels:
        locality = getattr(step.op, "locality", Locality.PLACE)
        # A sum over an image does not depend on the order for whole numbers; for fractions it does.
        summed = locality is Locality.IMAGE and step.dtype == torch.uint8
        if not ((flips and (summed or locality is Locality.POINT)) or (crops and locality is Locality.POINT)):
            raise OptionError(
                f"{op!r} comes after {step.op!r}, and swapping them would change the result; "
                "move all crops, resizes, paddings and flips to the front of the list"
            )


def _may_pad(op: RandomCrop | CenterCrop, geometry: Sequence[tuple[int, GeometryOp]]) -> bool:
    """Return True if the crop could show its fill, which the pixel operations would then change."""
    size: Size | None = None
    for _, earlier in geometry:
        size = earlier.output_size(size)
    if isinstance(op, RandomCrop):
        return bool(op.padding and any(op.padding)) or op.pad_if_needed
    return size is None or size[0] < op.size[0] or size[1] < op.size[1]
