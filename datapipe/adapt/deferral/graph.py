"""Record what was done to an image, as a chain of steps that leads back to the encoded bytes.

A chain is recorded while `__getitem__` runs and executed when the fetch ends, by datapipe's engine or, step by step, by
the functions that were called. Nodes are immutable and hold no images, so chains share their beginnings.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from datapipe.codecs.probe import ImageHeader


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


GEOMETRY = frozenset(("convert", "copy", "crop", "resize", "transpose"))  # names of steps; other steps on images change colours


def is_color(step: Step) -> bool:
    """Return whether the step changes colours and leaves pixels where they are."""
    return step.mode != "tensor" and step.name not in GEOMETRY


def signature_of(source: JpegSource, steps: list[Step]) -> Hashable:
    """Return a key for chains that the engine treats alike: everything but the numbers that were drawn.

    Colour steps count as a set, in any order: the original functions execute them.
    """
    colors = frozenset((step.name, step.trait) for step in steps if is_color(step))
    return (source.kind, colors, *[(step.name, step.trait) for step in steps if not is_color(step)])
