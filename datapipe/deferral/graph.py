"""Hold what was done to an image, as a chain of steps that leads back to the encoded bytes; fold its beginning into one cut.

A chain is recorded while `__getitem__` runs and executed when the fetch ends, by datapipe's engine or, step by step, by
the functions that were called. Nodes are immutable and hold no images, so chains share their beginnings.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import Image

from datapipe.codecs.probe import ImageHeader
from datapipe.transforms.execute import RowCut
from datapipe.transforms.protocols import Interpolation

INTERPOLATIONS: dict[int, Interpolation] = {
    int(Image.Resampling.BILINEAR): "bilinear",
    int(Image.Resampling.BICUBIC): "bicubic",
}
_LEFT_RIGHT, _TOP_BOTTOM = int(Image.Transpose.FLIP_LEFT_RIGHT), int(Image.Transpose.FLIP_TOP_BOTTOM)


@dataclass(frozen=True, slots=True, eq=False)
class JpegSource:
    """A JPEG's bytes, captured when its pixels were first needed."""

    data: bytes
    header: ImageHeader
    mode: str  # Pillow's: "RGB" or "L"
    size: tuple[int, int]  # (width, height)
    kind: Hashable  # what decoders may treat differently: components, subsampling, colour transform, progressive


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One recorded operation on the result of its parent."""

    parent: Step | JpegSource
    name: str  # key of the operation, in PILLOW_STEPS or TENSOR_STEPS
    args: tuple[Any, ...]  # positional, as the original function takes them after the image
    mode: str  # of the result; "tensor" once it is one
    size: tuple[int, int]  # (width, height) of the result
    trait: Hashable = None  # the part of the arguments that may change which code executes the step
    site: str | None = None  # "file:line" of the user's call, while call sites are recorded


Node = Step | JpegSource


def chain_of(node: Node) -> tuple[JpegSource, list[Step]]:
    """Return the source and the steps after it, in the order in which they were recorded."""
    steps: list[Step] = []
    while isinstance(node, Step):
        steps.append(node)
        node = node.parent
    steps.reverse()
    return node, steps


def image_and_conversion(node: Node) -> tuple[Node, list[Step]]:
    """Return the image of which a tensor is made, and the steps that make it; an image itself, and no steps."""
    conversion: list[Step] = []
    while isinstance(node, Step) and node.mode == "tensor":
        conversion.append(node)
        node = node.parent
    return node, conversion[::-1]


# Names of steps; other steps on images change colours. `resize_image` is the resize of a tensor.
GEOMETRY = frozenset(("convert", "copy", "crop", "pad", "resize", "resize_image", "transpose"))


def before_conversion(
    step: Step, name: str, args: tuple[Any, ...], size: tuple[int, int], trait: Hashable, site: str | None
) -> Step:
    """Return the chain of a tensor with one more operation, on the image of which the tensor is made.

    What makes a tensor of an image, and calculates with it, treats each pixel alone.
    """
    image, conversion = image_and_conversion(step)
    mode: str = conversion[0].trait[0]  # type: ignore[index]
    made = Step(image, name, args, mode, size, trait, site)
    for one in conversion:
        made = Step(made, one.name, one.args, "tensor", size, one.trait, one.site)
    return made


def is_color(step: Step) -> bool:
    """Return whether the step changes colours and leaves pixels where they are."""
    return step.mode != "tensor" and step.name not in GEOMETRY


def signature_of(source: JpegSource, steps: list[Step]) -> Hashable:
    """Return a key for chains that the engine treats alike: everything but the numbers that were drawn.

    Colour steps count as a set, in any order: the original functions execute them.
    """
    colors = frozenset((step.name, step.trait) for step in steps if is_color(step))
    return (source.kind, colors, *[(step.name, step.trait) for step in steps if not is_color(step)])


# -- one cut: region to decode, size to resize to, window and flips ------------------------------------


class Front(NamedTuple):
    """The part of a chain that the engine executes."""

    cut: RowCut
    num_steps: int  # steps of the chain, from its beginning, that the cut replaces
    resampled: Interpolation | None
    is_of_tensor: bool = False  # whether a tensor was resampled, as torch does it, and not an image of Pillow's


def fold(source: JpegSource, steps: Sequence[Step], *, resizes: bool = True) -> Front | None:
    """Return the longest beginning of a chain that is one cut of an RGB image; None if the engine cannot begin.

    The cut gives what the steps give: bit for bit if nothing is resampled, else within the resize's tolerance (a flip
    before a resize is carried out after it; the weights are symmetric). `resizes`: whether the cut may resize.
    """
    top = left = 0
    width, height = source.size
    size: tuple[int, int] | None = None  # (width, height) to which the region is resized
    window = (0, 0, 0, 0)  # left, top, width, height within that
    interpolation: Interpolation = "bilinear"
    across = down = is_of_tensor = False
    mode, done = source.mode, 0
    for step in steps:
        now_width, now_height = (window[2], window[3]) if size is not None else (width, height)
        if step.name == "convert":
            if step.args[0] != "RGB":
                break
            mode = "RGB"
        elif step.name == "crop":
            x0, y0, x1, y1 = step.args[0]
            if x0 < 0 or y0 < 0 or x1 > now_width or y1 > now_height:
                break
            if across:
                x0, x1 = now_width - x1, now_width - x0
            if down:
                y0, y1 = now_height - y1, now_height - y0
            if size is None:
                left, top, width, height = left + x0, top + y0, x1 - x0, y1 - y0
            else:
                window = (window[0] + x0, window[1] + y0, x1 - x0, y1 - y0)
        elif step.name in ("resize", "resize_image"):
            (to_width, to_height), filter_ = step.args
            if step.name == "resize_image" and (across or down):  # is exact, and its rounding need not be symmetric
                break
            if (to_width, to_height) != (now_width, now_height):
                if not resizes or size is not None or filter_ not in INTERPOLATIONS:
                    break
                size, window, interpolation = (to_width, to_height), (0, 0, to_width, to_height), INTERPOLATIONS[filter_]
                is_of_tensor = step.name == "resize_image"
        elif step.name == "transpose":
            if step.args[0] == _LEFT_RIGHT:
                across = not across
            elif step.args[0] == _TOP_BOTTOM:
                down = not down
            else:
                break
        elif step.name != "copy":
            break
        done += 1
    if mode != "RGB":
        return None
    resampled = None if size is None else interpolation
    to_width, to_height = size or (width, height)
    if size is None:
        window = (0, 0, width, height)
    cut = RowCut(
        region=[top, left, height, width],
        size=[to_height, to_width],
        window=[window[1], window[0], window[3], window[2]],
        flip=[down, across],
        fill=(0, 0, 0),
        interpolation=interpolation,
    )
    return Front(cut, done, resampled, is_of_tensor)
