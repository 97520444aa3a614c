"""A list of transforms, checked and sorted by who carries them out.

The geometry goes in front, to be done with the decoding; pixel operations follow as a chain over
blocks; batch operations close. A transform's place in the list as given is its `operation` number in
all draws, wherever it ends up being executed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.draws import Draws
from datapipe.errors import OptionError
from datapipe.transforms.cuts import whole
from datapipe.transforms.geometry import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from datapipe.transforms.pixels.dtype import Normalize, ScaleAndShift, ToDtype, scale_and_shift
from datapipe.transforms.pixels.reach import Reach
from datapipe.transforms.protocols import BatchOp, Cuts, GeometryOp, PixelOp

Size = tuple[int, int]  # height, width in pixels


@runtime_checkable
class _ChecksDtype(Protocol):
    def check_dtype(self, dtype: torch.dtype, /) -> None: ...


@dataclass(frozen=True)
class PixelStep:
    """A pixel operation, the number by which it draws, and the dtype that reaches it. `stands_for` is what the user wrote."""

    operation: int
    op: PixelOp
    dtype: torch.dtype
    stands_for: tuple[object, ...]


@dataclass(frozen=True, repr=False)
class Recipe:
    """What becomes of each image, and of each batch. Made by `Recipe.of`; equal for equal transforms."""

    transforms: tuple[object, ...]  # flattened, as given
    geometry: tuple[tuple[int, GeometryOp], ...] = dataclasses.field(compare=False)  # (operation, transform)
    pixels: tuple[PixelStep, ...] = dataclasses.field(compare=False)
    batch: tuple[tuple[int, BatchOp], ...] = dataclasses.field(compare=False)  # (operation, transform)
    output_dtype: torch.dtype = dataclasses.field(compare=False)

    @classmethod
    def of(cls, transforms: object) -> Recipe:
        """Sort and check a transform, a sequence of them, or a Compose, nested as deeply as you like; None is empty.

        Raises OptionError for what is no transform, for an order that cannot be honoured exactly, and for a
        transform that cannot take the dtype that reaches it.
        """
        flat = tuple(_flatten(transforms))
        geometry: list[tuple[int, GeometryOp]] = []
        pixels: list[PixelStep] = []
        batch: list[tuple[int, BatchOp]] = []
        dtype = torch.uint8
        for operation, transform in enumerate(flat):
            if isinstance(transform, type):
                raise OptionError(f"{transform.__name__} is a class; pass an instance, {transform.__name__}(...)")
            if batch and isinstance(transform, (GeometryOp, PixelOp)):
                raise OptionError(f"{transform!r} comes after {batch[-1][1]!r}, which mixes whole batches; move it before")
            if isinstance(transform, GeometryOp):
                _check_movable(transform, geometry, pixels)
                geometry.append((operation, transform))
            elif isinstance(transform, PixelOp):
                pixels.append(PixelStep(operation, transform, dtype, (transform,)))
                dtype = transform.output_dtype(dtype)
            elif isinstance(transform, BatchOp):
                batch.append((operation, transform))
            else:
                raise OptionError(
                    f"{transform!r} (of type {type(transform).__module__}.{type(transform).__qualname__}) is no transform known "
                    "here; use those of datapipe.transforms, named as in torchvision.transforms.v2"
                )
        for _, op in batch:
            if isinstance(op, _ChecksDtype):
                op.check_dtype(dtype)
        return cls(flat, tuple(geometry), tuple(_fuse(pixels)), tuple(batch), dtype)

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self.transforms))}]"

    def geometry_alone(self) -> Recipe:
        """The recipe without its pixel and batch operations, which somebody else then carries out."""
        return dataclasses.replace(self, pixels=(), batch=(), output_dtype=torch.uint8)

    def output_size(self, input_size: Size | None = None) -> Size | None:
        """(height, width) of every image that leaves, given that of every one that enters; None if it depends on the sample."""
        size = input_size
        for _, op in self.geometry:
            size = op.output_size(size)
        return size

    def check_equal_sizes(self, input_size: Size | None = None) -> Size:
        """The one size in which all images leave. Raises OptionError where they could differ.

        `input_size`: (height, width) where all stored images have it, None where they differ.
        """
        size = self.output_size(input_size)
        if size is None:
            ends = f"ends with {self.geometry[-1][1]!r}, which keeps differences" if self.geometry else "has no crop or resize"
            raise OptionError(
                f"images would differ in size: the recipe's geometry {ends}; "
                "end the geometry with RandomResizedCrop, CenterCrop or Resize((h, w))"
            )
        return size

    def draw_cuts(self, draws: Draws, sizes: NDArray[np.int64]) -> list[Cuts]:
        """The geometry of n samples whose stored images have these (n, 2) sizes, in pixels, as a chain of Cuts.

        Costs tens of microseconds for any n up to a few hundred: call it once per batch rather than per image.
        """
        cuts = whole(sizes)
        for operation, op in self.geometry:
            cuts = op.fold(cuts, draws, operation)
        return cuts

    def run_pixels(self, block: torch.Tensor, draws: Draws, out: torch.Tensor) -> None:
        """Carry out the pixel operations on a block of n images and write them to `out`.

        `block`: (n, h, w, 3) uint8, contiguous; may be overwritten. `out`: (n, h, w, 3) of `output_dtype`, contiguous,
        on the same device; may be `block` itself where that dtype is uint8. `draws`: those of the n samples.
        The result for a sample does not depend on the others in its block. Thread-safe.
        """
        size = (block.shape[1], block.shape[2])
        images = block.permute(0, 3, 1, 2)
        for step in self.pixels:
            op = step.op
            if isinstance(op, ScaleAndShift) and op.dtype == out.dtype:
                op.apply_into(images.permute(0, 2, 3, 1), out)
                images = out.permute(0, 3, 1, 2)
            else:
                images = op.apply(images, op.draw(draws, step.operation, size))
        if images.data_ptr() != out.data_ptr():
            out.copy_(images.permute(0, 2, 3, 1))

    def run_batch(self, images: torch.Tensor, labels: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
        """Carry out the batch operations: (b, 3, h, w) images and int64 labels (b,) in; `draws` has length 1."""
        size = (images.shape[2], images.shape[3])
        for operation, op in self.batch:
            images, labels = op.apply(images, labels, op.draw(draws, operation, size))
        return images, labels

    def explain(self) -> list[str]:
        """What is done where, one line per step."""
        last_pixel = min((step.operation for step in self.pixels), default=len(self.transforms))
        lines = [
            f"with the decode: {op!r}" + (" (moved before the pixel operations: same result)" if n > last_pixel else "")
            for n, op in self.geometry
        ]
        for step in self.pixels:
            written = " + ".join(map(repr, step.stands_for))
            fused = " (one multiply-add)" if isinstance(step.op, ScaleAndShift) else ""
            lines.append(f"on blocks of images: {written}{fused}")
        lines += [f"on the batch: {op!r}" for _, op in self.batch]
        size = self.output_size()
        shape = f"{size[0]} x {size[1]}" if size else "of the sample's size"
        lines.append(f"out: {str(self.output_dtype).removeprefix('torch.')} RGB, {shape}, channels_last")
        return lines


def _flatten(transforms: object) -> Iterator[object]:
    """What a nest of sequences, recipes and Compose-likes (of that name, with a sequence `transforms`) holds, in order."""
    if transforms is None:
        return
    inner: object = transforms
    if isinstance(transforms, Recipe) or type(transforms).__name__ == "Compose":
        inner = getattr(transforms, "transforms", None)
    if isinstance(inner, (list, tuple)):
        for transform in inner:
            yield from _flatten(transform)
    else:
        yield transforms


def _fuse(steps: Sequence[PixelStep]) -> list[PixelStep]:
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
    return fused


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
