"""Sorting a list of transforms by who carries them out, and checking that their order can be honoured.

Transforms of other libraries become datapipe's as they arrive; from the first one that does not, all are kept as they
are, to be called per sample.
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
from datapipe.transforms.pixels.reach import Reach
from datapipe.transforms.protocols import BatchOp, GeometryOp, PixelOp

Size = tuple[int, int]  # height, width in pixels


@dataclass(frozen=True)
class PixelStep:
    """A pixel operation, the number by which it draws, and the dtype that reaches it. `stands_for`: what it was made of."""

    operation: int
    op: PixelOp
    dtype: torch.dtype
    stands_for: tuple[object, ...]


@dataclass(frozen=True)
class Sorted:
    """Transforms sorted so far. A number is the place of a transform in `ops`."""

    kind: Kind  # of the image that leaves the last one
    dtype: torch.dtype = torch.uint8  # of the same
    ops: tuple[object, ...] = ()  # all those of datapipe's
    origins: tuple[str | None, ...] = ()  # what each of them was, where it was another library's
    geometry: tuple[tuple[int, GeometryOp], ...] = ()
    pixels: tuple[PixelStep, ...] = ()
    batch: tuple[tuple[int, BatchOp], ...] = ()
    passed_over: tuple[str, ...] = ()  # those in which there is nothing to do
    rest: tuple[Callable[[Any], Any], ...] = ()
    rest_reason: str | None = None
    wrapper: Callable[[Any], Any] | None = None  # what made the image a tv_tensors.Image

    def with_transform(self, transform: object) -> Sorted:
        """With one more. Raises OptionError for what is no transform, and for what can be done neither here nor per sample."""
        if isinstance(transform, type):
            raise OptionError(f"{transform.__name__} is a class; pass an instance, {transform.__name__}(...)")
        if isinstance(transform, (GeometryOp, PixelOp, BatchOp)):
            if self.rest:
                raise OptionError(
                    f"{transform!r} comes after {described(self.rest[0])}, from which on transforms are called per sample "
                    f"({self.rest_reason}); move it before, or use torchvision's in its place"
                )
            return self._with_op(transform, None)
        if not callable(transform):
            raise OptionError(
                f"{transform!r} (of type {type(transform).__module__}.{type(transform).__qualname__}) is no transform known "
                "here, nor can it be called; use those of datapipe.transforms, named as in torchvision.transforms.v2"
            )
        return self._with_foreign(transform)

    def with_kind(self, kind: Kind | None) -> Sorted:
        """With images of that kind from here on, where it is known to be one."""
        return self if kind in (None, "any") else dataclasses.replace(self, kind=kind)

    def _with_foreign(self, transform: Callable[[Any], Any]) -> Sorted:
        name = described(transform)
        if self.rest:
            if mixes_batches(transform):
                raise OptionError(
                    f"{name} mixes whole batches, and comes after {described(self.rest[0])}, which is called per sample; "
                    "call it in the training loop, or pass it as batch_transform"
                )
            return dataclasses.replace(self, rest=(*self.rest, transform))
        if self.batch and not mixes_batches(transform):
            raise OptionError(f"{name} comes after {self.batch[-1][1]!r}, which mixes whole batches; move it before")
        try:
            lowered = lower(transform, self.kind)
        except OptionError as exc:
            if mixes_batches(transform):
                raise OptionError(f"{name}: {exc}") from exc
            return self._with_rest(transform, f"{name} is called as it is: {exc}")
        grown = self
        for op in lowered.ops:
            try:
                grown = grown._with_op(op, name)
            except OptionError as exc:
                if isinstance(op, Normalize) or not isinstance(op, (GeometryOp, PixelOp)):  # it would fail there, too
                    raise
                return self._with_rest(transform, f"{name} is called as it is: {exc}")
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
            raise OptionError(f"{op!r} comes after {self.batch[-1][1]!r}, which mixes whole batches; move it before")
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
    """Turn conversions from uint8, with a Normalize right behind, into one operation; leave out those that do nothing."""
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
    """Raise OptionError unless `op` gives the same, bit for bit, when it is done before all of `pixels`."""
    if not pixels:
        return
    flips = isinstance(op, (RandomHorizontalFlip, RandomVerticalFlip))
    crops = isinstance(op, (RandomCrop, CenterCrop)) and not _may_pad(op, geometry)
    for step in pixels:
        reach = getattr(step.op, "reach", Reach.PLACE)
        # A sum over an image is the same in any order where the values are whole numbers, not where they are fractions.
        summed = reach is Reach.IMAGE and step.dtype == torch.uint8
        if not ((flips and (summed or reach is Reach.POINT)) or (crops and reach is Reach.POINT)):
            raise OptionError(
                f"{op!r} comes after {step.op!r}, and the two cannot change places without changing the result; "
                "move all crops, resizes, paddings and flips to the front of the list"
            )


def _may_pad(op: RandomCrop | CenterCrop, geometry: Sequence[tuple[int, GeometryOp]]) -> bool:
    """Whether the crop could show its fill, which the pixel operations would then change."""
    size: Size | None = None
    for _, earlier in geometry:
        size = earlier.output_size(size)
    if isinstance(op, RandomCrop):
        return bool(op.padding and any(op.padding)) or op.pad_if_needed
    return size is None or size[0] < op.size[0] or size[1] < op.size[1]
