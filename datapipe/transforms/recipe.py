"""A list of transforms, checked and sorted by who carries them out.

The geometry goes in front, to be done with the decoding; pixel operations follow as a chain over
blocks; batch operations close, or else transforms of the user's own, called per sample. A transform's
place among those that are carried out here is its `operation` number in all draws, wherever it ends up
being executed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.draws import Draws
from datapipe.errors import OptionError
from datapipe.transforms.cuts import whole
from datapipe.transforms.geometry import DRAWS_NOTHING
from datapipe.transforms.lowering import Kind, described, flatten
from datapipe.transforms.per_sample import RestInput, call_each
from datapipe.transforms.pixels.dtype import ScaleAndShift
from datapipe.transforms.protocols import BatchOp, Cuts, GeometryOp
from datapipe.transforms.sorting import PixelStep, Sorted, fuse

Size = tuple[int, int]  # height, width in pixels


@runtime_checkable
class _ChecksDtype(Protocol):
    def check_dtype(self, dtype: torch.dtype, /) -> None: ...


@dataclass(frozen=True, repr=False)
class Recipe:
    """What becomes of each image, and of each batch. Made by `Recipe.of`; equal for equal transforms."""

    transforms: tuple[object, ...]  # flattened: datapipe's, those of others turned into datapipe's, and then `rest`
    geometry: tuple[tuple[int, GeometryOp], ...] = dataclasses.field(compare=False)  # (operation, transform)
    pixels: tuple[PixelStep, ...] = dataclasses.field(compare=False)
    batch: tuple[tuple[int, BatchOp], ...] = dataclasses.field(compare=False)  # (operation, transform)
    output_dtype: torch.dtype = dataclasses.field(compare=False)  # of what the pixel operations leave
    rest: tuple[Callable[[Any], Any], ...] = dataclasses.field(default=(), compare=False)  # called per sample, in order
    rest_input: RestInput = "pil"  # what the first of them takes
    rest_reason: str | None = dataclasses.field(default=None, compare=False)  # which is the first, and why
    output_kind: Kind | None = dataclasses.field(default="any", compare=False)  # see `of`
    _origins: tuple[str | None, ...] = dataclasses.field(default=(), compare=False)  # of `transforms`: whose they were
    _passed_over: tuple[str, ...] = dataclasses.field(default=(), compare=False)  # those in which there was nothing to do

    @classmethod
    def of(cls, transforms: object, *, input_kind: Kind = "any") -> Recipe:
        """Sort and check a transform, a sequence of them, or a Compose, nested as deeply as you like; None is empty.

        Transforms of torchvision (v1 and v2) and timm become datapipe's where these do the same. From the first one that
        does not, or is any other callable, all are called per sample: they are the recipe's `rest`.

        `input_kind`: what the transforms would be given elsewhere, a "pil" image or a "tensor" (torchvision's v2 lets
        images of the wrong kind pass in silence). "any" is whichever the first one that cares takes. `output_kind` is
        what they would hand on; None after a rest, of which nobody knows.

        Raises OptionError for what is no transform, for an order that cannot be honoured exactly by datapipe's own, and for
        one of them that cannot take the dtype that reaches it.
        """
        if isinstance(transforms, Recipe):
            return transforms
        found = Sorted(input_kind)
        for transform in flatten(transforms):
            if isinstance(transform, Recipe):
                for op in transform._whole():
                    found = found.with_transform(op)
                found = found.with_kind(transform.output_kind)
            else:
                found = found.with_transform(transform)
        for _, op in found.batch:
            if isinstance(op, _ChecksDtype):
                op.check_dtype(found.dtype)
        return cls(
            (*found.ops, *found.rest),
            found.geometry,
            fuse(found.pixels),
            found.batch,
            found.dtype,
            rest=found.rest,
            rest_input="tensor" if found.rest and found.kind in ("tensor", "image") else "pil",
            rest_reason=found.rest_reason,
            output_kind=None if found.rest else found.kind,
            _origins=found.origins,
            _passed_over=found.passed_over,
        )

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self.transforms))}]"

    def geometry_alone(self) -> Recipe:
        """The recipe without its pixel and batch operations and its rest, which somebody else then carries out."""
        return dataclasses.replace(self, pixels=(), batch=(), output_dtype=torch.uint8, rest=())

    def output_size(self, input_size: Size | None = None) -> Size | None:
        """(height, width) of every image that leaves, given that of every one that enters; None if it depends on the sample.

        None as well where a rest makes the images: nobody knows what it gives.
        """
        if self.rest:
            return None
        size = input_size
        for _, op in self.geometry:
            size = op.output_size(size)
        return size

    def check_equal_sizes(self, input_size: Size | None = None, *, such_as: str = "") -> Size:
        """The one size in which all images leave. Raises OptionError where they could differ.

        `input_size`: (height, width) where all stored images have it, None where they differ, as `such_as` says.
        """
        size = self.output_size(input_size)
        if self.rest:
            raise OptionError(f"images are made by {described(self.rest[-1])}, and nobody else knows their sizes")
        if size is None:
            ends = f"ends with {self.geometry[-1][1]!r}, which keeps differences" if self.geometry else "has no crop or resize"
            raise OptionError(
                f"images would differ in size: the recipe's geometry {ends}{such_as and f', and {such_as}'}; "
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

    def run_rest(self, image: torch.Tensor) -> object:
        """What the `rest` makes of one image, (h, w, 3) of `output_dtype`, as `run_pixels` left it.

        Its memory may be handed over, so it must not be used afterwards. Raises what the user's transforms raise, and draws
        from where they draw. Thread-safe as far as they are.
        """
        return call_each(self.rest, image, first_takes=self.rest_input)

    def explain(self) -> list[str]:
        """What is done where, one line per step, and what it was made of where it was another library's."""
        lines = self.explain_own()
        if self.rest:
            lines += [f"per sample: {', '.join(map(described, self.rest))}", f"  since {self.rest_reason}"]
            return [*lines, f"out: what {described(self.rest[-1])} gives"]
        size = self.output_size()
        shape = f"{size[0]} x {size[1]}" if size else "of the sample's size"
        lines.append(f"out: {str(self.output_dtype).removeprefix('torch.')} RGB, {shape}, channels_last")
        return lines

    def explain_own(self) -> list[str]:
        """The same without the rest, and without what leaves: what datapipe carries out."""
        last_pixel = min((step.operation for step in self.pixels), default=len(self.transforms))
        lines = [
            f"with the decode: {op!r}{self._from(op)}"
            + (" (moved before the pixel operations: same result)" if n > last_pixel else "")
            for n, op in self.geometry
        ]
        for step in self.pixels:
            written = " + ".join(map(repr, step.stands_for))
            fused = " (one multiply-add)" if isinstance(step.op, ScaleAndShift) else ""
            lines.append(f"on blocks of images: {written}{self._from(*step.stands_for)}{fused}")
        lines += [f"on the batch: {op!r}{self._from(op)}" for _, op in self.batch]
        if self._passed_over:
            lines.append(f"nothing to do: {', '.join(self._passed_over)}")
        return lines

    def _from(self, *ops: object) -> str:
        """Which transforms of other libraries these were."""
        pairs = list(zip(self.transforms, self._origins, strict=False))
        origins = [origin for op in ops for own, origin in pairs if own is op and origin]
        return f", from {' + '.join(origins)}" if origins else ""

    def _whole(self) -> tuple[object, ...]:
        """Its transforms, to become part of a list. Raises OptionError where there is a rest."""
        if self.rest:
            raise OptionError(
                f"a Recipe that ends with {described(self.rest[-1])} cannot be part of a list; pass the transforms themselves"
            )
        return self.transforms

    def split_front(self) -> tuple[Recipe, Recipe]:
        """The leading geometry that draws nothing, and all that follows: one after the other, what the whole recipe does."""
        num = next((n for n, (_, op) in enumerate(self.geometry) if not isinstance(op, DRAWS_NOTHING)), len(self.geometry))
        front, behind = self.geometry[:num], self.geometry[num:]
        alone = dataclasses.replace(self.geometry_alone(), transforms=tuple(op for _, op in front), geometry=front)
        return alone, dataclasses.replace(self, geometry=behind)
