"""A list of transforms, checked and sorted by the part of the loader that executes them.

Geometry comes first and runs with the decoding. Pixel operations follow as a chain over blocks. Batch operations come
last, or else the user's own transforms, called per sample. A transform's position among datapipe's is its `operation`
number in all draws, wherever it is executed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms.cuts import whole
from datapipe.transforms.geometry import DRAWS_NOTHING, Pad, RandomHorizontalFlip, RandomVerticalFlip
from datapipe.transforms.lowering import Kind, described, flatten, is_albumentations
from datapipe.transforms.pixels.dtype import ScaleAndShift
from datapipe.transforms.pixels.mix import MixUp
from datapipe.transforms.protocols import BatchOp, Cuts, GeometryOp
from datapipe.transforms.sorting import PixelStep, Sorted, fuse

Size = tuple[int, int]  # height, width in pixels


@dataclass(frozen=True, repr=False)
class Recipe:
    """The transforms applied to each image and to each batch. Made by `Recipe.of`; equal for equal transforms.

    >>> T.Recipe.of([T.RandomResizedCrop(224), T.RandomHorizontalFlip()]).explain()
    """

    transforms: tuple[object, ...]  # flattened: datapipe's, others converted to datapipe's, then `rest`
    geometry: tuple[tuple[int, GeometryOp], ...] = dataclasses.field(compare=False)  # (operation, transform)
    pixels: tuple[PixelStep, ...] = dataclasses.field(compare=False)
    batch: tuple[tuple[int, BatchOp], ...] = dataclasses.field(compare=False)  # (operation, transform)
    output_dtype: torch.dtype = dataclasses.field(compare=False)  # of the pixel operations' output
    rest: tuple[Callable[[Any], Any], ...] = dataclasses.field(default=(), compare=False)  # called per sample, in order
    rest_input: Literal["pil", "tensor"] = "pil"  # input of the first of them
    rest_reason: str | None = dataclasses.field(default=None, compare=False)  # names the first, with the reason
    output_kind: Kind | None = dataclasses.field(default="any", compare=False)  # see `of`
    _origins: tuple[str | None, ...] = dataclasses.field(default=(), compare=False)  # origin of each of `transforms`
    _passed_over: tuple[str, ...] = dataclasses.field(default=(), compare=False)  # transforms with nothing to do

    @classmethod
    def of(cls, transforms: object, *, input_kind: Kind = "any") -> Recipe:
        """Sort and check a transform, a sequence of them, or a Compose, nested to any depth; None is empty.

        Transforms of torchvision (v1 and v2) and timm become datapipe's if these do the same. From the first one that does not,
        or is any other callable, all are called per sample: they are the recipe's `rest`.

        `input_kind`: the image that the transforms would get elsewhere, "pil" or "tensor" (torchvision's v2 silently passes
        images of the wrong kind through). "any" is what the first transform that requires a kind accepts. `output_kind` is
        the kind of their output; None after a rest, where it is unknown.

        Raises OptionError for an object that is not a transform, for an order that datapipe's transforms cannot keep exactly, and
        for one of them that does not support the dtype of its input.
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
            if isinstance(op, MixUp):
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
        """Return the recipe without pixel operations, batch operations and rest, which the caller then executes elsewhere."""
        return dataclasses.replace(self, pixels=(), batch=(), output_dtype=torch.uint8, rest=())

    def output_size(self, input_size: Size | None = None) -> Size | None:
        """Return (height, width) of every output image for that of every input image; None if it depends on the sample.

        With a rest it is None too, since the size of its output is unknown.
        """
        if self.rest:
            return None
        size = input_size
        for _, op in self.geometry:
            size = op.output_size(size)
        return size

    @property
    def saves_decoding(self) -> bool:
        """Whether images are cut or resized with the decode, so that parts of them need not be decoded, or not kept."""
        return any(not isinstance(op, (Pad, RandomHorizontalFlip, RandomVerticalFlip)) for _, op in self.geometry)

    def check_equal_sizes(self, input_size: Size | None = None, *, such_as: str = "") -> Size:
        """Return the common size of all output images. Raises OptionError if they could differ.

        `input_size`: (height, width) if all stored images have it, None if they differ, as `such_as` says.
        """
        size = self.output_size(input_size)
        if self.rest:
            raise OptionError(f"images are made by {described(self.rest[-1])}, so their sizes are unknown")
        if size is None:
            ends = f"ends with {self.geometry[-1][1]!r}, which keeps differences" if self.geometry else "has no crop or resize"
            raise OptionError(
                f"images would differ in size: the recipe's geometry {ends}{such_as and f', and {such_as}'}; "
                "end the geometry with RandomResizedCrop, CenterCrop or Resize((h, w))"
            )
        return size

    def draw_cuts(self, draws: Draws, sizes: NDArray[np.int64]) -> list[Cuts]:
        """Return the geometry of n samples whose stored images have these (n, 2) sizes, in pixels, as a chain of Cuts.

        It takes tens of microseconds for any n up to a few hundred: call it once per batch rather than per image.
        """
        cuts = whole(sizes)
        for operation, op in self.geometry:
            cuts = op.fold(cuts, draws, operation)
        return cuts

    def run_pixels(self, block: torch.Tensor, draws: Draws, out: torch.Tensor) -> None:
        """Execute the pixel operations on a block of n images and write the result to `out`.

        `block`: (n, h, w, 3) uint8, contiguous; may be overwritten. `out`: (n, h, w, 3) of `output_dtype`, contiguous, on the
        same device; may be `block` itself if that dtype is uint8. `draws`: those of the n samples. The result for a sample does
        not depend on the others in its block. Thread-safe.
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
        """Execute the batch operations on (b, 3, h, w) images and int64 labels (b,); `draws` has length 1."""
        size = (images.shape[2], images.shape[3])
        for operation, op in self.batch:
            images, labels = op.apply(images, labels, op.draw(draws, operation, size))
        return images, labels

    def run_rest(self, image: torch.Tensor) -> object:
        """Return the result of the `rest` for one image, (h, w, 3) of `output_dtype`, as `run_pixels` left it.

        The first of these transforms gets a PIL image or a contiguous (3, h, w) tensor, as `rest_input` says, each further one
        the result of the one before; those of albumentations get and return (h, w, c) arrays. Do not use the image afterwards:
        the transforms may get its memory. Raises what the user's transforms raise, and draws from the generators that they
        use. Thread-safe if they are.
        """
        value: Any = image.permute(2, 0, 1).contiguous() if self.rest_input == "tensor" else image.numpy()
        if self.rest_input == "pil" and not is_albumentations(self.rest[0]):
            value = Image.fromarray(value)
        for transform in self.rest:
            if is_albumentations(transform):
                value = transform(image=_array(value))["image"]  # type: ignore[call-arg]
            else:
                value = transform(value)
        return value

    def explain(self) -> list[str]:
        """Return what is done where, one line per step, with the original transform if it was another library's."""
        lines = self.explain_own()
        if self.rest:
            lines += [f"per sample: {', '.join(map(described, self.rest))}", f"  because {self.rest_reason}"]
            return [*lines, f"out: what {described(self.rest[-1])} returns"]
        size = self.output_size()
        shape = f"{size[0]} x {size[1]}" if size else "of the sample's size"
        lines.append(f"out: {str(self.output_dtype).removeprefix('torch.')} RGB, {shape}, channels_last")
        return lines

    def explain_own(self) -> list[str]:
        """Return the same for datapipe's own part: without the rest and the output line."""
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
        """Name the transforms of other libraries that these were converted from."""
        pairs = list(zip(self.transforms, self._origins, strict=False))
        origins = [origin for op in ops for own, origin in pairs if own is op and origin]
        return f", from {' + '.join(origins)}" if origins else ""

    def _whole(self) -> tuple[object, ...]:
        """Return the transforms, to become part of a list. Raises OptionError if there is a rest."""
        if self.rest:
            raise OptionError(
                f"a Recipe that ends with {described(self.rest[-1])} cannot be part of a list; pass the transforms themselves"
            )
        return self.transforms

    def with_pixels(self, num: int) -> Recipe:
        """Return the recipe up to so many of its pixel steps, which leave uint8; what comes after them the caller executes."""
        return dataclasses.replace(self.geometry_alone(), pixels=self.pixels[:num])

    def after_pixels(self, num: int) -> Recipe:
        """Return the pixel operations that `with_pixels` leaves to the caller."""
        return dataclasses.replace(self, geometry=(), pixels=self.pixels[num:], batch=(), rest=())

    @property
    def num_in_bytes(self) -> int:
        """The number of leading pixel steps whose result is uint8."""
        are_bytes = (step.op.output_dtype(step.dtype) == torch.uint8 for step in self.pixels)
        return next((num for num, is_bytes in enumerate(are_bytes) if not is_bytes), len(self.pixels))

    def split_front(self) -> tuple[Recipe, Recipe]:
        """Return the leading geometry that draws nothing, and the rest of the recipe; executed in turn they equal the recipe."""
        num = next((n for n, (_, op) in enumerate(self.geometry) if not isinstance(op, DRAWS_NOTHING)), len(self.geometry))
        front, behind = self.geometry[:num], self.geometry[num:]
        alone = dataclasses.replace(self.geometry_alone(), transforms=tuple(op for _, op in front), geometry=front)
        return alone, dataclasses.replace(self, geometry=behind)


def _array(value: Any) -> Any:
    """Return an image in the form that albumentations expects: (h, w, c), contiguous."""
    if isinstance(value, torch.Tensor):
        return np.ascontiguousarray(value.permute(1, 2, 0).numpy())
    return np.array(value) if isinstance(value, Image.Image) else value
